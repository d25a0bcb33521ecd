"""Files of a run directory: each appears whole or not at all, and is checked when read."""

import contextlib
import io
import json
import os
import pathlib
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from fedjax_mm.errors import RunError, UsageError

SCHEMA_VERSION = 1
HEADER = "header"

Path = str | os.PathLike[str]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that takes the place of `path` once it is complete and on the disk.

    Args:
        path: The file; its folder must exist.

    Yields:
        A binary handle. If the block raises, or the process dies, `path` stays as it was.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    """Makes a rename durable, where the system can open folders (not on Windows)."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file."""
    with replacing(path) as handle:
        handle.write(text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object, keys in their order, with `schema_version` first.

    Raises:
        ValueError: A number is NaN or infinite; undefined values are None.
    """
    versioned = {"schema_version": SCHEMA_VERSION, **content}
    write_text(path, json.dumps(versioned, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads what `write_json` wrote, `schema_version` included.

    Raises:
        UsageError: The file is missing or is not one of this package's, or of another schema version.
        RunError: The file is damaged.
    """
    file = _present(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is damaged or not JSON: {error}") from error
    return check_schema(path, content)


def check_schema(path: Path, content: Any) -> dict[str, Any]:
    """Returns `content` if it is an object with the `schema_version` of this package, else raises UsageError."""
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UsageError(f"{path} is not a file of a fedjax_mm run: it has no schema_version")
    if content["schema_version"] != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema_version {content['schema_version']!r}; this version reads {SCHEMA_VERSION}"
        )
    return content


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Writes a table; floats with the fewest digits that give the same float64 back.

    Args:
        path: The file.
        frame: Columns of strings, integers or finite floats; the index is left out.
    """
    with replacing(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        frame.to_csv(text, index=False, lineterminator="\n")
        text.detach()


def read_csv(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """Reads what `write_csv` wrote.

    Args:
        path: The file.
        columns: Column name -> dtype (`"str"`, `"int64"` or `"float64"`), in order.

    Returns:
        The table; empty strings stay empty strings.

    Raises:
        UsageError: The file is missing or has other columns.
        RunError: The file is damaged.
    """
    content = _present(path).read_bytes()
    try:
        # Parsed as text first: pandas' own float parser may be off by one unit in the last place.
        frame = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if list(frame) != list(columns):
        raise UsageError(f"{path} is not the expected table: columns {', '.join(frame)}; expected {', '.join(columns)}")
    if not content.endswith(b"\n"):
        raise RunError(f"{path} is damaged: its last line is not complete")
    try:
        return frame.astype(dict(columns))
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error


def write_npz(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays and a JSON header, compressed, without pickle.

    Args:
        path: The file.
        header: JSON-ready; gets `schema_version` and the names of the `arrays`.
        arrays: Name -> array of numbers or strings; the name `"header"` is taken.
    """
    text = json.dumps({"schema_version": SCHEMA_VERSION, "arrays": list(arrays), **header}, allow_nan=False)
    with replacing(path) as handle:
        np.savez_compressed(handle, allow_pickle=False, **{HEADER: np.array(text)}, **arrays)


def read_npz(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads what `write_npz` wrote.

    Returns:
        The header and the arrays.

    Raises:
        UsageError: The file is missing or is not one of this package's, or of another schema version.
        RunError: The file is damaged.
    """
    file = _present(path)
    try:
        with zipfile.ZipFile(file) as stored:
            # Each member whole before NumPy parses it: the zip checksum is compared at its end.
            members = {name.removesuffix(".npy"): stored.read(name) for name in stored.namelist()}
        arrays = {name: np.load(io.BytesIO(member), allow_pickle=False) for name, member in members.items()}
        header = json.loads(str(arrays.pop(HEADER))) if HEADER in arrays else None
    except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{path} is damaged or not an .npz file: {error}") from error
    header = check_schema(path, header)
    if header.get("arrays") != list(arrays):
        raise RunError(f"{path} is damaged: it holds the arrays {list(arrays)}, not {header.get('arrays')}")
    return header, arrays


def _present(path: Path) -> pathlib.Path:
    if not pathlib.Path(path).is_file():
        raise UsageError(f"{path} does not exist or is not a file")
    return pathlib.Path(path)
