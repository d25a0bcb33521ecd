"""Running an experiment: block after block, each on disk before the next one starts."""

import time
from collections.abc import Mapping
from typing import Any

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.runs import records
from fedjax_mm.runs.costs import Clock, fixed_costs, running_costs
from fedjax_mm.runs.directory import RunDirectory
from fedjax_mm.runs.entries import Entry
from fedjax_mm.runs.experiment import Experiment, blame, precision
from fedjax_mm.runs.progress import Report
from fedjax_mm.runs.records import MethodRecord
from fedjax_mm.simulation.engine import Block, Engine

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
                for entry in self._experiment.entries:
                    self._method(entry, report)
        finally:
            self._write()

    def _method(self, entry: Entry, report: Report) -> None:
        engine, rounds = self._experiment.engines[entry.label], self._experiment.settings.rounds
        if entry.label in self.recorded and self.recorded[entry.label].rounds.max(initial=0) == rounds:
            report(entry.label, rounds, rounds)
            return
        fingerprint = self._experiment.fingerprint(entry)
        fixed = fixed_costs(engine)
        clock = _clock(self._earlier.get(entry.label, {}))
        record, state, done = self._start(entry, engine)
        self._note(entry, record, fixed | running_costs(record, clock))
        report(entry.label, done, rounds)
        for first, length in engine.blocks(done):
            state, block = _run(entry, engine, state, first, length)
            clock = clock.add(block)
            record = _extended(record, block)
            self._note(entry, record, fixed | running_costs(record, clock))
            if self._directory is not None:
                # Costs first: a run that dies after its last checkpoint has nothing left to measure.
                self._directory.write_costs(self._earlier | self.costs)
                self._directory.keep(record, state, fingerprint)
            if self._directory is not None and time.monotonic() > self._written + self._took / TABLES_SHARE:
                self._write()
            report(entry.label, first + length - 1, rounds)
        if self._directory is None:
            self.states[entry.label] = state
        engine.programs.clear()

    def _start(self, entry: Entry, engine: Engine) -> tuple[MethodRecord, Any, int]:
        """The record, the state and the rounds done: from the last checkpoint, or from nothing."""
        if self._directory is None or entry.label not in self.recorded:
            return _blank(entry, engine), engine.initial_state(), 0
        record = self.recorded[entry.label]
        folder = self._directory.checkpoints(entry.label)
        done, state = self._experiment.load_state(entry, folder, int(record.rounds[-1]))
        return records.until(record, done), state, done

    def _note(self, entry: Entry, record: MethodRecord, costs: dict[str, Any]) -> None:
        self.recorded[entry.label] = record
        self.costs[entry.label] = costs

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


def _run(entry: Entry, engine: Engine, state: Any, first: int, length: int) -> tuple[Any, Block]:
    try:
        return engine.run_block(state, first, length)
    except RunError as error:
        # The debug executor wraps: what a client raised is the cause.
        cause = error.__cause__
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        place = f"; {blame(cause, entry.method)}" if isinstance(cause, Exception) else ""
        raise RunError(f"{error}{place}") from error
    except Exception as error:
        raise RunError(
            f"{entry.label} failed in rounds {first} to {first + length - 1}: {blame(error, entry.method)}; "
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
    )


def _clock(entry: Mapping[str, Any]) -> Clock:
    return Clock(**{name: entry[name] for name in ("compile_seconds", "run_seconds", "rounds_run") if name in entry})
