"""The results of a run, in memory or in its directory."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedjax_mm.data import MultimodalDataset
from fedjax_mm.errors import RunError, UsageError, choose
from fedjax_mm.metrics.comparison import Comparison, paired
from fedjax_mm.runs import files, records
from fedjax_mm.runs.directory import RunDirectory
from fedjax_mm.runs.experiment import Experiment, precision
from fedjax_mm.runs.files import Path
from fedjax_mm.runs.manifest import restore
from fedjax_mm.runs.records import CLIENT_COLUMNS, ROUND_COLUMNS, SUBSET_COLUMNS, MethodRecord
from fedjax_mm.simulation.engine import Engine
from fedjax_mm.simulation.prediction import features_of

HEADLINE = "test/accuracy/pooled"
HEADLINES = {"accuracy": HEADLINE, "macro_f1": "test/macro_f1/client_mean"}
"""The result to look at first, by the metric that selects rounds."""
NLL = re.compile(r"(?<=[/.])nll(?=/)")


@dataclasses.dataclass(eq=False, repr=False)
class Run:
    """One or more methods on the same federation.

    Attributes:
        manifest: Everything that made the run, as in `manifest.json`.
        path: Its directory, None for a run in memory.
    """

    manifest: Mapping[str, Any]
    path: pathlib.Path | None = None
    _recorded: Sequence[MethodRecord] = ()
    _costs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    _states: dict[str, Any] = dataclasses.field(default_factory=dict)
    _experiment: Experiment | None = None
    _data: MultimodalDataset | None = None

    def __repr__(self) -> str:
        """Methods, seeds and where it is."""
        where = f" in {self.path}" if self.path else ""
        return f"<Run of {', '.join(self.methods)} with seeds {', '.join(map(str, self.seeds))}{where}>"

    @property
    def methods(self) -> tuple[str, ...]:
        """The labels of the methods."""
        return tuple(self.manifest["methods"])

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(self.manifest["settings"]["seeds"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What was replaced or left out, and why."""
        return tuple(self.manifest["notes"])

    @property
    def headline(self) -> str:
        """The result to look at first: the test metric that selected the rounds on validation data."""
        return HEADLINES[self.manifest["settings"]["select"]]

    def results(self) -> dict[str, dict[str, Any]]:
        """Method -> metric -> `mean`, `std` (sample SD) and `per_seed`, as in `summary.json`; None where undefined."""
        if self.path is None:
            return records.summary(self._recorded, metric=self.manifest["settings"]["select"])
        content = files.read_json(self.path / "summary.json")
        return {name: entry for name, entry in content.items() if name != "schema_version"}

    def summary(self, metric: str | None = "headline") -> pd.DataFrame:
        """The results over seeds.

        Args:
            metric: A name of `summary.json`, shown selected on validation data and at the last round; `nll` there is
                `loss`. None for all, `"headline"` for `headline`.

        Returns:
            One row per method and metric; columns `mean`, `std` and the seeds. NaN where undefined.

        Raises:
            UsageError: No method has that metric.
        """
        results = self.results()
        names = {name for entries in results.values() for name in entries}
        if metric is not None and names:
            metric = choose("metric", self._named(metric), sorted(names))
        wanted = None if metric is None else (metric, f"{metric}:last")
        rows = {
            (method, name): [entry["mean"], entry["std"], *entry["per_seed"]]
            for method, entries in results.items()
            for name, entry in entries.items()
            if wanted is None or name in wanted
        }
        index = pd.MultiIndex.from_tuples(list(rows), names=["method", "metric"]) if rows else None
        return pd.DataFrame(list(rows.values()), index=index, columns=["mean", "std", *self.seeds], dtype="float64")

    def rounds(self) -> pd.DataFrame:
        """The content of `rounds.csv`: `method`, `task`, `seed`, `round`, `split`, `metric`, `value`."""
        if self.path is None:
            return records.rounds_table(self._recorded)
        return files.read_csv(self.path / "rounds.csv", ROUND_COLUMNS)

    def clients(self) -> pd.DataFrame:
        """The content of `clients.csv`: as `rounds`, with `client`, `n` and `modalities`."""
        if self.path is None:
            return records.clients_table(self._recorded)
        return files.read_csv(self.path / "clients.csv", CLIENT_COLUMNS)

    def subsets(self) -> pd.DataFrame:
        """The content of `subsets.csv`: the primary predictor's results on test samples by observed modalities.

        Returns:
            One row per method, task, seed and set of modalities: `modalities`, such as `a+b` (of data with more than
            six modalities the number, `2 of 7`), `n` samples, `accuracy` and `macro_f1` over the classes present, in
            [0, 1], of all clients' samples together, each client at the round selected for it.
        """
        if self.path is None:
            return records.subsets_table(self._recorded, metric=self.manifest["settings"]["select"])
        return files.read_csv(self.path / "subsets.csv", SUBSET_COLUMNS)

    def costs(self) -> pd.DataFrame:
        """The content of `costs.json`: one row per method."""
        content = self._costs if self.path is None else files.read_json(self.path / "costs.json")
        return pd.DataFrame.from_dict(
            {name: entry for name, entry in content.items() if name != "schema_version"}, orient="index"
        )

    def missing(self) -> pd.DataFrame:
        """What is missing and what was done about it, from `manifest.json`.

        Returns:
            One row per split; a column for each count of `Federation.counts`, and for each share of
            `Federation.missing_rates`, named `axis, stage`, in [0, 1].
        """
        described = self.manifest["federation"]
        rows = [
            {
                **counts,
                **{f"{axis}, {stage}": share for axis, shares in rates.items() for stage, share in shares.items()},
            }
            for counts, rates in zip(described["counts"], described.get("missing_rates", [{}]), strict=False)
        ]
        return pd.DataFrame(rows)

    def compare(self, first: str, second: str, *, metric: str = "headline") -> Comparison:
        """Compares two methods, paired by seed.

        Args:
            first: A method's label.
            second: Another.
            metric: A name of `summary.json` that both have, as in `summary`.

        Returns:
            How much higher the metric of the first is.

        Raises:
            UsageError: A method or the metric is unknown.
        """
        results, metric = self.results(), self._named(metric)
        values = []
        for label in (first, second):
            entries = results[choose("method of the run", label, results)]
            values.append(dict(zip(self.seeds, entries[choose("metric", metric, entries)]["per_seed"], strict=True)))
        return paired(*values)

    def _named(self, metric: str) -> str:
        """The name in `summary.json` of a metric, which may be called otherwise."""
        return self.headline if metric == "headline" else NLL.sub("loss", metric)

    def predict(
        self, client: str | int, x: Mapping[str, Any], *, method: str | None = None, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Scores of a client's networks as they are after the last round.

        Args:
            client: A client's name, or its id 0..K-1 as an integer.
            x: Modality -> raw inputs `[n, ...]`, for one or more of the client's modalities.
            method: The method, where the run has several.
            seed: One of the seeds; by default the first.

        Returns:
            Predictor -> scores `[n, C]`: argmax is the class, softmax the probabilities.

        Raises:
            UsageError: Client, method, seed or a modality is unknown, or the data set is needed and cannot be found.
            RunError: There is no checkpoint, or the last one is damaged.
        """
        engine, state, seed, client = self._answerer(client, method, seed)
        with precision(engine.context.settings):
            return engine.predict(state, seed, client, x)

    def features(
        self, client: str | int, x: Mapping[str, Any], *, method: str | None = None, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Features f_k^m(x) of a client's encoders as they are after the last round, in evaluation mode.

        Args:
            client: As in `predict`.
            x: As in `predict`; inputs are standardised here.
            method: As in `predict`.
            seed: As in `predict`.

        Returns:
            Modality of `x` -> features `[n, d]`.

        Raises:
            UsageError: As in `predict`.
            RunError: As in `predict`.
        """
        engine, state, seed, client = self._answerer(client, method, seed)
        with precision(engine.context.settings):
            return features_of(engine.context, engine.population, engine.world, state, seed, client, x)

    def _answerer(self, client: str | int, method: str | None, seed: int | None) -> tuple[Engine, Any, int, int]:
        """The engine and last state of a method, the seed's position and the client's id."""
        if method is None and len(self.methods) > 1:
            raise UsageError(f"the run has several methods; name one: {', '.join(self.methods)}")
        label = choose("method of the run", method or "".join(self.methods), self.methods)
        seed = self.seeds[0] if seed is None else seed
        if seed not in self.seeds:
            raise UsageError(f"seed {seed} is not in the run; it has {', '.join(map(str, self.seeds))}")
        if self._experiment is None:
            self._experiment = restore(self.manifest, self._data)
        with precision(self._experiment.settings):
            state = self._state(self._experiment, label)
        return self._experiment.engines[label], state, self.seeds.index(seed), self._client(client)

    def _client(self, client: str | int) -> int:
        names = self.manifest["federation"]["client_names"]
        if isinstance(client, str):
            return names.index(choose("client", client, names))
        if not 0 <= client < len(names):
            raise UsageError(f"client is {client}, must be an id from 0 to {len(names) - 1}, or a name")
        return int(client)

    def _state(self, experiment: Experiment, label: str) -> Any:
        if label not in self._states:
            if self.path is None:
                raise UsageError(f"the run has no state of {label}")
            entry = next(entry for entry in experiment.entries if entry.label == label)
            directory = RunDirectory(self.path)
            record = directory.stored(label)
            if record is None:
                raise RunError(f"{self.path} has no checkpoint of {label}")
            last = int(record.rounds[-1])
            done, self._states[label] = experiment.load_state(entry, directory.checkpoints(label), last)
            if done != last:
                raise RunError(
                    f"{self.path}: the checkpoint of {label} after round {last} is damaged; rerun makes it again"
                )
        return self._states[label]


def load_run(path: Path, *, data: MultimodalDataset | None = None) -> Run:
    """Opens a run directory.

    Args:
        path: The directory.
        data: The data set, for `Run.predict`, where it was made in memory.

    Returns:
        The run; its tables are read when asked for.

    Raises:
        UsageError: It is not a run directory.
        RunError: Its manifest is damaged.
    """
    directory = RunDirectory(pathlib.Path(path).expanduser())
    return Run(manifest=directory.manifest(), path=directory.path, _data=data)
