"""Table 5 of Flux: what its methods cost."""

import pathlib

import pandas as pd

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import run_cases, start
from experiments.flux import MACRO_F1, comparison, one_data_set, prepare
from experiments.published import HEADING
from experiments.tables import publish, scores

REGIME = "mod,mod"
REFERENCE = "fedavg"
COSTS = {
    "seconds_per_round": ("s a round", 1.0, 3),
    "compile_seconds": ("s to compile", 1.0, 1),
    "flops_per_round_estimate": ("GFLOPs a round", 1e-9, 2),
    "bytes_up_per_client_and_round": ("kB up", 1e-3, 0),
    "bytes_down_per_client_and_round": ("kB down", 1e-3, 0),
    "parameters_per_client": ("k parameters", 1e-3, 0),
}
"""Entry of `costs.json` -> column, factor and digits of the text."""


def tabulate(run: fmm.Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Costs and macro-F1 by method: text, and numbers in the units of `costs.json`."""
    costs = run.costs().loc[list(run.methods), list(COSTS)].astype("float64")
    f1 = scores([run], REFERENCE, measure=MACRO_F1).set_index("method")[MACRO_F1.name]
    text = pd.DataFrame({"method": list(run.methods)})
    for name, (column, factor, digits) in COSTS.items():
        text[column] = [f"{factor * value:.{digits}f}" for value in costs[name]]
    text["macro-F1"] = [f"{value:.3f}" for value in f1]
    printed = [(published.TABLE5.get((label,), {}), published.TABLE1["PAMAP2"][REGIME,]) for label in run.methods]
    text[HEADING] = [
        f"{cost['GFLOPs']} GFLOPs, inference {cost['inference seconds']} s, F1 {row[label]}" if cost else ""
        for label, (cost, row) in zip(run.methods, printed, strict=True)
    ]
    return text, costs.assign(**{MACRO_F1.name: f1}).rename_axis("method").reset_index()


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 5: cost under (mod, mod), of Table 1's run; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    case = comparison(one_data_set(), REGIME, scale)
    (run,) = run_cases([case], folder).values()
    print(
        f"\nSeconds are of all {scale.seeds} seeds together, evaluation included, on this machine; bytes are those of "
        "one client in one round.\nGFLOPs are an estimate for one seed, 6 operations per parameter and sample: "
        "convolutions, which use a weight many times,\nare far above it, and forward passes that are not trained "
        "(MOON's two other views) are not in it."
    )
    publish(f"Table 5: {case.data} in the place of {case.stands_for}, {REGIME}", *tabulate(run), folder / "table5.csv")


if __name__ == "__main__":
    start(main)
