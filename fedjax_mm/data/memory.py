"""Data sets from arrays in memory."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from fedjax_mm.data.checks import RESERVED, assemble
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.data.files import to_arrays
from fedjax_mm.errors import UsageError


def from_arrays(
    inputs: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    observed: Mapping[str, ArrayLike] | None = None,
    client: ArrayLike | None = None,
    order: ArrayLike | None = None,
    group: ArrayLike | None = None,
    other_labels: Mapping[str, ArrayLike] | None = None,
    licence: str = "",
    origin: str = "",
) -> MultimodalDataset:
    """Makes a data set of arrays in memory, with the checks that files get.

    Args:
        inputs: Modality name -> array `[n, ...]`: numbers `[n, d]`, `[n, time, channels]`, images
            `[n, height, width(, channels)]` (uint8 in 0..255 or floating), or strings `[n]`.
        labels: Labels `[n]`: strings or any integers; with `classes`, names out of them or ids in 0..C-1.
        name: Short name, used in tables and manifests.
        classes: The class names in the order of their ids; without them the distinct labels, sorted.
        kinds: Modality name -> kind, where the guess from the shape would be wrong.
        observed: Modality name -> bool `[n]`, False where the sample lacks the modality; without one all are observed.
        client: Natural client of each sample, strings or integers `[n]`.
        order: Recording order within the client, integers `[n]` without ties.
        group: Samples that must stay on one side of a random split, integers or strings `[n]`.
        other_labels: Further label arrays `[n]`, kept beside `labels`.
        licence: Licence of the data.
        origin: Where the data come from.

    Returns:
        The checked data set; its `sha256` is that of the content, its `source` is empty.

    Raises:
        UsageError: An array has the wrong type or shape, or holds what it must not.

    Example:
        >>> import numpy as np
        >>> data = from_arrays({"a": np.eye(4), "b": np.ones((4, 2))}, ["no", "no", "yes", "yes"])
        >>> data.classes, data.modalities
        (('no', 'yes'), ('a', 'b'))
    """
    others = dict(other_labels or {})
    taken = [key for key in others if "." in key or key == "y" or key in RESERVED]
    if taken:
        raise UsageError(f"another label array cannot be named {taken[0]!r}; 'y' and {', '.join(RESERVED)} are taken")
    values = {f"x.{key}": array for key, array in inputs.items()}
    values |= {f"type.{key}": kind for key, kind in (kinds or {}).items()}
    values |= {f"observed.{key}": mask for key, mask in (observed or {}).items()}
    optional = {"classes": classes, "client": client, "order": order, "group": group}
    values |= {key: value for key, value in optional.items() if value is not None}
    values |= {"y": labels, "licence": licence, "origin": origin, **others}
    data = assemble(values, where=name, name=name)
    return dataclasses.replace(data, sha256=_digest(data))


def _digest(data: MultimodalDataset) -> str:
    """SHA-256 of the content: keys, types, shapes and values in the file format, as hex digits."""
    total = hashlib.sha256()
    for key, array in to_arrays(data).items():
        text = array.dtype.kind == "U"
        header: list[Any] = [key, "text" if text else array.dtype.newbyteorder("<").str, array.shape]
        total.update(json.dumps(header).encode())
        # Strings by their characters: the width NumPy happens to pad them to is not content.
        if text:
            total.update(json.dumps(array.tolist()).encode())
        else:
            total.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return total.hexdigest()
