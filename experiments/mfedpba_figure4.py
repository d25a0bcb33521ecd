"""Figure 4 of MFedPBA: test accuracy over the rounds."""

import dataclasses
import pathlib

import pandas as pd

import fedjax_mm as fmm
from experiments.common import Case, new_figure, require, run_cases, save_figure, start
from experiments.mfedpba import DATA, Scale, explain, make_case, paper_methods, prepare
from experiments.tables import Group, publish, tabulate

REFERENCE = "local"
PARTITION = "M2"
EVAL_EVERY = 2


def cases(scale: Scale) -> list[Case]:
    """The panels of the figure."""
    often = dataclasses.replace(scale, eval_every=EVAL_EVERY)
    return [make_case(data, PARTITION, PARTITION.lower(), paper_methods(), often.training(data)) for data in DATA]


def curves(run: fmm.Run) -> pd.DataFrame:
    """Test accuracy in % over the rounds: `method`, `round`, `mean` and sample SD `std` over the seeds."""
    rows = run.rounds().query("split == 'test' and metric == 'accuracy/pooled'")
    found = (100 * rows.set_index(["method", "round"])["value"]).groupby(level=["method", "round"], sort=False)
    return found.agg(["mean", "std"]).reset_index()


def draw(panels: dict[str, pd.DataFrame], path: pathlib.Path) -> None:
    """One panel a data set: a line per method, and a band of one SD to both sides where there are several seeds."""
    figure, axes = new_figure(len(panels))
    for axis, (title, table) in zip(axes, panels.items(), strict=True):
        for method, line in table.groupby("method", sort=False):
            axis.plot(line["round"], line["mean"], label=method, linewidth=1.4)
            axis.fill_between(line["round"], line["mean"] - line["std"], line["mean"] + line["std"], alpha=0.2)
        axis.set(title=title, xlabel="round", ylabel="test accuracy (%)")
    axes[0].legend()
    save_figure(figure, path)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_figure4")) -> None:
    """Figure 4: test accuracy over the rounds in M2; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    require("matplotlib")
    runs = run_cases(cases(scale), folder)
    panels = {case: curves(run) for case, run in runs.items()}
    groups = [Group({"data": case.data, "in place of": case.stands_for}, [run]) for case, run in runs.items()]
    text, table = tabulate(groups, REFERENCE)
    explain(scale)
    publish(f"Figure 4, {PARTITION}: where the curves lead", text, table, folder / "figure4.csv")
    points = pd.concat([pd.DataFrame({"data": case.data, **panel}) for case, panel in panels.items()])
    points.to_csv(folder / "figure4_curves.csv", index=False)
    draw(
        {f"{case.data} ({case.stands_for}), {PARTITION}": panel for case, panel in panels.items()},
        folder / "figure4.svg",
    )


if __name__ == "__main__":
    start(main)
