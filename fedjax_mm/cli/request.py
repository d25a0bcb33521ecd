"""From options, a configuration file and `--set` to a checked experiment."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from fedjax_mm.data import load_data
from fedjax_mm.errors import UsageError, choose
from fedjax_mm.federation import EVEN, federate
from fedjax_mm.methods import available
from fedjax_mm.runs import options
from fedjax_mm.runs.backend import prepare_backend
from fedjax_mm.runs.directory import read_manifest
from fedjax_mm.runs.entries import Entry, make_entries, with_options
from fedjax_mm.runs.experiment import EACH, SETTINGS, Experiment, prepare
from fedjax_mm.runs.grid import configurations
from fedjax_mm.runs.manifest import federation_options
from fedjax_mm.simulation.shelf import open_shelf

OWN = ("rounds", "eval_every", "seeds", "participation", "model", "executor", "devices", "precision")
"""Settings with an option of their own; all others are set by `--set`."""
AUTO = {"devices": "auto"}
"""What stands on the command line for a setting that is left out."""
TRAINING = tuple(name for name in SETTINGS if name not in OWN)
FEDERATION = {
    "clients": int,
    "alpha": float | str,
    "split_seed": int | str,
    "partition": str,
    "split": str,
    "missing": str,
    "test_missing": str,
}
FEDERATION_SET = {
    "fractions": tuple[float, ...],
    "minimum": tuple[int, ...],
    "gap": int,
    "missing_protocol": str,
    "empty": str,
}
SWITCHES = ("quiet", "dry_run")
NAMES = ("data", "label", "out", "set", *FEDERATION, *OWN, *SWITCHES)


def merged(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command: those of the configuration file, under those given.

    Args:
        command: `run` or `compare`.
        values: Option -> text, None or False where it is not given; `set_` is a list of `key=value`.

    Returns:
        Option -> value, those given only; `set` is a mapping.

    Raises:
        UsageError: The file is missing or wrong, or an entry of `--set` is not `key=value`.
    """
    given = {name: value for name, value in values.items() if value not in (None, False, []) and name != "set_"}
    file = given.pop("config", None)
    base = {} if file is None else _read(pathlib.Path(file).expanduser(), command)
    chosen = {**base.pop("set", {}), **_pairs(values.get("set_") or ())}
    return {**base, **given, "set": chosen}


def experiment(command: str, given: Mapping[str, Any], *, own: bool = False) -> Experiment:
    """The experiment that options describe.

    Args:
        command: `run`, `compare` or `sweep`.
        given: As `merged` returns it, without `out` and switches.
        own: Whether the process is the command's own: then programs traced by earlier ones may be used.

    Returns:
        The experiment, checked.

    Raises:
        UsageError: Something is unknown, out of range, without effect, or does not go together.
    """
    prepare_backend(given.get("devices"))
    shelf = open_shelf() if own else None
    everything = command == "compare" and given.get("methods", "all") == "all"
    entries = _entries(command, given)
    training, federation, entries = _assign(given["set"], entries)
    settings = {name: given[name] for name in OWN if name in given and given[name] != AUTO.get(name)} | training
    federation |= {
        name: options.convert(given[name], kind, f"--{name.replace('_', '-')}")
        for name, kind in FEDERATION.items()
        if name in given
    }
    each = federation.get("split_seed") == EACH
    if each:
        federation["split_seed"] = options.seeds(settings.get("seeds", 1))[0]
    elif isinstance(federation.get("split_seed"), str):
        raise UsageError(f"--split-seed is {federation['split_seed']!r}, must be an integer of at least 0, or {EACH}")
    data = load_data(given.get("data", "mfeat"), label=given.get("label", "y"))
    made = federate(data, **federation)
    if made.settings["partition"] in EVEN and "alpha" in given:
        natural = made.settings["partition"] == "natural"
        whom = "natural clients, who keep what is theirs" if natural else f"partition {made.settings['partition']}"
        raise UsageError(f"--alpha has no effect on {whom}: leave it out")
    if command != "sweep":
        return prepare(entries, made, settings, each=each, optional=everything, shelf=shelf)
    grid = {name: value.split(",") for name, value in _pairs(given.get("grid", ()), "--grid").items()}
    settings = {"nonfinite": "skip", **settings}
    entries = configurations(entries[0], grid, given.get("shard"))
    return prepare(entries, made, settings, each=each, grid=tuple(grid), shelf=shelf)


