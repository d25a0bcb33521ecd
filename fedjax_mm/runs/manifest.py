"""The manifest: everything that made a run, and the way back from it to the experiment."""

import datetime
import os
import pathlib
import platform
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

import fedjax_mm
from fedjax_mm.data import MultimodalDataset, load_data
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation import federate
from fedjax_mm.runs import options
from fedjax_mm.runs.backend import prepare_backend
from fedjax_mm.runs.entries import Entry, with_options
from fedjax_mm.runs.experiment import EACH, Experiment, digest, distinct, prepare, settings_json
from fedjax_mm.simulation.engine import Engine

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PRNG = ("jax_default_prng_impl", "jax_threefry_partitionable")


def describe(experiment: Experiment, command: Sequence[str]) -> dict[str, Any]:
    """The content of `manifest.json`, without `schema_version`.

    Args:
        experiment: The experiment.
        command: What the user called.

    Returns:
        A JSON-ready dictionary.
    """
    federations = distinct(experiment.federations)
    changed = _git("status", "--porcelain", "--", "fedjax_mm")
    first, data = federations[0], federations[0].data
    return {
        "command": list(command),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": {
            "name": data.name,
            "source": data.source,
            "label": data.label,
            "sha256": data.sha256,
            "samples": data.size,
            "classes": list(data.classes),
            "modalities": {modality: data.kinds[modality] for modality in data.modalities},
        },
        "federation": {
            **first.settings,
            "split_seed": EACH if experiment.each else first.split_seed,
            "client_names": list(first.clients),
            "sha256": [digest(federation) for federation in federations],
            "counts": [dict(federation.counts) for federation in federations],
            "missing_rates": [
                {axis: dict(rates) for axis, rates in federation.missing_rates.items()} for federation in federations
            ],
        },
        "settings": settings_json(experiment.settings),
        "methods": {entry.label: _method(experiment, entry) for entry in experiment.entries},
        "grid": None if experiment.grid is None else list(experiment.grid),
        "notes": list(experiment.notes),
        "devices": {
            "backend": jax.default_backend(),
            "count": jax.device_count(),
            "kinds": sorted({device.device_kind for device in jax.devices()}),
        },
        "compiler_options": {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")},
        "prng": {name: getattr(jax.config, name) for name in PRNG},
        "versions": versions(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
    }


def _method(experiment: Experiment, entry: Entry) -> dict[str, Any]:
    engine = experiment.engines[entry.label]
    return {
        "source": entry.source,
        "sha256": entry.source_digest(),
        "name": entry.method.name,
        "options": entry.options,
        "training": {name: options.as_json(value) for name, value in entry.training.items()},
        "kind": entry.method.kind,
        "predictors": list(engine.predictors),
        "executor": engine.executor_name,
        "devices": _devices(experiment, engine),
        "executor_reason": "as in the manifest given" if entry.executor else engine.reason,
    }


def _devices(experiment: Experiment, engine: Engine) -> int:
    """How many devices bring a later run to the same division.

    Methods that share programs are trained as one, which may be divided among more devices than each alone.
    """
    shared = sum(other.programs is engine.programs for other in experiment.engines.values()) > 1
    return (engine.context.settings.devices or jax.device_count()) if shared else engine.devices


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of what it computes with."""
    found = {"python": platform.python_version(), "fedjax_mm": fedjax_mm.__version__}
    return found | {package: metadata.version(package) for package in PACKAGES}


def provide_devices(manifest: Mapping[str, Any]) -> None:
    """Makes as many devices as the run had, where JAX has not been used yet.

    Raises:
        RunError: The manifest lacks them.
    """
    try:
        prepare_backend(max(entry["devices"] for entry in manifest["methods"].values()))
    except KeyError as error:
        raise RunError(f"the manifest is damaged: it lacks {error}") from error


def changes(manifest: Mapping[str, Any]) -> list[str]:
    """What is no longer as it was when the manifest was written and may change bits: versions and backend."""
    then = {**manifest.get("versions", {}), "backend": manifest.get("devices", {}).get("backend")}
    now = {**versions(), "backend": jax.default_backend()}
    return [f"{name} is {now[name]}, was {then.get(name)}" for name in now if now[name] != then.get(name)]


def restore(manifest: Mapping[str, Any], data: MultimodalDataset | None = None) -> Experiment:
    """The experiment a manifest describes, with the executors it names.

    Args:
        manifest: The manifest.
        data: The data set, where it was made in memory and cannot be loaded by name or path.

    Returns:
        The experiment. A user's own method whose file has changed is warned of.

    Raises:
        UsageError: The data set is missing or has another content, a method cannot be found, or the federation comes
            out differently.
        RunError: The manifest lacks something.
    """
    try:
        provide_devices(manifest)
        data = _data(manifest["data"], data)
        settings, methods = dict(manifest["settings"]), manifest["methods"]
        given = federation_options(manifest["federation"])
        each = given["split_seed"] == EACH
        given["split_seed"] = settings["seeds"][0] if each else given["split_seed"]
        entries = [
            Entry(
                label,
                entry["source"],
                with_options(entry["source"], entry["options"]),
                entry["executor"],
                entry["devices"],
                entry["training"],
            )
            for label, entry in methods.items()
        ]
        _warn_of_changes(entries, methods)
        experiment = prepare(
            entries, federate(data, **given), settings, each=each, notes=manifest["notes"], grid=manifest["grid"]
        )
        expected = manifest["federation"]["sha256"]
    except KeyError as error:
        raise RunError(f"the manifest is damaged: it lacks {error}") from error
    if [digest(federation) for federation in distinct(experiment.federations)] != expected:
        raise UsageError(
            "the federation comes out differently from the one in the manifest: it was not made by federate with these "
            "settings, or by another version"
        )
    return experiment


FEDERATION_OPTIONS = ("partition", "clients", "alpha", "split", "split_seed", "fractions", "minimum", "gap")
MISSING_OPTIONS = ("missing", "test_missing", "missing_protocol", "empty")
"""A manifest written before there were any lacks them."""


def federation_options(described: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `federate` in a manifest's part about the federation.

    Raises:
        KeyError: One is missing.
    """
    given = {name: described[name] for name in FEDERATION_OPTIONS}
    return given | {name: described[name] for name in MISSING_OPTIONS if name in described}


def _warn_of_changes(entries: Sequence[Entry], methods: Mapping[str, Any]) -> None:
    for entry in entries:
        then = methods[entry.label].get("sha256")
        if then not in (None, entry.source_digest()):
            warnings.warn(
                f"{entry.label}: the file of {entry.source} has changed since the manifest was written; "
                "results may differ",
                stacklevel=4,
            )


def _data(described: Mapping[str, Any], data: MultimodalDataset | None) -> MultimodalDataset:
    if data is None:
        if not described["source"]:
            raise UsageError(f"data set {described['name']!r} was made in memory: pass it as data=")
        data = load_data(described["source"], label=described["label"])
    if data.sha256 != described["sha256"]:
        raise UsageError(
            f"data set {described['name']!r} is not the one of the manifest: its SHA-256 is {data.sha256[:16]}…, "
            f"was {described['sha256'][:16]}…"
        )
    return data


def _git(*words: str) -> str | None:
    """What git says of the checkout this package lies in, None if it is installed elsewhere."""
    root = pathlib.Path(fedjax_mm.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else answer.stdout.strip()
