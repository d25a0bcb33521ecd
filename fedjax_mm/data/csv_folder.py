"""A folder of CSV files: one `<modality>.csv` per modality and `labels.csv`.

`<modality>.csv` holds n rows of numbers. Its first row is a header if any cell of it is not a number. A row of empty
cells (or NA, or NaN) says that the sample lacks the modality; a row with only some empty cells is an error.

`labels.csv` holds a header and n rows. The label is the column `y` or, without one, the first column that is not called
`client`, `order`, `group` or `series`; any other column is a further label array.
Columns of integers are read as integers, all others as text.
"""

import pathlib
from typing import Any

import numpy as np
import pandas as pd

from fedjax_mm.data.labels import INTEGER
from fedjax_mm.errors import UsageError

LABELS = "labels.csv"


def read_csv_folder(folder: pathlib.Path) -> dict[str, Any]:
    """Reads a folder of CSV files as arrays of the project's format, modalities in alphabetical order.

    Raises:
        UsageError: The folder lacks a file, or a file is not a table of the form the module's docstring describes.
    """
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UsageError(f"{folder} has no .csv files; it must hold {LABELS} and a <modality>.csv per modality")
    if folder / LABELS not in files:
        raise UsageError(f"{folder} has no labels: {LABELS}, with a header and one row per sample, must hold them")
    arrays = {}
    for path in files:
        if path.name != LABELS:
            arrays |= _read_modality(path)
    return arrays | _read_labels(folder / LABELS)


def _read(path: pathlib.Path, **options: Any) -> pd.DataFrame:
    """Rows without a header, empty lines kept (they are samples too).

    Headers are left to the caller: pandas would take the first cells of rows longer than theirs as an index.
    """
    try:
        return pd.read_csv(
            path, header=None, skip_blank_lines=False, encoding="utf-8-sig", skipinitialspace=True, **options
        )
    except (ValueError, OSError) as error:  # pandas' parser errors and UnicodeDecodeError are ValueErrors
        raise UsageError(f"{path} cannot be read as CSV: {error}") from None


def _read_modality(path: pathlib.Path) -> dict[str, np.ndarray]:
    """`x.<modality>`, float64 `[n, d]`, and `observed.<modality>`, bool `[n]`."""
    first = _read(path, nrows=1)
    header = any(not pd.api.types.is_numeric_dtype(dtype) for dtype in first.dtypes)
    table = _read(path, skiprows=int(header))
    if table.shape[1] != first.shape[1]:
        raise UsageError(f"{path} has {first.shape[1]} cells in its header, but {table.shape[1]} in the rows below")
    for position, column in table.items():
        if pd.api.types.is_numeric_dtype(column.dtype):
            continue
        numbers = np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)
        wrong = np.flatnonzero(column.notna() & np.isnan(numbers))
        if len(wrong):
            raise UsageError(
                f"{path} has {column.iloc[wrong[0]]!r} in row {wrong[0]}, column {position} (both from 0, without a "
                f"header); features are numbers only, without names of samples: row i belongs to row i of {LABELS}"
            )
    features = table.to_numpy(np.float64)
    empty = np.isnan(features).sum(axis=1)
    observed = empty < features.shape[1]
    partly = np.flatnonzero((empty > 0) & observed)
    if len(partly):
        raise UsageError(
            f"{path} has {len(partly)} rows in which only some cells are empty, the first is row {partly[0]} (from 0, "
            "without a header); fill them, or empty the whole row if the sample lacks the modality"
        )
    return {f"x.{path.stem}": features, f"observed.{path.stem}": observed}


def _read_labels(path: pathlib.Path) -> dict[str, np.ndarray]:
    """`y` and the optional arrays, each `[n]`."""
    cells = _read(path, dtype=str, keep_default_na=False).fillna("").to_numpy(dtype=np.str_)
    names, table = np.char.strip(cells[0]).tolist(), cells[1:]
    if any(INTEGER.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise UsageError(f"{path} must begin with a header of distinct column names; it begins with {', '.join(names)}")
    taken = {"classes", "licence", "origin"}.intersection(names)
    if taken:
        raise UsageError(f"{path} cannot have a column named {taken.pop()!r}, which means something else; rename it")
    empty = np.argwhere(cells == "")
    if len(empty):
        row, column = empty[0]
        raise UsageError(f"{path} has an empty cell in row {row} (the header is row 0), column {names[column]!r}")
    free = [index for index, name in enumerate(names) if name not in ("client", "order", "group", "series")]
    if "y" not in names and free:
        names[free[0]] = "y"
    return {name: _column(column) for name, column in zip(names, table.T, strict=True)}


def _column(text: np.ndarray) -> np.ndarray:
    """A column as integers where every cell is one as `str` writes it, else as text: 01 and 1 stay two things."""
    return text.astype(np.int64) if all(INTEGER.fullmatch(cell) for cell in text) else text
