"""Table 1 of Flux: macro-F1 by what clients and samples lack, on health-sensing data."""

import pathlib
from collections.abc import Mapping

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import Case, run_cases, start
from experiments.flux import MACRO_F1, REFERENCES, SENSING, Scale, beside, comparison, explain, prepare, with_averages
from experiments.tables import Group, gains, publish, tabulate


def cases(scale: Scale) -> list[Case]:
    """The rows of the table."""
    return [comparison(data, regime, scale) for data in SENSING for regime in scale.regimes]


def groups(runs: Mapping[Case, fmm.Run]) -> list[Group]:
    """A group for each data set and regime, and one for the mean over the regimes of a data set."""
    found = []
    for data, stands_for in SENSING.items():
        mine = {case.options["missing"]: run for case, run in runs.items() if case.data == data}
        head = {"data": data, "in place of": stands_for}
        rows = {regime: published.TABLE1[stands_for][regime,] for regime in mine}
        own = [Group({**head, "H,I": regime}, [run], beside([rows[regime]])) for regime, run in mine.items()]
        found += with_averages(own, list(rows.values()), {**head, "H,I": "mean"})
    return found


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 1: macro-F1 by regime and method; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    rows = groups(run_cases(cases(scale), folder))
    explain(scale)
    publish("Table 1", *tabulate(rows, REFERENCES[0], measure=MACRO_F1), folder / "table1.csv")
    publish(
        "Table 1: Flux minus others",
        *gains(rows, "flux", REFERENCES, measure=MACRO_F1),
        folder / "table1_differences.csv",
    )


if __name__ == "__main__":
    start(main)
