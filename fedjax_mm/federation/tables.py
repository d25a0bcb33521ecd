"""Index tables out of lists of samples."""

from collections.abc import Sequence

import numpy as np

from fedjax_mm.federation.federation import IndexTable


def index_table(samples: Sequence[np.ndarray], padding: int) -> IndexTable:
    """Lays the samples of every client side by side.

    Args:
        samples: One array of sample indices per client.
        padding: What fills the rows of smaller clients: n, one past the last sample.

    Returns:
        The table, as wide as the largest client, indices ascending in each row.
    """
    sizes = np.array([len(mine) for mine in samples], np.int32)
    rows = np.full((len(samples), sizes.max(initial=0)), padding, np.int32)
    for row, mine in zip(rows, samples, strict=True):
        row[: len(mine)] = np.sort(mine)
    return IndexTable(rows=rows, sizes=sizes)
