"""Figure 4 of Flux: what the fused temperature follows, and what tempering does to the shared model."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import Case, new_figure, require, run_cases, save_figure, start
from experiments.flux import Scale, left_out, one_data_set, prepare, sensing_case
from experiments.flux_tau import client_inputs, sample_taus
from experiments.published import HEADING
from experiments.tables import publish, spread
from fedjax_mm.methods.flux import Flux

PRIVATE, BOTH = "private_only", "shared_private"
METHODS = {PRIVATE: Flux(diagnostics=True), BOTH: Flux(temper="both", diagnostics=True)}
PLACEMENT = "high,high"
"""The regime under which both are trained; under the others the first alone."""
SPLIT = "validation"
STABILITY = ("gradient_fusion", "gradient_head", "drift")
SETTLED = 0.25
"""The share of the rounds that the paper's "initial rounds" are taken to be."""


def cases(scale: Scale) -> list[Case]:
    """A case for each regime. Tempering both paths may diverge: such updates are left out, and counted."""
    data = one_data_set()
    return [
        sensing_case(
            data,
            regime,
            scale,
            METHODS if regime == PLACEMENT else {PRIVATE: METHODS[PRIVATE]},
            label="diagnostics",
            nonfinite="skip",
        )
        for regime in scale.tempering
    ]


def terms(runs: Mapping[Case, fmm.Run]) -> pd.DataFrame:
    """tau_f and stability over the rounds of training: `H,I`, `method`, `seed`, `round`, `metric`, `value`."""
    tables = []
    for case, run in runs.items():
        table = run.rounds().query("split == 'train'")
        table = table.query("metric.str.startswith('tau') or metric in @STABILITY").drop(columns=["task", "split"])
        tables.append(table.assign(**{"H,I": case.options["missing"]}))
    return pd.concat(tables, ignore_index=True)


def of_clients(case: Case, run: fmm.Run) -> pd.DataFrame:
    """A client's validation samples after the last round, mean tau_f and macro-F1.

    Returns:
        A row per client: `H,I`, `seed`, `client`, `tau`, of how many samples it is `undefined`, and `f1`.
    """
    scored = run.clients().query("method == @PRIVATE and split == @SPLIT and metric == 'macro_f1'")
    scored = scored.query("round == round.max()")
    f1 = dict(zip(zip(scored["seed"], scored["client"], strict=True), scored["value"], strict=True))
    rows = []
    for seed in run.seeds:
        federation = case.federation(seed)
        size = int(federation.table(SPLIT).sizes.max())
        for client, name in enumerate(federation.clients):
            inputs, seen = client_inputs(federation, client, SPLIT)
            if len(seen):
                tau = sample_taus(run, client, inputs, seen, method=PRIVATE, seed=seed, size=size)
                entry = {"seed": seed, "client": name, "tau": float(np.nanmean(tau)), "f1": f1[seed, name]}
                rows.append(entry | {"undefined": int(np.isnan(tau).sum())})
    return pd.DataFrame(rows).assign(**{"H,I": case.options["missing"]})


def correlations(clients: pd.DataFrame) -> pd.DataFrame:
    """Spearman's rho of tau_f and validation F1 over clients and regimes, seed by seed: `seed`, `rho`, `p`, `n`.

    A client stands once for each regime: p takes them for independent, which they are not.
    """
    rows = []
    for seed, table in clients.groupby("seed"):
        found: Any = stats.spearmanr(table["tau"], table["f1"])
        rows.append({"seed": seed, "rho": float(found.statistic), "p": float(found.pvalue), "n": len(table)})
    return pd.DataFrame(rows)


def temperatures_by_regime(table: pd.DataFrame) -> pd.DataFrame:
    """tau_f at the last round, of all samples and by the number of observed modalities, as text."""
    own = table.query("method == @PRIVATE and round == round.max() and metric.str.startswith('tau')")
    found = own.groupby(["H,I", "metric"], sort=False)["value"].agg(["mean", "std"]).reset_index()
    cells = found.assign(text=spread(found["mean"], found["std"], 4))
    return cells.pivot(index="H,I", columns="metric", values="text").fillna("").rename_axis(None, axis=1).reset_index()


