"""Running an experiment: block after block, each on disk before the next one starts."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.runs import records
from fedjax_mm.runs.costs import Clock, fixed_costs, running_costs
from fedjax_mm.runs.directory import RunDirectory
from fedjax_mm.runs.entries import Entry
from fedjax_mm.runs.experiment import Experiment, blame, precision
from fedjax_mm.runs.progress import Report
from fedjax_mm.runs.records import MethodRecord
from fedjax_mm.simulation.build import state_shapes
from fedjax_mm.simulation.bundle import make_bundle
from fedjax_mm.simulation.engine import Block, Engine

MOST_BYTES = 2**30
"""Methods are trained side by side up to so much state."""
TABLES_SHARE = 0.05
"""The most of a run's time that goes into rewriting its tables before it ends."""


class Execution:
    """The results of an experiment as they come.

    Attributes:
        recorded: Label -> what the method has recorded, in earlier sessions too.
        costs: Label -> its entry in `costs.json`.
        states: Label -> its last state, kept where there is no directory.
    """

    def __init__(self, experiment: Experiment, directory: RunDirectory | None, earlier: Mapping[str, Any]):
        """`earlier` is the content of `costs.json` of the sessions before this one."""
        self.recorded: dict[str, MethodRecord] = {}
        self.costs: dict[str, dict[str, Any]] = {}
        self.states: dict[str, Any] = {}
        self._experiment, self._directory = experiment, directory
        self._earlier = {label: entry for label, entry in earlier.items() if isinstance(entry, dict)}
        self._written, self._took = 0.0, 0.0
        if directory is not None:
            stored = {label: directory.stored(label) for label in experiment.engines}
            self.recorded |= {label: record for label, record in stored.items() if record is not None}

    def run(self, report: Report) -> None:
        """Runs every method to its end, going on from checkpoints where there are any.

        Raises:
            RunError: A method failed; what earlier blocks left stays on disk.
        """
        try:
            with precision(self._experiment.settings):
                for entries in together(self._experiment):
                    self._train(entries, report)
        finally:
            self._write()

    def _train(self, entries: Sequence[Entry], report: Report) -> None:
        """Trains methods that share a program side by side, from where they are to their end."""
        rounds = self._experiment.settings.rounds
        if all(self._finished(entry) for entry in entries):
            for entry in entries:
                report(entry.label, rounds, rounds)
            return
        engines = {entry.label: self._experiment.engines[entry.label] for entry in entries}
        bundle = make_bundle(engines)
        fixed = {label: fixed_costs(engine) | {"trained_together": len(entries)} for label, engine in engines.items()}
        clocks = {entry.label: _clock(self._earlier.get(entry.label, {})) for entry in entries}
        kept, states, done = self._start(entries, engines)
        state = bundle.join(states)
        del states
        for entry in entries:
            self._note(entry, kept[entry.label], fixed[entry.label], clocks[entry.label])
            report(entry.label, done, rounds)
        for first, length in bundle.engine.blocks(done):
            state, block = _run(entries, bundle.engine, state, first, length)
            for entry, part in zip(entries, bundle.blocks(block), strict=True):
                clocks[entry.label] = clocks[entry.label].add(part)
                kept[entry.label] = _extended(kept[entry.label], part)
                self._note(entry, kept[entry.label], fixed[entry.label], clocks[entry.label])
            if self._directory is not None:
                # Costs first: a run that dies after its last checkpoint has nothing left to measure.
                self._directory.write_costs(self._earlier | self.costs)
                for entry, part in zip(entries, bundle.split(state), strict=True):
                    self._directory.keep(kept[entry.label], part, self._experiment.fingerprint(entry))
            if self._directory is not None and time.monotonic() > self._written + self._took / TABLES_SHARE:
                self._write()
            for entry in entries:
                report(entry.label, first + length - 1, rounds)
        if self._directory is None:
            self.states |= dict(zip(engines, bundle.split(state), strict=True))
        bundle.engine.programs.clear()

    def _finished(self, entry: Entry) -> bool:
        record = self.recorded.get(entry.label)
        return record is not None and record.rounds.max(initial=0) == self._experiment.settings.rounds

    def _start(
        self, entries: Sequence[Entry], engines: Mapping[str, Engine]
    ) -> tuple[dict[str, MethodRecord], list[Any], int]:
        """Records, states and the rounds done: from the last checkpoints that all have, or from nothing."""
        labels = [entry.label for entry in entries]
        if self._directory is None or any(label not in self.recorded for label in labels):
            blank = {entry.label: _blank(entry, engines[entry.label]) for entry in entries}
            return blank, [engines[label].fresh_state() for label in labels], 0
        done = min(int(self.recorded[label].rounds[-1]) for label in labels)
        while True:
            found = [
                self._experiment.load_state(entry, self._directory.checkpoints(entry.label), done) for entry in entries
            ]
            last = min(round_ for round_, _ in found)
            if all(round_ == last for round_, _ in found):
                kept = {label: records.until(self.recorded[label], last) for label in labels}
                return kept, [state for _, state in found], last
            done = last

    def _note(self, entry: Entry, record: MethodRecord, fixed: dict[str, Any], clock: Clock) -> None:
        self.recorded[entry.label] = record
        self.costs[entry.label] = fixed | running_costs(record, clock, fixed["samples_per_round"])

    def _write(self) -> None:
        if self._directory is None:
            return
        start = time.monotonic()
        labels = (entry.label for entry in self._experiment.entries)
        recorded = [self.recorded[label] for label in labels if label in self.recorded]
        self._directory.write_tables(recorded, self._experiment.settings.select or "accuracy")
        self._directory.write_costs(self._earlier | self.costs)
        self._written = time.monotonic()
        self._took = self._written - start


