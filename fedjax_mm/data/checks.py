"""From named arrays, whatever file they came from, to a checked `MultimodalDataset`.

Every source first becomes a mapping in the project's own format: `x.<modality>`, `type.<modality>`,
`observed.<modality>`, `y`, `classes`, `client`, `order`, `group` (or `series`), `licence`, `origin`; any other array of
length n is a further label array.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedjax_mm.data import labels
from fedjax_mm.data.dataset import KINDS, MultimodalDataset
from fedjax_mm.errors import UsageError, choose

PREFIXES = ("x", "type", "observed")
RESERVED = ("classes", "client", "order", "group", "series", "licence", "origin")


def assemble(
    arrays: Mapping[str, Any],
    *,
    where: str | pathlib.Path,
    name: str,
    label: str = "y",
    source: str = "",
    sha256: str = "",
) -> MultimodalDataset:
    """Checks arrays in the project's format and makes a data set of them.

    Args:
        arrays: Key -> array, as the module's docstring says.
        where: What the arrays were read from, for messages.
        name: Short name of the data set.
        label: The label array to use.
        source: What to pass to `load_data` to get the data set again.
        sha256: Hex digest of the source.

    Returns:
        The data set.

    Raises:
        UsageError: An array is missing, unknown, of the wrong type or shape, or holds what it must not.
    """
    arrays = {key: plain(value, f"{key!r} in {where}") for key, value in arrays.items()}
    modalities = _modalities(arrays, where)
    ids, classes, others = _labels(arrays, label, where)
    size = len(ids)
    for key, array in arrays.items():
        scalar = key.startswith("type.") or key in ("classes", "licence", "origin")
        if not scalar and array.shape[:1] != (size,):
            raise UsageError(f"{key!r} in {where} has shape {array.shape}, not one row for each of {size} labels")
    observed = np.stack([_observed(arrays, modality, size, where) for modality in modalities], axis=1)
    inputs, kinds = {}, {}
    for column, modality in enumerate(modalities):
        what = f"'x.{modality}' in {where}"
        kinds[modality] = _kind(arrays, modality, where)
        inputs[modality] = _features(arrays[f"x.{modality}"], kinds[modality], what)
        _check_finite(inputs[modality], observed[:, column], modality, what)
    client = _vector(arrays, "client", "iuU", "integers or strings", where)
    order = _vector(arrays, "order", "iu", "integers", where)
    if order is not None:
        _check_ties(order, client, where)
    return MultimodalDataset(
        name=name,
        inputs=inputs,
        labels=ids,
        classes=classes,
        kinds=kinds,
        observed=observed,
        client=None if client is None else client.astype(np.str_),
        order=order,
        group=_group(arrays, where),
        other_labels=others,
        source=source,
        label=label,
        licence=_text(arrays, "licence", where),
        origin=_text(arrays, "origin", where),
        sha256=sha256,
    )


def plain(value: Any, what: str) -> np.ndarray:
    """An array of bools, numbers or strings: object arrays of strings and byte strings become strings.

    Raises:
        UsageError: The value is ragged or holds Python objects, complex numbers, dates or undecodable bytes.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
    except ValueError as error:
        raise UsageError(f"{what} is not an array of numbers or strings: {error}") from None
    if array.dtype.kind in "OT" and all(isinstance(entry, str) for entry in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind not in "biufU":
        raise UsageError(f"{what} is an array of type {array.dtype}; only bools, numbers and strings can be read")
    return array


def _modalities(arrays: Mapping[str, np.ndarray], where: str | pathlib.Path) -> list[str]:
    """The modalities in the order of the file, after every dotted key was understood."""
    modalities = [key[2:] for key in arrays if key.startswith("x.")]
    if not modalities or "" in modalities:
        raise UsageError(f"{where} has no modality: arrays named x.<modality> hold them; it has {', '.join(arrays)}")
    for key in arrays:
        prefix, dot, modality = key.partition(".")
        if dot:
            choose(f"prefix of {key!r} in {where}:", prefix, PREFIXES)
            choose(f"modality of {key!r} in {where} (it has no 'x.{modality}'):", modality, modalities)
    return modalities


def _labels(
    arrays: Mapping[str, np.ndarray], label: str, where: str | pathlib.Path
) -> tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray]]:
    """Class ids and names of the chosen label array, and the arrays not chosen."""
    others = {key: array for key, array in arrays.items() if "." not in key and key not in RESERVED}
    if label == "y" and "y" not in others:
        further = f", or pick another label array: {', '.join(others)}" if others else ""
        raise UsageError(f"{where} has no labels: an array named y, of length n, must hold them{further}")
    choose(f"label array of {where}:", label, others)
    classes = arrays.get("classes")
    if classes is not None and (classes.ndim != 1 or classes.dtype.kind not in "iuU"):
        raise UsageError(f"'classes' in {where} must be class names, strings [C]; it has shape {classes.shape}")
    names = None if classes is None else classes.astype(np.str_).tolist()
    if label != "y" and "y" in others and names is not None:
        others["y"] = labels.decode(*labels.encode(others["y"], what=f"'y' in {where}", classes=names))
    what = f"{label!r} in {where}"
    ids, names = labels.encode(others.pop(label), what=what, classes=names if label == "y" else None)
    if len(np.unique(ids)) < 2:
        raise UsageError(f"{what} has fewer than two classes among its {len(ids)} samples; there must be two")
    return ids, names, others


