"""The project's own file format: one `.npz` file of named arrays, without pickle."""

import hashlib
import os
import pathlib
import zipfile
from typing import Any

import numpy as np

from fedjax_mm.data import labels
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError


def read_npz(path: pathlib.Path) -> dict[str, Any]:
    """Reads every array of an `.npz` file.

    Raises:
        UsageError: The file is not an `.npz` file, is damaged, or an array holds Python objects.
    """
    try:
        archive = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as an .npz file, it is damaged or something else: {error}") from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise UsageError(f"{path} holds a single array; an .npz file of named arrays is needed")
    arrays = {}
    with archive:
        for key in archive.files:
            try:
                arrays[key] = archive[key]
            except Exception as error:  # damaged bytes raise whatever the decoder stumbles over
                if "allow_pickle" in str(error):
                    raise UsageError(
                        f"{key!r} in {path} is an object array, which would need pickle; save numbers or strings"
                    ) from None
                raise UsageError(f"{key!r} in {path} cannot be read, the file is damaged: {error}") from None
    return arrays


def to_arrays(data: MultimodalDataset) -> dict[str, np.ndarray]:
    """A data set as arrays of the file format, from which loading with `label=data.label` makes the same data set.

    Args:
        data: The data set.

    Returns:
        Key -> array; masks only for modalities that are somewhere missing, optional arrays only where there are some.
    """
    arrays = {f"x.{modality}": array for modality, array in data.inputs.items()}
    arrays |= {f"type.{modality}": np.array(kind) for modality, kind in data.kinds.items()}
    for modality, observed in zip(data.modalities, data.observed.T, strict=True):
        if not observed.all():
            arrays[f"observed.{modality}"] = np.ascontiguousarray(observed)
    if data.label == "y":
        arrays |= {"y": data.labels, "classes": np.array(data.classes)}
    else:
        arrays[data.label] = labels.decode(data.labels, data.classes)
    arrays |= data.other_labels
    optional = {"client": data.client, "order": data.order, "group": data.group}
    arrays |= {key: array for key, array in optional.items() if array is not None}
    notes = {"licence": data.licence, "origin": data.origin}
    return arrays | {key: np.array(text) for key, text in notes.items() if text}


def save_npz(data: MultimodalDataset, path: str | pathlib.Path) -> None:
    """Writes a data set in the project's format; the file is complete or absent, never half written.

    A data set loaded with another label array keeps `y` beside it: load the file with `label=data.label` to get it
    back.

    Args:
        data: The data set.
        path: Where to write, ending in `.npz`; an existing file is replaced.

    Raises:
        UsageError: The path has another ending or its folder does not exist.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise UsageError(f"{path} must end in .npz")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # np.savez would refuse arrays named like its own parameters, and could fall back on pickle.
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, array in to_arrays(data).items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def digest(path: pathlib.Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's `.csv` files in sorted order, as hex digits."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for file in sorted(path.glob("*.csv")):
        total.update(f"{file.name} {digest(file)}\n".encode())
    return total.hexdigest()