def stability(table: pd.DataFrame) -> pd.DataFrame:
    """Gradient norms and drift by what is tempered: a seed's mean and SD over the rounds after the first quarter.

    Returns:
        `method`, `metric`, `seed`, `mean`, `std`.
    """
    late = table.query("`H,I` == @PLACEMENT and metric in @STABILITY and round > @SETTLED * round.max()")
    return late.groupby(["method", "metric", "seed"], sort=False)["value"].agg(["mean", "std"]).reset_index()


def stability_text(found: pd.DataFrame) -> pd.DataFrame:
    """`stability` over the seeds, as text."""
    table = found.groupby(["method", "metric"], sort=False, as_index=False).agg(
        level=("mean", "mean"), level_sd=("mean", "std"), spread=("std", "mean"), spread_sd=("std", "std")
    )
    return pd.DataFrame(
        {
            "method": table["method"],
            "quantity": table["metric"],
            "mean over rounds": spread(table["level"], table["level_sd"], 4),
            "SD over rounds": spread(table["spread"], table["spread_sd"], 4),
        }
    )


def draw(table: pd.DataFrame, clients: pd.DataFrame, path: pathlib.Path) -> None:
    """tau_f by round and regime and by observed count, client by client, and gradients and drift by tempering."""
    figure, axes = new_figure(6)
    for regime, part in table.query("method == @PRIVATE").groupby("H,I", sort=False):
        label = str(regime)
        _curve(axes[0], part.query("metric == 'tau'"), label)
        last = part.query("metric.str.startswith('tau_of_') and round == round.max()")
        counts = last["metric"].str.removeprefix("tau_of_").astype(int)
        mean = last.assign(count=counts).groupby("count")["value"].agg(["mean"]).reset_index()
        axes[1].plot(mean["count"], mean["mean"], marker="o", label=label)
        points = clients.query("`H,I` == @label")
        axes[2].scatter(points["tau"], points["f1"], s=12, label=label)
    axes[0].set(xlabel="round", ylabel="tau_f in training", yscale="log")
    axes[1].set(xlabel="observed modalities", ylabel="tau_f in the last round")
    axes[2].set(xlabel="tau_f of a client", ylabel="macro-F1 on validation data")
    axes[0].legend(title="H,I")
    for axis, metric in zip(axes[3:], STABILITY, strict=True):
        for method, part in table.query("`H,I` == @PLACEMENT and metric == @metric").groupby("method", sort=False):
            _curve(axis, part, str(method))
        axis.set(xlabel="round", ylabel=metric.replace("_", " "), title=PLACEMENT)
    axes[3].legend()
    save_figure(figure, path)


def _curve(axis: Any, table: pd.DataFrame, label: str) -> None:
    """Mean over the seeds, and a band of one SD where there are several."""
    found = table.groupby("round")["value"].agg(["mean", "std"]).reset_index()
    axis.plot(found["round"], found["mean"], label=label, linewidth=1.4)
    axis.fill_between(found["round"], found["mean"] - found["std"], found["mean"] + found["std"], alpha=0.2)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Figure 4: tau_f, and the placement of tempering; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    require("matplotlib")
    runs = run_cases(cases(scale), folder)
    table = terms(runs)
    clients = pd.concat([of_clients(case, run) for case, run in runs.items()], ignore_index=True)
    rho, placed = correlations(clients), stability(table)
    case = next(iter(runs))
    where = f"{case.data} in the place of {case.stands_for}"
    print(f"\nMean ± sample SD over {scale.seeds} seeds. tau_of_N: of samples with N modalities.")
    for own, run in runs.items():
        print(f"Updates left out under {own.options['missing']}, not finite: {left_out(run)}.")
    last = table["round"].max()
    publish(f"Figure 4: tau_f in round {last}, {where}", temperatures_by_regime(table), table, folder / "figure4.csv")
    clients.to_csv(folder / "figure4_clients.csv", index=False)
    text = rho.assign(rho=[f"{r:+.2f}" for r in rho["rho"]], p=[f"{p:.2g}" for p in rho["p"]])
    publish(
        f"Spearman of tau_f and validation macro-F1, a point for each client and regime; p takes them for independent; "
        f"mean rho {np.mean(rho['rho']):+.2f}",
        text,
        rho,
        folder / "figure4_spearman.csv",
    )
    publish(
        f"Tempering under {PLACEMENT}, rounds after the first quarter",
        stability_text(placed),
        placed,
        folder / "figure4_tempering.csv",
    )
    print(f"{HEADING}: {published.REMARKS['figure4']}")
    draw(table, clients, folder / "figure4.svg")


if __name__ == "__main__":
    start(main)
