"""Table 4 of Flux: the fused temperature of noisy inputs, with all modalities observed."""

import pathlib
from collections.abc import Mapping

import numpy as np
import pandas as pd

import fedjax_mm as fmm
from experiments import flux_published as published
from experiments.common import Case, run_cases, start
from experiments.flux import Scale, one_data_set, prepare, sensing_case
from experiments.flux_tau import client_inputs, sample_taus
from experiments.published import HEADING
from experiments.tables import publish, spread
from fedjax_mm.methods.flux import Flux

REGIME = "hom,none"
ALPHAS = (0.0, 0.5, 0.9)
PARTS = 4
"""The table looks after each quarter of the rounds."""
METHOD = "flux"
SPLIT = "test"


def cases(scale: Scale) -> dict[Case, int]:
    """The rows, and the rounds of each: a run to a quarter of the rounds is the start of the longer ones."""
    data, methods = one_data_set(), {METHOD: Flux()}
    return {
        sensing_case(data, REGIME, scale, methods, label=f"round{last}", rounds=last, eval_every=last): last
        for last in (scale.rounds * part // PARTS for part in range(1, PARTS + 1))
    }


def measure(case: Case, run: fmm.Run) -> pd.DataFrame:
    """Mean tau_f over the test samples of all clients: `alpha`, `seed`, `tau`, and of how many it is `undefined`."""
    rows = []
    for seed in run.seeds:
        federation = case.federation(seed)
        size = int(federation.table(SPLIT).sizes.max())
        for alpha in ALPHAS:
            taus = [
                sample_taus(
                    run, client, *client_inputs(federation, client, SPLIT, alpha), method=METHOD, seed=seed, size=size
                )
                for client in range(federation.size)
            ]
            tau = np.concatenate(taus)
            undefined = int(np.isnan(tau).sum())
            rows.append({"alpha": alpha, "seed": seed, "tau": float(np.nanmean(tau)), "undefined": undefined})
    return pd.DataFrame(rows)


def shown(tables: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Round by round: mean and SD of tau_f over the seeds for each alpha, and the paper's row at the same quarter."""
    rows = []
    for (last, table), ((at,), printed) in zip(tables.items(), published.TABLE4.items(), strict=True):
        by_seed = table.pivot(index="seed", columns="alpha", values="tau")
        cells = spread(by_seed.mean(), by_seed.std(), 4)
        row = {"round": str(last)} | {f"alpha {alpha:g}": cell for alpha, cell in zip(by_seed, cells, strict=True)}
        rising = int((by_seed.diff(axis=1).iloc[:, 1:] > 0).all(axis=1).sum())
        row["rises with alpha"] = f"{rising} of {len(by_seed)} seeds"
        rows.append(row | {HEADING: f"{', '.join(map(str, printed.values()))} (round {at})"})
    return pd.DataFrame(rows)


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/flux")) -> None:
    """Table 4: tau_f under input corruption; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    asked = cases(scale)
    tables = {asked[case]: measure(case, run) for case, run in run_cases(list(asked), folder).items()}
    case = next(iter(asked))
    print(
        f"\nMean tau_f over the {SPLIT} samples of all clients, mean ± sample SD over {scale.seeds} seeds; all "
        "modalities observed. Noise of alpha times the standard deviation of a client's training data is added to them."
    )
    table = pd.concat([found.assign(round=last) for last, found in tables.items()])
    publish(f"Table 4: {case.data} in the place of {case.stands_for}", shown(tables), table, folder / "table4.csv")


if __name__ == "__main__":
    start(main)
