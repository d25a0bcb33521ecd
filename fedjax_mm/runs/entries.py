"""Which methods a run holds: names, the user's own, or instances, with their options and labels."""

import dataclasses
import hashlib
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_mm import methods as library
from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Method
from fedjax_mm.runs.options import as_json, convert, fields, keywords

LABEL = re.compile(r"[\w+=-][\w.+=-]*")
STAND_IN = {"fedavg": "lg_fedavg"}
"""Methods that average encoders -> what they become where encoders differ in shape."""

One = str | Method | type[Method]
Methods = One | Sequence[One] | Mapping[str, One]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One method of a run.

    Attributes:
        label: Its name in tables and files, unique in the run.
        source: What `methods.find` finds its class by.
        method: The method with its options.
        executor: The executor an earlier run chose for it, which is to be repeated; None to choose.
        devices: The devices it ran on, likewise.
        training: Settings of its own, in place of the run's.
    """

    label: str
    source: str
    method: Method
    executor: str | None = None
    devices: int | None = None
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Every option, JSON-ready."""
        return {name: as_json(getattr(self.method, name)) for name in fields(type(self.method))}

    def source_digest(self) -> str | None:
        """SHA-256, as hex digits, of the file a user's own method comes from; None without one and for the package."""
        if _built_in(type(self.method)):
            return None
        place = self.source.rpartition(":")[0]
        path = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None) or ""
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() if pathlib.Path(path).is_file() else None


def make_entries(methods: Methods) -> tuple[Entry, ...]:
    """The methods a user named.

    Args:
        methods: A name, `module:Class`, class or instance; several of them; a mapping from labels to them; or `"all"`.

    Returns:
        The entries, in order.

    Raises:
        UsageError: A method is unknown, two have one label, a label cannot be a folder's name, an option has the
            wrong type, or there is none.
    """
    if isinstance(methods, str) and methods == "all":
        methods = list(library.available())
    if isinstance(methods, Mapping):
        entries = [_entry(given, label) for label, given in methods.items()]
    else:
        entries = [_entry(given) for given in ([methods] if isinstance(methods, str | Method | type) else methods)]
    if not entries:
        raise UsageError(f"no method is named; valid: {', '.join(library.available())}, or all")
    labels = [entry.label for entry in entries]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UsageError(f"method {twice!r} is named twice; in Python, a mapping of labels compares a method's options")
    return tuple(entries)


def with_options(source: str, options: Mapping[str, Any]) -> Method:
    """A method by name with some of its options, which may be text.

    Raises:
        UsageError: The method or an option is unknown, or a value has the wrong type.
    """
    cls = library.find(source)
    return cls(**keywords(options, fields(cls), what=f"option of {cls.name}", owner=f"{cls.name}."))


def _built_in(cls: type[Method]) -> bool:
    return library.available().get(cls.name) is cls


def _entry(given: One, label: str | None = None) -> Entry:
    if isinstance(given, str):
        given = given.strip()
        method, source = library.find(given)(), given
        path, _, name = given.rpartition(":")
        if path.endswith(".py"):
            source = f"{pathlib.Path(path).resolve()}:{name}"
    else:
        method = given() if isinstance(given, type) else given
        if not isinstance(method, Method):
            raise UsageError(f"{given!r} is not a method: give a name, 'module:Class' or a fedjax_mm.methods.Method")
        cls = type(method)
        source = cls.name if _built_in(cls) else f"{cls.__module__}:{cls.__qualname__}"
    label = label or method.name
    if not LABEL.fullmatch(label) or label == "schema_version":
        raise UsageError(f"a method cannot be labelled {label!r}: letters, digits and . _ + = - make a label")
    kinds = fields(type(method))
    typed = {name: convert(getattr(method, name), kind, f"{label}.{name}") for name, kind in kinds.items()}
    return Entry(label, source, dataclasses.replace(method, **typed))


def suited(entries: Sequence[Entry], model: str) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Replaces or leaves out, under `pool`, the methods that need encoders of one shape.

    Args:
        entries: The methods asked for.
        model: `pool` or `shared`.

    Returns:
        The methods that can run and, for each change, a sentence why.

    Raises:
        UsageError: None is left.
    """
    if model != "pool":
        return tuple(entries), ()
    kept: list[Entry] = []
    notes = []
    labels = {entry.label for entry in entries}
    for entry in entries:
        name = entry.method.name
        if not entry.method.averages_encoders:
            kept.append(entry)
            continue
        reason = f"{entry.label} averages encoders, which differ in shape under model=pool"
        if name not in STAND_IN:
            notes.append(f"{reason}: left out")
            continue
        stand_in = STAND_IN[name]
        label = stand_in if entry.label == name else entry.label
        notes.append(f"{reason}: {stand_in} takes its place")
        if label == entry.label or label not in labels:
            kept.append(dataclasses.replace(_entry(stand_in, label), executor=entry.executor))
            labels.add(label)
    if not kept:
        raise UsageError(f"no method is left to run: {'; '.join(notes)}; use model=shared")
    return tuple(kept), tuple(notes)