def _entries(command: str, given: Mapping[str, Any]) -> tuple[Entry, ...]:
    if command != "compare":
        if "method" not in given:
            raise UsageError(f"{command} needs --method; valid: {', '.join(available())}, or module:Class of your own")
        methods = given["method"]
        return make_entries([methods] if isinstance(methods, str) else methods)
    methods = given.get("methods", "all")
    if isinstance(methods, str) and methods != "all":
        methods = [name.strip() for name in methods.split(",") if name.strip()]
    return make_entries(methods)


def _assign(
    pairs: Mapping[str, Any], entries: tuple[Entry, ...]
) -> tuple[dict[str, Any], dict[str, Any], tuple[Entry, ...]]:
    """Who each `--set` is meant for: training, the federation, or a method."""
    training, federation = {}, {}
    methods: dict[str, dict[str, Any]] = {entry.label: {} for entry in entries}
    for key, value in pairs.items():
        label, dot, option = key.rpartition(".")
        if dot:
            methods[choose("method", label, methods)][option] = value
        elif key in OWN or key in FEDERATION:
            raise UsageError(f"{key} is not for --set: it is an option of its own, --{key.replace('_', '-')}")
        elif key in TRAINING:
            training[key] = value
        elif key in FEDERATION_SET:
            federation[key] = options.convert(value, FEDERATION_SET[key], key)
        elif len(entries) == 1 and key in entries[0].options:
            methods[entries[0].label][key] = value
        else:
            _unknown(key, entries)
    changed = (dataclasses.replace(entry, method=with_options(entry.source, methods[entry.label])) for entry in entries)
    return training, federation, tuple(changed)


def _unknown(key: str, entries: tuple[Entry, ...]) -> NoReturn:
    owners = [f"{entry.label}.{key}" for entry in entries if key in entry.options]
    if owners:
        raise UsageError(f"{key} is a method's option: name the method, as in {' or '.join(owners)}")
    single = len(entries) == 1
    names = [name if single else f"{entry.label}.{name}" for entry in entries for name in entry.options]
    choose("option", key, [*TRAINING, *FEDERATION_SET, *names])
    raise AssertionError(key)


def _pairs(texts: Iterable[str], option: str = "--set") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{option} {text}: must be key=value")
        if key in pairs:
            raise UsageError(f"{option} {key} is given twice")
        pairs[key] = value.strip()
    return pairs


def _read(path: pathlib.Path, command: str) -> dict[str, Any]:
    """Options from a file: option -> value."""
    if not path.is_file():
        raise UsageError(f"--config: there is no file {path}")
    if path.suffix == ".json":
        try:
            return _from_manifest(read_manifest(path), command)
        except KeyError as error:
            raise UsageError(f"{path} is not a whole manifest: it lacks {error}") from None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None
    methods = "methods" if command == "compare" else "method"
    named = {name.replace("-", "_"): value for name, value in content.items()}
    for name in named:
        choose(f"option in {path}", name, [methods, *NAMES])
    pairs = named.get("set", {})
    if not isinstance(pairs, dict):
        raise UsageError(f"{path}: set must be a table")
    named["set"] = dict(_flat(pairs))
    for name in SWITCHES:
        if name in named:
            named[name] = options.convert(named[name], bool, f"{name} in {path}")
    words = named.get(methods, "")
    if not isinstance(words, str) and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise UsageError(f"{methods} in {path} is {words!r}, must be text or a list of texts")
    for name in ("data", "label", "out"):
        if not isinstance(named.get(name, ""), str):
            raise UsageError(f"{name} in {path} is {named[name]!r}, must be text")
    return named


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """TOML reads the key `fedproto.lam` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _from_manifest(manifest: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The options that make the experiment of a manifest again."""
    data, federation, settings = manifest["data"], manifest["federation"], manifest["settings"]
    if not data["source"]:
        raise UsageError(f"the manifest's data set {data['name']!r} was made in memory: only rerun in Python takes it")
    methods = {label: entry["source"] for label, entry in manifest["methods"].items()}
    written = federation_options(federation)
    pairs = {name: settings[name] for name in TRAINING}
    pairs |= {name: value for name, value in written.items() if name in FEDERATION_SET}
    for label, entry in manifest["methods"].items():
        pairs |= {f"{label}.{name}": value for name, value in entry["options"].items()}
    named = {name: value for name, value in written.items() if name in FEDERATION}
    if federation["partition"] in EVEN:
        del named["alpha"]
    if named.get("test_missing") == named.get("missing"):
        # Not said, so that an option --missing on the command line holds for both.
        named.pop("test_missing", None)
    return {
        "data": data["source"],
        "label": data["label"],
        "methods" if command == "compare" else "method": methods,
        **named,
        **{name: settings[name] for name in OWN},
        "set": pairs,
    }
