"""Figure 8 of MFedPBA: how much the server's steps S and the weights lambda_1 and lambda_2 matter."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

import fedjax_mm as fmm
from experiments import mfedpba_published as published
from experiments.common import Case, new_figure, require, run_cases, save_figure, start
from experiments.mfedpba import Scale, make_case, prepare
from experiments.published import HEADING
from experiments.tables import publish, spread
from fedjax_mm.methods.mfedpba import MFedPBA

DATA_SET = "mfeat"
"""In the place of Youtube."""
PARTITION = "M2"
"""Our choice: the paper does not name it."""
STEPS = {"short": (1, 5, 10, 20), "full": (1, 5, 10, 20, 50, 100)}
"""The values of S."""
PAPER_GRID = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 8, 10)
GRIDS = {"short": ((0.01, 0.1, 1), (0.5, 1, 5)), "full": (PAPER_GRID, PAPER_GRID)}
"""The values of lambda_1 and of lambda_2."""

Options = dict[str, Any]


def cases(setting: str, scale: Scale) -> tuple[dict[Case, dict[str, Options]], dict[Case, dict[str, Options]]]:
    """The case of the steps and the case of the grid, which compiles once; by label the options that vary."""
    first, second = GRIDS[setting]
    steps: dict[str, dict[str, Options]] = {"S": {f"S{s}": {"server_steps": s} for s in STEPS[setting]}}
    grid: dict[str, dict[str, Options]] = {
        "grid": {
            f"lambda1={a:g}-lambda2={b:g}": {"lambda_fea": float(a), "lambda_logit": float(b)}
            for a in first
            for b in second
        }
    }
    return _cases(steps, scale), _cases(grid, scale)


def _cases(variants: Mapping[str, dict[str, Options]], scale: Scale) -> dict[Case, dict[str, Options]]:
    training = scale.training(DATA_SET)
    return {
        make_case(DATA_SET, name, PARTITION.lower(), {l: MFedPBA(**o) for l, o in options.items()}, training): options
        for name, options in variants.items()
    }


def accuracies(runs: Mapping[Case, fmm.Run], options: Mapping[Case, dict[str, Options]]) -> pd.DataFrame:
    """A row per configuration: its options, and mean and SD over the seeds of `validation` and `test` accuracy in %."""
    rows = []
    for case, varied in options.items():
        results = runs[case].results()
        for label, row in varied.items():
            row = dict(row)
            for split in ("validation", "test"):
                entry = results[label][f"{split}/accuracy/pooled"]
                row |= {split: 100 * entry["mean"], f"{split}_sd": 100 * (entry["std"] or 0)}
            rows.append(row)
    return pd.DataFrame(rows)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text; the configuration that validation chooses is marked, the first of equal ones."""
    marks = ["chosen" if position == table["validation"].argmax() else "" for position in range(len(table))]
    varied = table.columns[: table.columns.get_loc("validation")]
    text = {split: spread(table[split], table[f"{split}_sd"]) for split in ("validation", "test")}
    return pd.DataFrame({**table[varied], **text, "": marks})


def draw(steps: pd.DataFrame, grid: pd.DataFrame, path: pathlib.Path) -> None:
    """Accuracy over S with bars of one SD, and heat maps over the weights, with the chosen configuration framed."""
    figure, (line, *maps) = new_figure(3)
    for split in ("validation", "test"):
        line.errorbar(steps["server_steps"], steps[split], yerr=steps[f"{split}_sd"], label=split, capsize=3)
        axis = maps[split == "test"]
        values = grid.pivot(index="lambda_fea", columns="lambda_logit", values=split)
        picture = axis.imshow(values, origin="lower", cmap="viridis", aspect="auto")
        axis.set(title=f"{split} accuracy (%)", xlabel="lambda_2", ylabel="lambda_1")
        axis.set_xticks(range(values.shape[1]), [f"{value:g}" for value in values.columns])
        axis.set_yticks(range(values.shape[0]), [f"{value:g}" for value in values.index])
        best = grid.loc[grid["validation"].idxmax()]
        x, y = values.columns.get_loc(best["lambda_logit"]), values.index.get_loc(best["lambda_fea"])
        axis.plot(x, y, marker="*", color="white", markeredgecolor="black", markersize=14)
        figure.colorbar(picture, ax=axis)
    line.set(title="steps of the server", xlabel="S", ylabel="accuracy (%)")
    line.legend()
    save_figure(figure, path)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_figure8")) -> None:
    """Figure 8: server steps and loss weights, chosen on validation data; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    require("matplotlib")
    by_steps, by_weights = cases(setting, scale)
    runs = run_cases([*by_steps, *by_weights], folder)
    steps, grid = accuracies(runs, by_steps), accuracies(runs, by_weights)
    print(
        f"\nAccuracy in %, pooled over clients, mean ± sample SD over {scale.seeds} seeds on one split. Validation "
        "accuracy chooses; test accuracy stands beside it."
    )
    publish(f"Figure 8, left: {DATA_SET}, {PARTITION}", shown(steps), steps, folder / "figure8_steps.csv")
    publish(f"Figure 8, right: {DATA_SET}, {PARTITION}", shown(grid), grid, folder / "figure8_grid.csv")
    print(f"{HEADING}: {published.REMARKS['figure8']}")
    draw(steps, grid, folder / "figure8.svg")


if __name__ == "__main__":
    start(main)
