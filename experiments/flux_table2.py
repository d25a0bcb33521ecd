"""Table 2 of Flux: macro-F1 by what silos lack, on clinical data with natural gaps."""

import pathlib
from collections.abc import Mapping

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import Case, run_cases, start
from experiments.flux import (
    CLINICAL,
    MACRO_F1,
    REFERENCES,
    Scale,
    beside,
    explain,
    paper_methods,
    prepare,
    with_averages,
)
from experiments.tables import Group, gains, publish, tabulate

REGIMES = ("hom", "mod", "high")
EXTREME = "extreme"
"""A client for each mask that occurs."""
WITH_GAPS = ("heart4", "omics92")
"""Data whose samples differ in their modalities: `extreme` needs that."""
HIDDEN = 128
"""Width of Flux's confidence heads on ADNI (Table 7)."""


def cases(scale: Scale) -> list[Case]:
    """The rows of the table: five silos alike in labels and masks, and for `extreme` a client for each mask."""
    rows = []
    for data, stands_for in CLINICAL.items():
        for regime in (*REGIMES, *([EXTREME] if data in WITH_GAPS else [])):
            missing = "hom" if regime == EXTREME else regime
            options = {
                "partition": "masks" if regime == EXTREME else "silos",
                "missing": f"{missing},none",
                "missing_protocol": "adni",
            }
            methods = paper_methods(hidden=HIDDEN)
            rows.append(Case(data, stands_for, regime, options, methods, scale.training(data), each=True))
    return rows


def groups(runs: Mapping[Case, fmm.Run]) -> list[Group]:
    """A group for each data set and regime, and one for the mean over the regimes of a data set."""
    found = []
    for data, stands_for in CLINICAL.items():
        mine = {case.label: run for case, run in runs.items() if case.data == data}
        head = {"data": data, "in place of": stands_for}
        rows = {regime: published.TABLE2[regime,] for regime in mine}
        own = [Group({**head, "H": regime}, [run], beside([rows[regime]])) for regime, run in mine.items()]
        found += with_averages(own, list(rows.values()), {**head, "H": "mean"})
    return found


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 2: macro-F1 by regime and method on clinical data; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    rows = groups(run_cases(cases(scale), folder))
    explain(scale, clinical=True)
    publish("Table 2", *tabulate(rows, REFERENCES[0], measure=MACRO_F1), folder / "table2.csv")
    publish(
        "Table 2: Flux minus others",
        *gains(rows, "flux", REFERENCES, measure=MACRO_F1),
        folder / "table2_differences.csv",
    )


if __name__ == "__main__":
    start(main)
