"""Figure 7 of MFedPBA: what each of its parts contributes."""

import pathlib

import pandas as pd

from experiments import mfedpba_published as published
from experiments.common import Case, new_figure, require, run_cases, save_figure, start
from experiments.mfedpba import Scale, explain, make_case, prepare
from experiments.published import HEADING
from experiments.tables import publish, scores, shown
from fedjax_mm.methods.local import Local
from fedjax_mm.methods.mfedpba import MFedPBA

DATA_SET = "mfeat"
PARTITION = "M2"
REFERENCE = "full"
VARIANTS = {
    "full": MFedPBA(),
    "no_rec": MFedPBA(reconstruction=False),
    "no_con": MFedPBA(contrast=False),
    "no_align": MFedPBA(alignment=False),
    "no_fea": MFedPBA(feature=False),
    "no_logit": MFedPBA(logit=False),
    "ea": MFedPBA(entropy_weights=False),
    "local": Local(),
}
"""Label -> method: without one of the server's losses (Eq. 9, 10, 11) or of the clients' (Eq. 13, 14), with equal
averaging of logit prototypes (EA), and clients alone."""
NAMES = {"full": "MFedPBA", "ea": "EA", "local": "Local"}


def case(scale: Scale) -> Case:
    """The whole figure; the paper's is on Caltech101."""
    return make_case(DATA_SET, PARTITION, PARTITION.lower(), VARIANTS, scale.training(DATA_SET))


def draw(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Accuracy as bars, and the paired difference from the full method with its 95 % interval."""
    names = [NAMES.get(label, label.replace("no_", "w/o ")) for label in table["method"]]
    figure, (bars, gaps) = new_figure(2)
    bars.bar(names, table["accuracy"], yerr=table["accuracy_sd"], color="tab:blue")
    bars.set(ylabel="test accuracy (%)")
    gaps.axhline(0, color="black", linewidth=0.8)
    gaps.errorbar(names, table["difference"], yerr=table["high"] - table["difference"], fmt="o", capsize=3)
    gaps.set(ylabel="difference from MFedPBA (points), 95 %")
    for axis in (bars, gaps):
        axis.tick_params(axis="x", rotation=45)
    save_figure(figure, path)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_figure7")) -> None:
    """Figure 7: the ablations of MFedPBA; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    require("matplotlib")
    (run,) = run_cases([case(scale)], folder).values()
    table = scores([run], REFERENCE)
    explain(scale)
    publish(f"Figure 7: {DATA_SET}, {PARTITION}", shown(table, REFERENCE), table, folder / "figure7.csv")
    print(f"{HEADING}: {published.REMARKS['figure7']}")
    draw(table, folder / "figure7.svg")


if __name__ == "__main__":
    start(main)
