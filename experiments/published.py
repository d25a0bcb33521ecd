"""How published numbers are kept.

They were measured on data that are not here: they stand beside our results, under a heading that says so, to compare
what changes between methods, not levels.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

HEADING = "published (other data)"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of a table.

    Attributes:
        mean: Mean over the paper's trials.
        std: Standard deviation; None where the paper gives none.
        digits: Digits after the point when it is written.
    """

    mean: float
    std: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        """As papers write it."""
        deviation = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{deviation}"


def read(text: str, columns: Sequence[str], *, keys: int, digits: int = 2) -> dict[tuple[str, ...], dict[str, Cell]]:
    """The rows of a printed table by their first `keys` words; column -> cell, written `mean` or `mean±std`."""
    rows = {}
    for line in text.strip().splitlines():
        words = line.split()
        cells = [Cell(*map(float, word.split("±")), digits=digits) for word in words[keys:]]
        rows[tuple(words[:keys])] = dict(zip(columns, cells, strict=True))
    return rows


def average(cells: Iterable[Cell]) -> Cell:
    """The mean of several means; of their deviations nothing is known that could be written beside it."""
    cells = list(cells)
    return Cell(float(np.mean([cell.mean for cell in cells])), digits=cells[0].digits)
