"""Label arrays as they come, to class ids 0..C-1 and back."""

import re
from collections.abc import Sequence

import numpy as np

from fedjax_mm.errors import UsageError

INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")


def encode(
    values: np.ndarray, *, what: str, classes: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Maps labels to consecutive class ids.

    Args:
        values: Labels `[n]`: strings, or any integers; with `classes`, names out of `classes` or ids in 0..C-1.
        what: What the array is and where it stands, for the message.
        classes: The C class names in the order of their ids. Without it every distinct value is a class, in sorted
            order.

    Returns:
        Class ids, int32 `[n]` in 0..C-1, and the C class names.

    Raises:
        UsageError: The array has another shape or type, or a label is not one of `classes`.
    """
    if values.ndim != 1:
        raise UsageError(f"{what} has shape {values.shape}; labels have one entry per sample, shape [n]")
    if values.dtype.kind not in "biuU":
        raise UsageError(f"{what} holds {values.dtype}; labels are integers or strings")
    if classes is None:
        distinct, ids = np.unique(values, return_inverse=True)
        names = tuple(str(value) for value in distinct)
    else:
        names = tuple(classes)
        ids = _positions(values, names, what)
    return ids.astype(np.int32), names


def _positions(values: np.ndarray, names: tuple[str, ...], what: str) -> np.ndarray:
    """The id of each label, given the class names."""
    if len(set(names)) < len(names):
        raise UsageError(f"the class names of {what} are not distinct: {', '.join(names)}")
    if values.dtype.kind == "U":
        position = {name: index for index, name in enumerate(names)}
        ids = np.array([position.get(value, -1) for value in values.tolist()], np.int64)
    else:
        ids = values.astype(np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= len(names)))
    if len(outside):
        first = outside[0]
        valid = f"ids are 0..{len(names) - 1}" if values.dtype.kind != "U" else f"the classes are {', '.join(names)}"
        raise UsageError(f"{what} has the label {values[first].item()!r} at sample {first}; {valid}")
    return ids


def decode(ids: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Gives labels back as values from which `encode` makes the same classes.

    Args:
        ids: Class ids, integers `[n]` in 0..C-1.
        classes: The C class names.

    Returns:
        Labels `[n]`: integers where the class names are integers in ascending order, else the names as strings.
    """
    names = np.array(classes)
    if all(INTEGER.fullmatch(name) for name in classes):
        numbers = np.array([int(name) for name in classes])
        if np.all(numbers[:-1] < numbers[1:]):
            names = numbers
    return names[ids]
