"""Table 3 of Flux: calibration of the combined predictions."""

import pathlib

import pandas as pd

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import run_cases, start
from experiments.flux import comparison, explain, one_data_set, prepare
from experiments.published import HEADING
from experiments.tables import Measure, publish, scores, shown

REGIME = "mod,mod"
REFERENCE = "fedavg"
MEASURES = {
    name: Measure(f"test/{metric}/client_mean", name)
    for name, metric in {"nll": "loss", "ece": "ece", "brier": "brier"}.items()
}
"""The paper's measure -> ours; lower is better."""


def tabulate(run: fmm.Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Methods of the paper's table, measure by measure: text, and numbers."""
    texts, tables = [], []
    for name, measure in MEASURES.items():
        printed = published.TABLE3[name,]
        table = scores([run], REFERENCE, measure=measure)
        table = table.query("method in @printed").reset_index(drop=True)
        beside = {HEADING: [str(printed[method]) for method in table["method"]]}
        text = shown(table, REFERENCE, measure=measure).rename({name: "value"}, axis="columns")
        numbers = table.rename({name: "value", f"{name}_sd": "value_sd"}, axis="columns")
        for rows, whole in ((texts, text), (tables, numbers)):
            rows.append(pd.DataFrame({"measure": name, **whole, **beside}))
    return pd.concat(texts), pd.concat(tables)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 3: calibration under (mod, mod), of Table 1's run; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    case = comparison(one_data_set(), REGIME, scale)
    (run,) = run_cases([case], folder).values()
    explain(scale)
    publish(
        f"Table 3: {case.data} in the place of {case.stands_for}, {REGIME}; lower is better",
        *tabulate(run),
        folder / "table3.csv",
    )


if __name__ == "__main__":
    start(main)
