"""An experiment, checked as a whole before anything is compiled or written."""

import contextlib
import dataclasses
import hashlib
import json
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation import SPLITS, Federation, federate
from fedjax_mm.methods import Method
from fedjax_mm.runs import checkpoints, options
from fedjax_mm.runs.entries import Entry, suited
from fedjax_mm.runs.files import Path
from fedjax_mm.simulation.build import state_shapes
from fedjax_mm.simulation.engine import Engine, build_engine
from fedjax_mm.simulation.population import Population, build_population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.shelf import Shelf

SETTINGS = options.fields(Settings)
EACH = "each"
RETURNS = "loss must return (loss, terms), server (Server, terms), upload an Upload, predict {name: scores}"
WRONG_FORM = (AttributeError, TypeError, ValueError)
"""What is raised outside the method's module by a value of a form that was not expected."""


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """Methods on the same federations under the same settings, ready to run.

    Attributes:
        federations: The federation of each seed.
        each: Whether every seed has its own split seed.
        settings: The resolved settings.
        entries: The methods, in order.
        engines: Label -> engine.
        notes: What was replaced or left out, and why.
        grid: The options that vary, where the methods are the configurations of a grid.
    """

    federations: tuple[Federation, ...]
    each: bool
    settings: Settings
    entries: tuple[Entry, ...]
    engines: Mapping[str, Engine]
    notes: tuple[str, ...]
    grid: tuple[str, ...] | None = None

    def fingerprint(self, entry: Entry) -> dict[str, Any]:
        """What must be equal for a method's checkpoints to be gone on with; JSON-ready."""
        engine = self.engines[entry.label]
        placed = {"executor": engine.executor_name, "devices": engine.devices}
        return {
            "data": self.federations[0].data.sha256,
            "federations": [digest(federation) for federation in distinct(self.federations)],
            "settings": settings_json(engine.context.settings) | placed,
            "method": entry.method.name,
            "options": entry.options,
        }

    def load_state(self, entry: Entry, folder: Path, last: int) -> tuple[int, Any]:
        """The round and state of a method's latest intact checkpoint in `folder`, up to round `last`.

        Raises:
            RunError: There is none, or it is of another configuration.
        """
        engine = self.engines[entry.label]
        like = state_shapes(engine.context, engine.world)
        hosted = engine.hosted is not None
        return checkpoints.restore(folder, like=like, fingerprint=self.fingerprint(entry), last=last, hosted=hosted)


def precision(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """The context in which arrays have the run's precision."""
    return jax.enable_x64(settings.precision == "float64")


def make_settings(given: Mapping[str, Any], federation: Federation) -> Settings:
    """Settings from options by name, resolved for a federation.

    Raises:
        UsageError: An option is unknown, has the wrong type or is out of range.
    """
    seeds = {"seeds": options.seeds(given["seeds"])} if "seeds" in given else {}
    typed = options.keywords({**given, **seeds}, SETTINGS, what="setting")
    settings = Settings(**typed).resolved(federation.settings.get("partition", "natural"), federation.size)
    if settings.optimizer == "adam" and settings.momentum:
        raise UsageError(f"momentum is {settings.momentum}, and optimizer adam has none; leave it out, or use sgd")
    return settings


def settings_json(settings: Settings) -> dict[str, Any]:
    """Every setting, JSON-ready."""
    return {name: options.as_json(getattr(settings, name)) for name in SETTINGS}


def prepare(
    entries: Sequence[Entry],
    federation: Federation,
    given: Mapping[str, Any],
    *,
    each: bool = False,
    optional: bool = False,
    notes: Sequence[str] = (),
    grid: Sequence[str] | None = None,
    shelf: Shelf | None = None,
) -> Experiment:
    """Checks everything that can be without compiling.

    Args:
        entries: The methods.
        federation: The federation; with `each`, what each seed's is made like.
        given: Settings by name.
        each: Draw partition, masks and architectures anew for each seed, with the seed as split seed.
        optional: Whether a method that does not suit is left out, with the reason, instead of refused.
        notes: What is already known to be left out.
        grid: As in `Experiment`.
        shelf: Where traced programs are kept, if they are; not used beside a user's own method.

    Returns:
        The experiment.

    Raises:
        UsageError: Something is unknown, out of range or does not go together.
    """
    settings = make_settings(given, federation)
    federations = tuple(_of_seed(federation, seed) if each else federation for seed in settings.seeds)
    entries, changes = suited(entries, settings.model or "")
    engines, left_out = {}, []
    # A user's module may change the package when it is imported.
    shelf = None if any(":" in entry.source for entry in entries) else shelf
    with precision(settings):
        population = build_population(settings.seeds, federations, hosted=settings.client_state == "host")
        for entry in entries:
            try:
                own = make_settings({**given, **entry.training}, federation) if entry.training else settings
                engines[entry.label] = _engine(entry, population, own, engines.values(), shelf)
            except UsageError as error:
                if not optional:
                    raise
                left_out.append(f"{entry.label} left out: {error}")
    kept = tuple(entry for entry in entries if entry.label in engines)
    if not kept:
        raise UsageError(f"no method is left to run: {'; '.join([*changes, *left_out])}")
    notes = (*notes, *changes, *left_out)
    return Experiment(federations, each, settings, kept, engines, notes, None if grid is None else tuple(grid))


def _of_seed(federation: Federation, seed: int) -> Federation:
    if seed == federation.split_seed:
        return federation
    return federate(federation.data, **{**federation.settings, "split_seed": seed})


def _engine(
    entry: Entry, population: Population, settings: Settings, others: Collection[Engine], shelf: Shelf | None
) -> Engine:
    try:
        executor, devices = entry.executor or settings.executor, entry.devices or settings.devices
        placed = dataclasses.replace(settings, executor=executor, devices=devices)
        return build_engine(entry.method, population, placed, others, shelf)
    except (UsageError, RunError):
        raise
    except Exception as error:
        raise UsageError(f"{entry.label} cannot be set up: {blame(error, entry.method)}") from error


def blame(error: Exception, method: Method) -> str:
    """An error in one line, with the place in the method's own module where it was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    module = type(method).__module__
    own = [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if f.f_globals.get("__name__") == module]
    place = f" ({own[-1][0].f_code.co_filename}:{own[-1][1]})" if own else ""
    hint = f"; check what its hooks return: {RETURNS}" if not own and isinstance(error, WRONG_FORM) else ""
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{place}{hint}"


def distinct(federations: Sequence[Federation]) -> list[Federation]:
    """The federations without repetition, in order."""
    return list({id(federation): federation for federation in federations}.values())


def digest(federation: Federation) -> str:
    """SHA-256 of who holds what, as hex digits: equal for equal federations over equal data."""
    total = hashlib.sha256(json.dumps([list(federation.clients), federation.split_seed]).encode())
    arrays = [federation.holds, federation.observed]
    for split in SPLITS:
        table = federation.table(split)
        arrays += [np.asarray(table.rows, "<i4"), np.asarray(table.sizes, "<i4")]
    for array in arrays:
        total.update(json.dumps(array.shape).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
