"""Data sets inside the package: `embedded/<name>.npz` with licence and origin beside it in `embedded/<name>.md`."""

import pathlib
import re

from fedjax_mm.errors import choose

FOLDER = pathlib.Path(__file__).parent / "embedded"


def embedded_names() -> tuple[str, ...]:
    """The names of the data sets that come with the package, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))


def embedded_path(name: str) -> pathlib.Path:
    """The file of an embedded data set.

    Raises:
        UsageError: There is no such data set.
    """
    return FOLDER / f"{choose('embedded data set', name, embedded_names())}.npz"


def embedded_notes(name: str) -> dict[str, str]:
    """`licence` and `origin` of an embedded data set, from the lines `Licence: …` and `Origin: …` beside it."""
    text = embedded_path(name).with_suffix(".md").read_text(encoding="utf-8")
    notes = re.findall(r"^(Licence|Origin): (.+)$", text, flags=re.MULTILINE)
    return {key.lower(): value for key, value in notes}
