"""Figure 5 of Flux: who observes what."""

import pathlib

import numpy as np
import pandas as pd

import fedjax_mm as fmm
from experiments.common import new_figure, prepare, require, save_figure, start
from experiments.flux import REGIMES, one_data_set
from experiments.tables import publish
from fedjax_mm.federation.missingness import recordings

SETTINGS = {"short": REGIMES, "full": REGIMES}
"""Nothing is trained: both are the same."""
BINS = 100
"""Columns of the picture: a client's samples along its recording, from the first to the last, in so many bins."""


def picture(federation: fmm.Federation) -> np.ndarray:
    """The share of samples with a modality, float64 `[K * M, BINS]`, client after client; NaN where it lacks it.

    Samples are those of train, validation and test, in the order they were recorded.
    """
    rows = []
    for client in range(federation.size):
        samples = np.sort(np.concatenate([federation.table(s).of(client) for s in ("train", "validation", "test")]))
        along, _ = recordings(federation.data, samples)
        # A bin holds at least one sample: with fewer samples than bins, neighbours show the same one.
        first = np.arange(BINS) * len(along) // BINS
        end = np.maximum(first + 1, (np.arange(BINS) + 1) * len(along) // BINS)
        for m, has in enumerate(federation.holds[client]):
            seen = federation.observed[along, m]
            rows.append([seen[a:b].mean() if has else np.nan for a, b in zip(first, end, strict=True)])
    return np.array(rows)


def rates(federations: dict[str, fmm.Federation]) -> pd.DataFrame:
    """Realised shares of missing modalities and counts of repairs: a row per regime."""
    rows = []
    for regime, federation in federations.items():
        shares = {
            f"{axis}, {stage}": share
            for axis, stages in federation.missing_rates.items()
            for stage, share in stages.items()
        }
        rows.append({"H,I": regime, **shares, **federation.counts})
    return pd.DataFrame(rows).fillna(0)


def draw(federations: dict[str, fmm.Federation], path: pathlib.Path) -> None:
    """One panel a regime: a row for each client and modality; dark: observed, light: missing, white: not held."""
    federation = next(iter(federations.values()))
    m = len(federation.data.modalities)
    figure, axes = new_figure(len(federations), width=3.2, height=1 + 0.1 * m * federation.size)
    for axis, (regime, one) in zip(axes, federations.items(), strict=True):
        axis.imshow(picture(one), aspect="auto", interpolation="nearest", cmap="Blues", vmin=-0.3, vmax=1)
        axis.hlines(np.arange(1, one.size) * m - 0.5, -0.5, BINS - 0.5, color="black", linewidth=0.5)
        axis.set(title=f"({regime})", xticks=[], xlabel="samples along the recording")
        axis.set_yticks(np.arange(one.size) * m + (m - 1) / 2, one.clients)
    axes[0].set(ylabel=f"client, each with {', '.join(federation.data.modalities)}")
    save_figure(figure, path)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Figure 5: the masks of split seed 0; SETTING is short or full, which are the same here."""
    regimes, folder = prepare(setting, out, SETTINGS)
    require("matplotlib")
    data = fmm.load_data(one_data_set())
    federations = {
        regime: fmm.federate(data, partition="natural", missing=regime, missing_protocol="sensing", split_seed=0)
        for regime in regimes
    }
    table = rates(federations)
    text = table.loc[:, [name for name in table if not name.endswith("natural")]].round(3)
    publish(f"Figure 5: {data.name}, split seed 0, shares of missing modalities", text, table, folder / "figure5.csv")
    draw(federations, folder / "figure5.svg")


if __name__ == "__main__":
    start(main)