def _observed(arrays: Mapping[str, np.ndarray], modality: str, size: int, where: str | pathlib.Path) -> np.ndarray:
    """Whether each sample has the modality, bool `[n]`."""
    observed = arrays.get(f"observed.{modality}", np.ones(size, np.bool_))
    if observed.dtype != np.bool_ or observed.shape != (size,):
        raise UsageError(
            f"'observed.{modality}' in {where} must be bool [{size}]; it is {observed.dtype}, shape {observed.shape}"
        )
    return observed


def _kind(arrays: Mapping[str, np.ndarray], modality: str, where: str | pathlib.Path) -> str:
    """The kind a file gives, or the one its array looks like; they must not contradict each other."""
    array, key = arrays[f"x.{modality}"], f"type.{modality}"
    text = array.dtype.kind == "U"
    if text and array.ndim != 1:
        raise UsageError(f"'x.{modality}' in {where} has shape {array.shape}; text is one string per sample, shape [n]")
    if not text and (not 2 <= array.ndim <= 4 or 0 in array.shape):
        raise UsageError(
            f"'x.{modality}' in {where} has shape {array.shape}; features are [n, d], sequences [n, time, channels], "
            "images [n, height, width] or [n, height, width, channels], nothing empty"
        )
    if key not in arrays:
        return guess_kind(array)
    kind = choose(f"kind of modality {modality!r} in {where}:", _text(arrays, key, where), KINDS)
    if text and kind != "language":
        raise UsageError(f"{key!r} in {where} is {kind}, but 'x.{modality}' holds strings, which are language")
    if kind == "vector" and array.ndim != 2:
        raise UsageError(f"{key!r} in {where} is vector, but 'x.{modality}' has shape {array.shape}, not [n, d]")
    return kind


def guess_kind(array: np.ndarray) -> str:
    """The kind of a modality by its array `[n, ...]`.

    Strings are language, uint8 with at least three axes images, `[n, d]` vectors, other `[n, time, channels]` time
    series and other `[n, height, width, channels]` images.
    """
    if array.dtype.kind == "U":
        return "language"
    if array.ndim == 4 or (array.ndim == 3 and array.dtype == np.uint8):
        return "image"
    return "vector" if array.ndim == 2 else "time-series"


def _features(array: np.ndarray, kind: str, what: str) -> np.ndarray:
    """Text, uint8 images and short floats as they are; every other number as float32."""
    if array.dtype.kind == "U" or (array.dtype == np.uint8 and kind == "image" and array.ndim > 2):
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    overflow = np.isinf(narrow) & ~np.isinf(array)
    if overflow.any():
        raise UsageError(f"{what} has {overflow.sum()} values beyond 32-bit floats (3.4e38); scale it first")
    return narrow


def _check_finite(array: np.ndarray, observed: np.ndarray, modality: str, what: str) -> None:
    """Refuses NaN and infinity where they would be read."""
    if array.dtype.kind != "f":
        return
    bad = ~np.isfinite(array).reshape(len(array), -1) & observed[:, None]
    if bad.any():
        first = np.flatnonzero(bad.any(axis=1))[0]
        raise UsageError(
            f"{what} has {bad.sum()} NaN or infinite values in observed samples, the first in sample {first} (counted "
            f"from 0); fill them, or set 'observed.{modality}' to False there"
        )


def _vector(
    arrays: Mapping[str, np.ndarray], key: str, dtype_kinds: str, expected: str, where: str | pathlib.Path
) -> np.ndarray | None:
    """An optional array `[n]` of the given NumPy kinds."""
    array = arrays.get(key)
    if array is not None and (array.ndim != 1 or array.dtype.kind not in dtype_kinds):
        raise UsageError(
            f"{key!r} in {where} must be {expected}, shape [n]; it is {array.dtype} with shape {array.shape}"
        )
    return array


def _group(arrays: Mapping[str, np.ndarray], where: str | pathlib.Path) -> np.ndarray | None:
    """The samples that stay together, under either of its names."""
    if "group" in arrays and "series" in arrays:
        raise UsageError(f"{where} has both 'group' and 'series', two names of one thing; keep one")
    key = "series" if "series" in arrays else "group"
    return _vector(arrays, key, "biuU", "integers or strings", where)


def _check_ties(order: np.ndarray, client: np.ndarray | None, where: str | pathlib.Path) -> None:
    """Refuses two samples of one client at the same place of the recording."""
    table = pd.DataFrame({"client": "" if client is None else client, "order": order})
    tied = table[table.duplicated(keep=False)]
    if len(tied):
        first = tied.iloc[0]
        pair = tied.index[(tied["client"] == first["client"]) & (tied["order"] == first["order"])][:2]
        owner = "" if client is None else f" of client {first['client']!r}"
        raise UsageError(
            f"'order' in {where} has ties: samples {pair[0]} and {pair[1]}{owner} both have {first['order']}; "
            "give each sample of a client its own place"
        )


def _text(arrays: Mapping[str, np.ndarray], key: str, where: str | pathlib.Path) -> str:
    """An optional scalar string."""
    array = arrays.get(key, np.array(""))
    if array.dtype.kind != "U" or array.ndim != 0:
        raise UsageError(f"{key!r} in {where} must be one string; it is {array.dtype} with shape {array.shape}")
    return str(array)
