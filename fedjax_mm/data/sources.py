"""Finding a data set by name or path."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from fedjax_mm.data.checks import assemble
from fedjax_mm.data.csv_folder import LABELS, read_csv_folder
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.data.embedded import embedded_names, embedded_notes, embedded_path
from fedjax_mm.data.files import digest, read_npz
from fedjax_mm.data.matlab import read_mat
from fedjax_mm.errors import UsageError, choose

VARIABLE = "FEDJAX_MM_DATA"
READERS = {".npz": read_npz, ".mat": read_mat}


def load_data(source: str | pathlib.Path, *, label: str = "y") -> MultimodalDataset:
    """Loads a multimodal data set.

    A plain name is looked for among the embedded data sets, then in the folder `$FEDJAX_MM_DATA` (as `<name>.npz`,
    `<name>.mat` or a folder `<name>`), then as a path.

    Args:
        source: A name, or a path to an `.npz` file in the project's format, a MATLAB file of several views, or a folder
            of CSV files.
        label: The label array to use: `"y"`, or any further label array of the data set. Its values, strings or any
            integers, become the class names in sorted order; the array in use before stays among `other_labels`.

    Returns:
        The checked data set.

    Raises:
        UsageError: The source or the label array does not exist, or what it holds is not a valid data set.

    Example:
        >>> load_data("mfeat").size
        2000
    """
    text = str(source)
    if text.startswith("tfds:"):
        raise UsageError(f"{text!r}: data sets of tensorflow-datasets cannot be loaded yet; give a name or a path")
    if isinstance(source, str) and source in embedded_names():
        path, again, notes = embedded_path(source), source, embedded_notes(source)
    else:
        path, again = _locate(source)
        notes = {}
    arrays = _reader(path)(path) | notes
    return assemble(
        arrays,
        where=again if notes else path,
        name=path.resolve().name if path.is_dir() else path.stem,
        label=label,
        source=again,
        sha256=digest(path),
    )


def available_names() -> tuple[str, ...]:
    """The names `load_data` knows: the embedded data sets and those found in `$FEDJAX_MM_DATA`, sorted."""
    names = set(embedded_names())
    folder = os.environ.get(VARIABLE)
    for path in pathlib.Path(folder).glob("*") if folder else ():
        if path.suffix in READERS:
            names.add(path.stem)
        elif (path / LABELS).is_file():
            names.add(path.name)
    return tuple(sorted(names))


def _locate(source: str | pathlib.Path) -> tuple[pathlib.Path, str]:
    """The file or folder that a name or path means, and what to pass to `load_data` to get it again."""
    path = pathlib.Path(source).expanduser()
    is_name = isinstance(source, str) and path.name == source and source not in ("", "..")
    folder = os.environ.get(VARIABLE)
    if is_name and folder:
        for ending in (*READERS, ""):
            candidate = pathlib.Path(folder) / f"{source}{ending}"
            if candidate.exists():
                return candidate, str(source)
    if path.exists():
        return path, str(path.resolve())
    if is_name and path.suffix not in READERS:
        try:
            choose("data set", str(source), available_names())
        except UsageError as error:
            raise UsageError(
                f"{error}; or give a path (to an .npz file, a .mat file or a folder of .csv files), or put the file "
                f"into the folder that the environment variable {VARIABLE} names"
            ) from None
    raise UsageError(f"there is no file or folder {path}")


def _reader(path: pathlib.Path) -> Callable[[pathlib.Path], dict[str, Any]]:
    """The function that reads this file or folder."""
    if path.is_dir():
        return read_csv_folder
    if path.suffix not in READERS:
        raise UsageError(f"{path} is not a data set; one is an .npz file, a .mat file or a folder of .csv files")
    return READERS[path.suffix]
