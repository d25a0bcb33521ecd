"""Table 6 of Flux: what each of its parts contributes."""

import pathlib
from collections.abc import Mapping

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import Case, run_cases, start
from experiments.flux import (
    MACRO_F1,
    Scale,
    beside,
    explain,
    left_out,
    one_data_set,
    prepare,
    sensing_case,
    with_averages,
)
from experiments.tables import Group, publish, tabulate
from fedjax_mm.methods.flux import ABLATIONS, Flux

REGIMES = ("high,mod", "high,high")
REFERENCE = "full"
VARIANTS = {**{label: Flux(**options) for label, options in ABLATIONS.items()}, REFERENCE: Flux()}


def cases(scale: Scale) -> list[Case]:
    """The columns of the paper's table. Without its stops Flux may diverge: such updates are left out, and counted."""
    data = one_data_set()
    return [sensing_case(data, regime, scale, VARIANTS, label="ablations", nonfinite="skip") for regime in REGIMES]


def groups(runs: Mapping[Case, fmm.Run]) -> list[Group]:
    """A group for each regime, and their mean."""
    rows = {
        regime: {label: row[regime] for (label,), row in published.TABLE6.items()}
        for regime in (case.options["missing"] for case in runs)
    }
    own = [
        Group({"H,I": case.options["missing"]}, [run], beside([rows[case.options["missing"]]]))
        for case, run in runs.items()
    ]
    return with_averages(own, list(rows.values()), {"H,I": "mean"})


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 6: the ablations of Flux; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    asked = cases(scale)
    runs = run_cases(asked, folder)
    rows = groups(runs)
    explain(scale)
    for case, run in runs.items():
        print(f"Updates left out under {case.options['missing']}, not finite: {left_out(run)}.")
    text, table = tabulate(rows, REFERENCE, measure=MACRO_F1)
    publish(f"Table 6: {asked[0].data} in the place of {asked[0].stands_for}", text, table, folder / "table6.csv")


if __name__ == "__main__":
    start(main)
