"""MATLAB files of several views, as multi-view learning papers share them.

Labels: a variable named like one of `LABELS` (case and underscores do not count): a row or column of whole numbers, a
one-hot matrix, or a cell or char array of strings. Where several fit, the first in the order of `LABELS` is `y` and the
others are further label arrays.

Views: the numeric matrices of one cell array (`X`, `data`, `fea`, … where there are several), called view1 … viewM
unless a cell of M strings such as `names` names them; or else every other numeric matrix, under its variable's name. A
view holds samples in rows or in columns, whichever matches the number of labels; a square one, which matches both ways,
is read by rows.
"""

import pathlib
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from fedjax_mm.errors import UsageError

LABELS = ("y", "gt", "gnd", "label", "labels", "truth", "groundtruth", "truelabel", "truelabels", "target", "class")
VIEWS = ("x", "xs", "data", "fea", "features", "view", "views")
NAMES = ("names", "viewnames", "featurenames", "modalities", "modalitynames")


def read_mat(path: pathlib.Path) -> dict[str, Any]:
    """Reads a MATLAB file as arrays of the project's format.

    Raises:
        UsageError: The file is damaged or of version 7.3, or its views or labels cannot be told.
    """
    try:
        variables = {key: value for key, value in scipy.io.loadmat(path).items() if not key.startswith("__")}
    except NotImplementedError:
        raise UsageError(
            f"{path} is a MATLAB 7.3 (HDF5) file, which cannot be read; save it again with save(..., '-v7')"
        ) from None
    except Exception as error:  # damaged bytes raise whatever the decoder stumbles over
        raise UsageError(f"{path} cannot be read as a MATLAB file (version 7 or older): {error}") from None
    labels = _labels(variables, path)
    rest = {key: value for key, value in variables.items() if key not in labels}
    main = labels.pop(next(iter(labels)))
    arrays = {
        f"x.{name}": _by_rows(view, len(main), f"view {name} of {path}") for name, view in _views(rest, path).items()
    }
    return arrays | labels | {"y": main}


def _plain(name: str) -> str:
    """A variable's name without case and underscores."""
    return name.lower().replace("_", "")


def _ranked(variables: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """The variables called by one of the names, in the order of the names."""
    return sorted((key for key in variables if _plain(key) in names), key=lambda key: names.index(_plain(key)))


def _labels(variables: dict[str, Any], path: pathlib.Path) -> dict[str, np.ndarray]:
    """The label arrays `[n]` by their variables' names, the one to use first."""
    labels = {}
    for key in _ranked(variables, LABELS):
        values = _as_labels(variables[key], f"{key} in {path}")
        if values is not None and (not labels or len(values) == len(next(iter(labels.values())))):
            labels[key] = values
    if not labels:
        raise UsageError(
            f"{path} has no labels: a vector (or one-hot matrix) named Y, gt, gnd, label, … must hold them; "
            f"it has {', '.join(variables) or 'no variables'}"
        )
    return labels


def _as_labels(value: Any, what: str) -> np.ndarray | None:
    """A variable as labels `[n]`, or None if it has no form that labels come in."""
    if _is_cell(value) or getattr(value, "dtype", np.dtype(float)).kind == "U":
        return _strings(value)
    if not _is_numeric(value):
        return None
    array = _dense(value)
    if array.ndim != 2 or array.size == 0:
        return None
    if 1 in array.shape:
        if not np.all(np.isfinite(array) & (array == np.round(array))):
            raise UsageError(f"{what} has values that are not whole numbers; labels are integers or strings")
        return array.ravel().astype(np.int64)
    if np.all((array == 0) | (array == 1)):
        for onehot in (array, array.T):
            if np.all(onehot.sum(axis=1) == 1):
                return onehot.argmax(axis=1) + 1
    return None


def _views(variables: dict[str, Any], path: pathlib.Path) -> dict[str, np.ndarray]:
    """The views by name, as they are stored."""
    cells = [key for key, value in variables.items() if _is_cell(value) and any(map(_is_numeric, value.flat))]
    preferred = [key for key in _ranked(variables, VIEWS) if key in cells] or cells
    if len(preferred) > 1:
        raise UsageError(f"{path} has several cell arrays of matrices, {', '.join(preferred)}; keep one with all views")
    if not preferred:
        matrices = {key: _dense(value) for key, value in variables.items() if _is_numeric(value)}
        views = {key: matrix for key, matrix in matrices.items() if matrix.size > 1}
        if not views:
            raise UsageError(
                f"{path} has no views: neither a cell array of matrices nor numeric matrices beside the labels"
            )
        return views
    key = preferred[0]
    entries = list(variables[key].ravel(order="F"))
    for index, entry in enumerate(entries):
        if not _is_numeric(entry):
            raise UsageError(
                f"{key}{{{index + 1}}} in {path} is not a numeric matrix; every cell of {key} must be a view"
            )
    names = [f"view{index + 1}" for index in range(len(entries))]
    for naming in _ranked(variables, NAMES):
        given = _strings(variables[naming])
        if given is None or len(set(given)) != len(entries) or len(given) != len(entries):
            raise UsageError(
                f"{naming} in {path} must hold {len(entries)} different strings, one for each view of {key}"
            )
        names = given.tolist()
    return {name: _dense(entry) for name, entry in zip(names, entries, strict=True)}


def _by_rows(view: np.ndarray, size: int, what: str) -> np.ndarray:
    """A view with its samples along the first axis."""
    if view.shape[0] == size:
        return view
    if view.shape[-1] == size:
        return np.moveaxis(view, -1, 0)
    raise UsageError(f"{what} has shape {view.shape}, but there are {size} labels; its rows or columns must match")


def _is_cell(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.object_


def _is_numeric(value: Any) -> bool:
    return scipy.sparse.issparse(value) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


def _dense(value: Any) -> np.ndarray:
    return value.toarray() if scipy.sparse.issparse(value) else value


def _strings(value: Any) -> np.ndarray | None:
    """A cell or char array of strings as strings `[k]`, or None if it is something else."""
    entries = [np.asarray(entry) for entry in np.asarray(value).ravel(order="F")]
    if not entries or any(entry.dtype.kind != "U" or entry.size != 1 for entry in entries):
        return None
    return np.array([entry.item().strip() for entry in entries])
