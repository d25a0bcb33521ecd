"""Tables of results: mean and deviation over the seeds, differences paired by seed, and what is published beside."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import fedjax_mm as fmm
from experiments.published import HEADING
from fedjax_mm.errors import choose
from fedjax_mm.metrics.comparison import paired
from fedjax_mm.runs.run import HEADLINE


@dataclasses.dataclass(frozen=True)
class Measure:
    """What a table reports.

    Attributes:
        metric: A name of `summary.json`, selected on validation data.
        name: What its columns are called.
        factor: What the metric is multiplied by.
        digits: Digits after the point, in text.
    """

    metric: str
    name: str
    factor: float = 1
    digits: int = 3


ACCURACY = Measure(HEADLINE, "accuracy", factor=100, digits=2)
"""In %, differences in percentage points."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The rows that a table has for the methods of one run, or for the means over several.

    Attributes:
        head: The columns in front.
        runs: The runs, of the same methods and seeds.
        beside: Method -> what is published in its place; None for a table without.
    """

    head: Mapping[str, str]
    runs: Sequence[fmm.Run]
    beside: Mapping[str, str] | None = None


def scores(runs: Sequence[fmm.Run], reference: str, *, measure: Measure = ACCURACY) -> pd.DataFrame:
    """Results of methods, and how much higher each is than the reference, in the unit of the measure.

    Args:
        runs: One run, or several with the same methods and seeds: then of each seed the mean over the runs counts.
        reference: A label. Where the runs do not have it, differences are NaN, like those of the reference itself.
        measure: What is reported.

    Returns:
        A row per method: `method`; `<name>` and `<name>_sd`, mean and sample SD over the seeds; `last` and `last_sd`,
        those of the last round; the mean `difference` paired by seed, its 95 % t interval `low` to `high`, `p` of the
        exact sign-flip test and the least it can be, `p_min`; `seeds`, their number. NaN where undefined.
    """
    chosen, last = (_values(runs, name, measure) for name in (measure.metric, f"{measure.metric}:last"))
    rows = []
    for label, of_seed in chosen.items():
        row: dict[str, Any] = {"method": label}
        for name, values in ((measure.name, of_seed), ("last", last[label])):
            row |= {name: _mean(values), f"{name}_sd": _deviation(values)}
        known = label != reference and reference in chosen
        result = paired(of_seed, chosen[reference] if known else {})
        low, high = result.interval or (None, None)
        found = {"difference": result.mean, "low": low, "high": high, "p": result.p}
        found["p_min"] = result.p_min if known else None
        rows.append(row | found | {"seeds": len(of_seed)})
    table = pd.DataFrame(rows)
    return table.astype(dict.fromkeys(table.columns.drop(["method", "seeds"]), "float64"))


def _values(runs: Sequence[fmm.Run], metric: str, measure: Measure) -> dict[str, dict[int, float]]:
    """Label -> seed -> value, the mean over the runs; NaN where it is undefined in one."""
    results = [run.results() for run in runs]
    values = {}
    for label in results[0]:
        # NumPy turns None into NaN here.
        found = [np.array(of[label][choose("metric", metric, of[label])]["per_seed"], np.float64) for of in results]
        values[label] = dict(zip(runs[0].seeds, measure.factor * np.mean(found, axis=0), strict=True))
    return values


def _mean(values: Mapping[int, float]) -> float:
    return float(np.mean([*values.values()]))


def _deviation(values: Mapping[int, float]) -> float:
    """The sample standard deviation; NaN for one value."""
    return float(np.std([*values.values()], ddof=1)) if len(values) > 1 else np.nan


def shown(table: pd.DataFrame, reference: str, *, measure: Measure = ACCURACY) -> pd.DataFrame:
    """The columns of `scores` as text for people."""
    digits = measure.digits
    return pd.DataFrame(
        {
            "method": table["method"],
            measure.name: spread(table[measure.name], table[f"{measure.name}_sd"], digits),
            "last round": spread(table["last"], table["last_sd"], digits),
            f"minus {reference} [95 %]": _differences(table, digits),
            "p": ["" if np.isnan(p) else f"{p:.3g}" for p in table["p"]],
        }
    )


def _differences(table: pd.DataFrame, digits: int) -> list[str]:
    return [
        ""
        if np.isnan(d)
        else f"{d:+.{digits}f}" + ("" if np.isnan(low) else f" [{low:+.{digits}f}, {high:+.{digits}f}]")
        for d, low, high in zip(table["difference"], table["low"], table["high"], strict=True)
    ]


def tabulate(
    groups: Iterable[Group], reference: str, *, measure: Measure = ACCURACY
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The methods of all groups in one table.

    Args:
        groups: What it has rows for.
        reference: The method others are compared with.
        measure: What is reported.

    Returns:
        The table as text, and as numbers.
    """
    texts, tables = [], []
    for group in groups:
        table = scores(group.runs, reference, measure=measure)
        beside = group.beside
        printed = {} if beside is None else {HEADING: [beside.get(name, "") for name in table["method"]]}
        for rows, whole in ((texts, shown(table, reference, measure=measure)), (tables, table)):
            rows.append(pd.DataFrame({**group.head, **whole, **printed}))
    return pd.concat(texts), pd.concat(tables)


def gains(
    groups: Iterable[Group], method: str, references: Sequence[str], *, measure: Measure = ACCURACY
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How much higher one method is than some others, a row per group and other method; text and numbers."""
    texts, tables = [], []
    for group in groups:
        for reference in references:
            table = scores(group.runs, reference, measure=measure).query("method == @method")
            head = {**group.head, "minus": reference}
            columns = ["difference", "low", "high", "p", "p_min", "seeds"]
            tables.append(pd.DataFrame({**{k: [v] for k, v in head.items()}, **{c: [*table[c]] for c in columns}}))
            name = f"{measure.name} of {method}, difference [95 %]"
            text = {name: _differences(table, measure.digits), "p": [f"{p:.3g}" for p in table["p"]]}
            texts.append(pd.DataFrame({**head, **text}))
    return pd.concat(texts), pd.concat(tables)


def spread(means: Iterable[float], stds: Iterable[float], digits: int = 2) -> list[str]:
    """`mean ± SD` with so many digits after the point."""
    pairs = zip(means, stds, strict=True)
    return [f"{mean:.{digits}f}" + ("" if np.isnan(std) else f" ± {std:.{digits}f}") for mean, std in pairs]


def publish(title: str, text: pd.DataFrame, table: pd.DataFrame, path: pathlib.Path) -> None:
    """Prints a table and writes its numbers as a CSV file."""
    print(f"\n{title}\n{text.to_string(index=False)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    print(f"{path}")
