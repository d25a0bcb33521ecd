"""A federation at a glance."""

import numpy as np
import pandas as pd

from fedjax_mm.federation.federation import SPLITS, Federation


def overview(federation: Federation) -> pd.DataFrame:
    """Lists the clients.

    Args:
        federation: Any federation.

    Returns:
        One row per client, in the order of their ids: `client` (name), `modalities` (names joined by `+`), `train`,
        `validation` and `test` (samples), `classes` (number of classes among all its samples).
    """
    names = np.array(federation.data.modalities)
    records = []
    for client, name in enumerate(federation.clients):
        parts = {part: federation.table(part).of(client) for part in SPLITS}
        labels = federation.data.labels[np.concatenate(list(parts.values()))]
        records.append(
            {
                "client": name,
                "modalities": "+".join(names[federation.holds[client]]),
                **{part: len(samples) for part, samples in parts.items()},
                "classes": len(np.unique(labels)),
            }
        )
    return pd.DataFrame(records)