def together(experiment: Experiment) -> list[list[Entry]]:
    """The methods in groups that are trained side by side: those that share a program, as many as memory allows."""
    groups: dict[Any, list[Entry]] = {}
    for entry in experiment.entries:
        engine = experiment.engines[entry.label]
        alone = engine.executor_name == "debug"
        groups.setdefault(entry.label if alone else id(engine.programs), []).append(entry)
    cut = []
    for entries in groups.values():
        engine = experiment.engines[entries[0].label]
        leaves = jax.tree.leaves(state_shapes(engine.context, engine.world))
        bytes_ = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.number))
        most = max(1, int(MOST_BYTES // max(bytes_, 1)))
        cut += [entries[start : start + most] for start in range(0, len(entries), most)]
    return cut


def _run(entries: Sequence[Entry], engine: Engine, state: Any, first: int, length: int) -> tuple[Any, Block]:
    try:
        return engine.run_block(state, first, length)
    except RunError as error:
        # The debug executor wraps: what a client raised is the cause.
        cause = error.__cause__
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        place = f"; {blame(cause, entries[0].method)}" if isinstance(cause, Exception) else ""
        raise RunError(f"{error}{place}") from error
    except Exception as error:
        raise RunError(
            f"{', '.join(entry.label for entry in entries)} failed in rounds {first} to {first + length - 1}: "
            f"{blame(error, entries[0].method)}; "
            "executor=debug names the client"
        ) from error


def _extended(record: MethodRecord, block: Block) -> MethodRecord:
    try:
        return records.extend(record, (block.evaluation,), block.rounds, block.terms)
    except UsageError as error:
        # The method's mistake, seen only now that its terms are there.
        raise RunError(str(error)) from error


def _blank(entry: Entry, engine: Engine) -> MethodRecord:
    population = engine.population
    names = population.modalities
    return MethodRecord(
        name=entry.label,
        kind=entry.method.kind,
        task="",
        seeds=population.seeds,
        clients=population.federations[0].clients,
        modalities=tuple(
            tuple("+".join(name for name, has in zip(names, row, strict=True) if has) for row in federation.holds)
            for federation in population.federations
        ),
        names=tuple(names),
    )


def _clock(entry: Mapping[str, Any]) -> Clock:
    return Clock(**{name: entry[name] for name in ("compile_seconds", "run_seconds", "rounds_run") if name in entry})
