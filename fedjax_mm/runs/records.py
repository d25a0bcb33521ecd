"""What a method leaves behind round by round, and the tables made of it.

`rounds.csv` has the metric `<metric>/<population>[@predictor]` for the splits `validation` and `test` of evaluated
rounds, and the training terms and counters of every round by their plain name under the split `train`. `clients.csv`
has the metric `<metric>[@predictor]` of each client with samples, `n` the number of its samples in that split. In both
the primary predictor is written twice, without and with its suffix. An undefined value (a mean over nothing, a NaN or
infinite loss) has no row; in `summary.json` it is null. `subsets.csv` has the primary predictor's results on test
samples by observed modalities, at the rounds selected on validation data.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.metrics.classification import classification, samples
from fedjax_mm.metrics.evaluation import EVALUATED, Evaluation, Sums, unrecorded
from fedjax_mm.metrics.selection import RULES, select
from fedjax_mm.metrics.subsets import Subsets, at_rounds, group_name, pooled
from fedjax_mm.metrics.weighting import populations
from fedjax_mm.runs.files import Path, read_npz, write_npz

ROUND_COLUMNS = {
    "method": "str",
    "task": "str",
    "seed": "int64",
    "round": "int64",
    "split": "str",
    "metric": "str",
    "value": "float64",
}
CLIENT_COLUMNS = {
    "method": "str",
    "task": "str",
    "seed": "int64",
    "round": "int64",
    "client": "str",
    "split": "str",
    "n": "int64",
    "modalities": "str",
    "metric": "str",
    "value": "float64",
}
SUBSET_COLUMNS = {
    "method": "str",
    "task": "str",
    "seed": "int64",
    "modalities": "str",
    "n": "int64",
    "accuracy": "float64",
    "macro_f1": "float64",
}

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class MethodRecord:
    """Everything reported about one method on one task, over R rounds of S seeds and K clients.

    Attributes:
        name: The method.
        kind: `"global"` (one model for all) or `"personal"` (each client its own): what selection demands.
        task: The task, empty where there is only one.
        seeds: The S seeds.
        clients: The K client names.
        modalities: What each client holds in each seed, such as `"fourier+pixel"`, `[S][K]`.
        names: The modalities of the data, `[M]`; empty where not recorded.
        evaluations: One per evaluated round, ascending.
        rounds: The rounds done, ascending, int64 `[R]`.
        terms: Name of a loss term or counter -> (sum, weight), float64 `[R, S]` each; its value is sum / weight, and
            undefined where the weight is 0.
    """

    name: str
    kind: str
    task: str
    seeds: tuple[int, ...]
    clients: tuple[str, ...]
    modalities: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    rounds: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    terms: Terms = dataclasses.field(default_factory=dict)


def extend(record: MethodRecord, evaluations: Sequence[Evaluation], rounds: np.ndarray, terms: Terms) -> MethodRecord:
    """Adds a block of rounds.

    Args:
        record: What came before.
        evaluations: Those of the block, ascending.
        rounds: The r rounds of the block, ascending, integers `[r]`.
        terms: Name -> (sum, weight), `[r, S]` each. A term that is not in this block, or was not in an earlier one, has
            weight 0 there.

    Returns:
        The record with the block at its end.

    Raises:
        RunError: A round is already recorded or out of order, an evaluation's round is not in the block, or the
            evaluations differ in their predictors.
        UsageError: A term is not one number per round and seed.
    """
    rounds = np.asarray(rounds, np.int64)
    done = np.concatenate([record.rounds, rounds])
    if np.any(np.diff(done) <= 0):
        raise RunError(f"{record.name}: rounds {rounds.tolist()} do not follow on those done, {record.rounds.tolist()}")
    evaluated = [evaluation.round for evaluation in evaluations]
    if not set(evaluated) <= set(rounds.tolist()) or evaluated != sorted(set(evaluated)):
        raise RunError(f"{record.name}: rounds {evaluated} were evaluated in the block of rounds {rounds.tolist()}")
    if len({evaluation.predictors for evaluation in (*record.evaluations, *evaluations)}) > 1:
        raise RunError(f"{record.name}: the predictors changed from one evaluation to another")
    return dataclasses.replace(
        record, evaluations=(*record.evaluations, *evaluations), rounds=done, terms=_merged(record, len(rounds), terms)
    )


def _merged(record: MethodRecord, block: int, terms: Terms) -> Terms:
    """The terms of the record followed by those of `block` rounds, weight 0 where one of the two has none."""
    shape = (block, len(record.seeds))
    merged = {}
    for name in {**record.terms, **terms}:
        total, weight = (np.asarray(part, np.float64) for part in terms.get(name, (np.zeros(shape),) * 2))
        if total.shape != shape or weight.shape != shape:
            raise UsageError(
                f"{record.name}: term {name!r} has shape {total.shape} with weights {weight.shape}; a term is one "
                f"number per round and seed, {shape}: report an array's entries as terms of their own"
            )
        earlier = record.terms.get(name, (np.zeros((len(record.rounds), len(record.seeds))),) * 2)
        merged[name] = (np.concatenate([earlier[0], total]), np.concatenate([earlier[1], weight]))
    return merged


def until(record: MethodRecord, last: int) -> MethodRecord:
    """Drops every round after `last`, as a run needs that goes on from an earlier checkpoint."""
    kept = record.rounds <= last
    return dataclasses.replace(
        record,
        evaluations=tuple(evaluation for evaluation in record.evaluations if evaluation.round <= last),
        rounds=record.rounds[kept],
        terms={name: (total[kept], weight[kept]) for name, (total, weight) in record.terms.items()},
    )


def save(record: MethodRecord, path: Path) -> None:
    """Writes the record to an .npz file, whole or not at all."""
    header = {field: getattr(record, field) for field in ("name", "kind", "task", "clients", "modalities", "names")} | {
        "seeds": [int(seed) for seed in record.seeds],
        "evaluated": [int(evaluation.round) for evaluation in record.evaluations],
        "predictors": [evaluation.predictors for evaluation in record.evaluations],
        "terms": list(record.terms),
    }
    arrays = {"rounds": record.rounds}
    for index, evaluation in enumerate(record.evaluations):
        arrays |= {f"{name}_{index}": values for name, values in evaluation.sums._asdict().items()}
        if evaluation.subsets is not None:
            arrays |= {f"{name}_{index}": values for name, values in evaluation.subsets._asdict().items()}
    for index, (total, weight) in enumerate(record.terms.values()):
        arrays |= {f"sum_{index}": total, f"weight_{index}": weight}
    write_npz(path, header, arrays)


def load(path: Path) -> MethodRecord:
    """Reads what `save` wrote.

    Raises:
        UsageError: The file is missing, is not one of this package's, or of another schema version.
        RunError: The file is damaged.
    """
    header, arrays = read_npz(path)
    try:
        evaluations = tuple(
            Evaluation(number, tuple(predictors), _stored_sums(arrays, index), _stored_subsets(arrays, index))
            for index, (number, predictors) in enumerate(zip(header["evaluated"], header["predictors"], strict=True))
        )
        return MethodRecord(
            name=header["name"],
            kind=header["kind"],
            task=header["task"],
            seeds=tuple(header["seeds"]),
            clients=tuple(header["clients"]),
            modalities=tuple(map(tuple, header["modalities"])),
            names=tuple(header.get("names", ())),
            evaluations=evaluations,
            rounds=arrays["rounds"],
            terms={
                name: (arrays[f"sum_{index}"], arrays[f"weight_{index}"]) for index, name in enumerate(header["terms"])
            },
        )
    except KeyError as error:
        raise UsageError(f"{path} is not a method's record: it has no {error}") from error


def _stored_sums(arrays: Mapping[str, np.ndarray], index: int) -> Sums:
    """The sums of an evaluation; records of earlier versions have neither calibration nor subsets."""
    if f"brier_{index}" not in arrays:
        return unrecorded(arrays[f"confusion_{index}"], arrays[f"loss_{index}"])
    return Sums(*(arrays[f"{name}_{index}"] for name in Sums._fields))


def _stored_subsets(arrays: Mapping[str, np.ndarray], index: int) -> Subsets | None:
    if f"cells_{index}" not in arrays:
        return None
    return Subsets(*(arrays[f"{name}_{index}"] for name in Subsets._fields))


def rounds_table(records: Iterable[MethodRecord]) -> pd.DataFrame:
    """The rows of `rounds.csv`.

    Args:
        records: One or more, of any methods and tasks.

    Returns:
        A table with the columns `ROUND_COLUMNS`, every value finite: per record ascending by round, within one the
        terms before the evaluation, each by seed.
    """
    return _table(ROUND_COLUMNS, records, _round_rows)


def _round_rows(record: MethodRecord) -> pd.DataFrame:
    parts = []
    if record.terms:
        total, weight = (np.stack(side, axis=-1) for side in zip(*record.terms.values(), strict=True))
        values = np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight != 0)
        levels = {"round": record.rounds, "seed": record.seeds, "split": ["train"], "metric": list(record.terms)}
        parts.append(_long(values, levels))
    for evaluation in record.evaluations:
        # Clients last but for the classes: [S, K, 2, ...] -> [S, 2, K, ...].
        sums = evaluation.sums.map(lambda leaf: np.moveaxis(leaf, 2, 3))
        columns = _by_predictor(evaluation, sums, populations)
        levels = {"round": [evaluation.round], "seed": record.seeds, "split": EVALUATED, "metric": list(columns)}
        parts.append(_long(np.stack(list(columns.values()), axis=-1), levels))
    return pd.concat([_empty(ROUND_COLUMNS), *parts]).sort_values("round", kind="stable")


def clients_table(records: Iterable[MethodRecord]) -> pd.DataFrame:
    """The rows of `clients.csv`.

    Args:
        records: One or more, of any methods and tasks.

    Returns:
        A table with the columns `CLIENT_COLUMNS`, every value finite: per record ascending by round, then by seed,
        client, split, predictor and metric.
    """
    return _table(CLIENT_COLUMNS, records, _client_rows)


def _client_rows(record: MethodRecord) -> pd.DataFrame:
    parts = []
    for evaluation in record.evaluations:
        columns = _by_predictor(evaluation, evaluation.sums, classification)
        values = np.stack(list(columns.values()), axis=-1)
        levels = {"seed": record.seeds, "client": record.clients, "split": EVALUATED, "metric": list(columns)}
        counts = np.broadcast_to(samples(evaluation.confusion[0])[..., None], values.shape)
        held = np.broadcast_to(np.array(record.modalities, object)[..., None, None], values.shape)
        parts.append(_long(values, levels, n=counts, modalities=held).assign(round=evaluation.round))
    return pd.concat([_empty(CLIENT_COLUMNS), *parts])


def subsets_table(records: Iterable[MethodRecord], *, metric: str = "accuracy") -> pd.DataFrame:
    """The rows of `subsets.csv`.

    Args:
        records: One or more, of any methods and tasks.
        metric: What selects the rounds, as in `summary`.

    Returns:
        A table with the columns `SUBSET_COLUMNS`: per record and seed one row for each set of observed modalities that
        a test sample has, fewer modalities first, all clients together. None of a record that lacks them.
    """

    def rows(record: MethodRecord) -> pd.DataFrame:
        subsets = [evaluation.subsets for evaluation in record.evaluations if evaluation.subsets is not None]
        if not subsets or len(subsets) < len(record.evaluations):
            return _empty(SUBSET_COLUMNS)
        chosen = at_rounds(subsets, select(record.evaluations, "validation", kind=record.kind, metric=metric).index)
        found = [
            (record.seeds[seed], group_name(group, record.names), *values)
            for seed, group, *values in pooled(chosen, len(record.names))
        ]
        return pd.DataFrame(found, columns=["seed", "modalities", "n", "accuracy", "macro_f1"])

    return _table(SUBSET_COLUMNS, records, rows)


def summary(records: Iterable[MethodRecord], *, metric: str = "accuracy") -> dict[str, Any]:
    """The content of `summary.json`, without `schema_version`.

    Args:
        records: One or more; those of one method differ in their task.
        metric: What selects the rounds, `"accuracy"` or `"macro_f1"`.

    Returns:
        `{method: {name: {"mean", "std", "per_seed"}}}`, the names `<split>/[<task>.]<metric>/<population>[@predictor]
        [:last|:best_test|:client_best]`, without a rule selected on validation data. `per_seed` is in the order of the
        record's seeds. None where undefined; mean and sample SD also where one of the seeds is, the SD with one seed.

    Raises:
        UsageError: Two records have the same method and task, or `metric` cannot select.
    """
    result: dict[str, Any] = {}
    for record in records:
        entries = _summary(record, metric)
        known = result.setdefault(record.name, {})
        if not known.keys().isdisjoint(entries):
            raise UsageError(f"two records of {record.name!r} with task {record.task!r}: give them different names")
        known |= entries
    return result


def _summary(record: MethodRecord, metric: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if not record.evaluations:
        return result
    task = f"{record.task}." if record.task else ""
    for index in range(len(record.evaluations[0].predictors)):
        for rule in RULES:
            ending = "" if rule == "validation" else f":{rule}"
            chosen = select(record.evaluations, rule, kind=record.kind, predictor=index, metric=metric)
            for split, name in enumerate(EVALUATED):
                for key, values in populations(chosen.sums.map(lambda leaf, split=split: leaf[:, :, split])).items():
                    for suffix in _suffixes(record.evaluations[0], index):
                        result[f"{name}/{task}{key}{suffix}{ending}"] = _statistics(values)
    return result


def _statistics(values: np.ndarray) -> dict[str, Any]:
    """Mean, sample SD and values over seeds, float64 `[S]`; None where not finite."""
    defined = bool(np.isfinite(values).all())
    return {
        "mean": float(values.mean()) if defined else None,
        "std": float(values.std(ddof=1)) if defined and len(values) > 1 else None,
        "per_seed": [float(value) if np.isfinite(value) else None for value in values],
    }


def _suffixes(evaluation: Evaluation, index: int) -> tuple[str, ...]:
    """The suffixes a predictor is written with: the primary one also without."""
    suffix = f"@{evaluation.predictors[index]}"
    return (suffix,) if index else ("", suffix)


def _by_predictor(
    evaluation: Evaluation, sums: Sums, measure: Callable[[Sums], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The metrics that `measure` makes of each predictor's sums, their names with the predictors' suffixes."""
    return {
        f"{metric}{suffix}": array
        for index in range(len(evaluation.predictors))
        for metrics in [measure(sums.map(lambda leaf, index=index: leaf[index]))]
        for suffix in _suffixes(evaluation, index)
        for metric, array in metrics.items()
    }


def _long(values: np.ndarray, levels: Mapping[str, Iterable[Any]], **columns: np.ndarray) -> pd.DataFrame:
    """One row per finite entry of `values`, whose axes are `levels` in order; `columns` have its shape."""
    frame = pd.MultiIndex.from_product(list(levels.values()), names=list(levels)).to_frame(index=False)
    flat = {name: column.ravel() for name, column in columns.items()}
    return frame.assign(value=values.ravel(), **flat).loc[lambda rows: np.isfinite(rows["value"])]


def _empty(columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})


def _table(
    columns: Mapping[str, str], records: Iterable[MethodRecord], rows: Callable[[MethodRecord], pd.DataFrame]
) -> pd.DataFrame:
    parts = [rows(record).assign(method=record.name, task=record.task) for record in records]
    frame = pd.concat([_empty(columns), *parts], ignore_index=True)
    return frame.reindex(columns=list(columns)).astype(dict(columns))
