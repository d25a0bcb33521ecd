"""Figure 5 of MFedPBA: the feature space of a client with three modalities, of Local and of MFedPBA."""

import pathlib
from typing import Any

import numpy as np
import pandas as pd

import fedjax_mm as fmm
from experiments import mfedpba_published as published
from experiments.common import Case, first_there, new_figure, require, run_cases, save_figure, start
from experiments.mfedpba import Scale, make_case, prepare
from experiments.published import HEADING
from experiments.tables import publish, spread
from fedjax_mm.methods.local import Local
from fedjax_mm.methods.mfedpba import MFedPBA

DATA_SETS = ("reuters1200", "mfeat")
"""The first that is there; the paper's is Reuters."""
PARTITION = "M1+"
MODALITIES = 3
METHODS = {"local": Local(), "mfedpba": MFedPBA()}
MARKERS = ("o", "^", "s", "D", "v")
PERPLEXITY = 30.0


def case(scale: Scale) -> Case:
    """The run of the figure."""
    data = first_there(DATA_SETS)
    return make_case(data, PARTITION, PARTITION.lower(), METHODS, scale.training(data))


def choose_client(federation: fmm.Federation) -> int:
    """The client whose number of modalities is nearest to three, of several the one with most training samples."""
    gap = np.abs(federation.holds.sum(axis=1) - MODALITIES)
    return int(np.lexsort((-federation.train.sizes, gap))[0])


def features(run: fmm.Run, federation: fmm.Federation, client: int, method: str, seed: int) -> pd.DataFrame:
    """What a client's encoders make of its training samples.

    Returns:
        A row per modality and sample that has it: `modality`, `class`, `kind` = `sample`, and the d entries of
        f_k^m(x) under 0..d-1; then one per modality and class, `kind` = `prototype`, with their mean E_{k,c}^m (Eq. 2).
    """
    data, rows = federation.data, federation.train.of(client)
    held = [j for j in range(len(data.modalities)) if federation.holds[client, j]]
    found = run.features(
        client, {data.modalities[j]: data.inputs[data.modalities[j]][rows] for j in held}, method=method, seed=seed
    )
    tables = []
    for j in held:
        modality, seen = data.modalities[j], federation.observed[rows, j]
        labels = [data.classes[y] for y in data.labels[rows][seen]]
        tables.append(pd.DataFrame(found[modality][seen]).assign(modality=modality, kind="sample", **{"class": labels}))
    samples = pd.concat(tables, ignore_index=True)
    prototypes = samples.drop(columns="kind").groupby(["modality", "class"], sort=False).agg("mean").reset_index()
    return pd.concat([samples, prototypes.assign(kind="prototype")], ignore_index=True)


def vectors(table: pd.DataFrame) -> np.ndarray:
    """The feature entries of the table's rows, `[n, d]`."""
    return table[[name for name in table.columns if isinstance(name, int)]].to_numpy()


def project(table: pd.DataFrame) -> pd.DataFrame:
    """t-SNE of samples and prototypes of all modalities together: `modality`, `class`, `kind`, `x`, `y`."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(table) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(vectors(table))
    return table[["modality", "class", "kind"]].assign(x=points[:, 0], y=points[:, 1])


def separation(table: pd.DataFrame) -> dict[str, float]:
    """Silhouettes of the samples in the feature space: of `classes`, mean over modalities, and of `modalities`."""
    from sklearn.metrics import silhouette_score

    samples = table.query("kind == 'sample'")
    by_modality = [
        silhouette_score(vectors(part), part["class"])
        for _, part in samples.groupby("modality")
        if 1 < len(set(part["class"])) < len(part)
    ]
    several = len(set(samples["modality"])) > 1
    return {
        "classes": float(np.mean(by_modality)) if by_modality else np.nan,
        "modalities": float(silhouette_score(vectors(samples), samples["modality"])) if several else np.nan,
    }


def draw(panels: dict[str, pd.DataFrame], path: pathlib.Path) -> None:
    """One panel a method: a colour per class, a marker per modality, prototypes large and framed."""
    figure, axes = new_figure(len(panels), width=5, height=4.6)
    for axis, (title, table) in zip(axes, panels.items(), strict=True):
        colours = {name: f"C{position}" for position, name in enumerate(sorted(table["class"].unique()))}
        for marker, (modality, part) in zip(MARKERS, table.groupby("modality", sort=False), strict=False):
            for kind, look in (("sample", {"s": 8, "alpha": 0.5}), ("prototype", {"s": 90, "edgecolor": "black"})):
                points = part[part["kind"] == kind]
                label: Any = modality if kind == "prototype" else None
                axis.scatter(
                    points["x"],
                    points["y"],
                    c=[colours[name] for name in points["class"]],
                    marker=marker,
                    label=label,
                    **look,
                )
        axis.set(title=title, xticks=[], yticks=[])
    axes[0].legend(title="modality (colours: classes)")
    save_figure(figure, path)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_figure5")) -> None:
    """Figure 5: t-SNE of a client's features under Local and MFedPBA; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    require("matplotlib", "sklearn")
    ((asked, run),) = run_cases([case(scale)], folder).items()
    federation = asked.federation()
    client = choose_client(federation)
    spaces = {method: [features(run, federation, client, method, seed) for seed in run.seeds] for method in METHODS}
    numbers = pd.concat(
        [
            pd.DataFrame([{"method": method, "seed": seed, **separation(space)}])
            for method, found in spaces.items()
            for seed, space in zip(run.seeds, found, strict=True)
        ]
    )
    means, stds = (
        getattr(numbers.drop(columns="seed").groupby("method", sort=False), name)() for name in ("mean", "std")
    )
    text = pd.DataFrame({"method": means.index} | {name: spread(means[name], stds[name]) for name in means})
    held = int(federation.holds[client].sum())
    print(
        f"\nSilhouette in [-1, 1] of the training features of client {federation.clients[client]} ({held} modalities), "
        f"mean ± sample SD over {scale.seeds} seeds: of its classes within a modality (compact clusters: high), and of "
        "its modalities (apart: high)."
    )
    publish(f"Figure 5: {asked.data}, {PARTITION}", text, numbers, folder / "figure5_silhouettes.csv")
    print(f"{HEADING}: {published.REMARKS['figure5']}")
    panels = {method: project(found[0]) for method, found in spaces.items()}
    points = pd.concat([panel.assign(method=method) for method, panel in panels.items()])
    points.to_csv(folder / "figure5.csv", index=False)
    draw(panels, folder / "figure5.svg")


if __name__ == "__main__":
    start(main)
