"""How Flux's tables and figures are measured: data, regimes, scales and cases."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import fedjax_mm as fmm
from experiments import common
from experiments import flux_published as published
from experiments.published import Cell, average
from experiments.tables import Group, Measure
from fedjax_mm.methods import Method

SENSING = {"spar": "PAMAP2", "wisdm8": "PAMAP2", "umafall": "RealWorldHAR"}
"""Health-sensing data with natural clients -> the paper's; `spar` has two modalities. Nothing stands for SleepEDF."""
ONE = ("wisdm8", "spar")
"""Where the paper takes PAMAP2 alone: the first that is there."""
CLINICAL = {"alzheimer333": "ADNI", "heart4": "ADNI", "omics92": "ADNI"}

ENCODERS = {"sensing": {"encoders": ("sensing",)}, "mlp": {"encoders": ("mlp",), "widths": ((64,),)}}
SENSING_TRAINING = {"dim": 96, "epochs": 3, "batch": 32, "optimizer": "sgd", "lr": 0.01, "participation": 0.4}
CLINICAL_TRAINING = {"dim": 96, "epochs": 1, "batch": 16, "optimizer": "adam", "lr": 1e-4, "participation": 1.0}
"""All methods train alike, with one learning rate; the paper tunes a rate for each method (Table 7)."""

REGIMES = ("hom,mod", "hom,high", "mod,mod", "mod,high", "high,mod", "high,high")
"""`H,I`: what clients lack, what their samples lack."""
MACRO_F1 = Measure("test/macro_f1/client_mean", "macro_f1")
REFERENCES = ("fedavg", "fedrod")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long and how often an experiment trains.

    Attributes:
        seeds: Number of seeds n; the seeds are 0..n-1.
        rounds: Rounds on health-sensing data.
        clinical_rounds: Rounds on clinical data: the paper's in both settings, for they take less than compiling.
        regimes: The regimes of Table 1.
        tempering: The regimes under which Figure 4 follows tau_f.
        encoder: Kind of encoder of the health-sensing data: `sensing` is the paper's 1D CNN, `mlp` a perceptron of
            64 hidden units, which without an accelerator trains many times as fast.
        eval_every: Rounds between evaluations.
    """

    seeds: int
    rounds: int
    clinical_rounds: int
    regimes: tuple[str, ...]
    tempering: tuple[str, ...]
    encoder: str
    eval_every: int = 5

    def training(self, data: str, **options: Any) -> dict[str, Any]:
        """The training options of a case on a data set; `options` come on top."""
        if data in SENSING:
            own = {"rounds": self.rounds, **ENCODERS[self.encoder], **SENSING_TRAINING}
        else:
            own = {"rounds": self.clinical_rounds, **ENCODERS["mlp"], **CLINICAL_TRAINING}
        return {"seeds": tuple(range(self.seeds)), "eval_every": self.eval_every, "model": "shared", **own, **options}


SCALES = {
    "short": Scale(
        seeds=3,
        rounds=40,
        clinical_rounds=150,
        regimes=("mod,mod", "high,high"),
        tempering=("mod,mod", "mod,high", "high,high"),
        encoder="mlp",
    ),
    "full": Scale(
        seeds=5,
        rounds=200,
        clinical_rounds=150,
        regimes=REGIMES,
        tempering=REGIMES,
        encoder="sensing",
    ),
}


def paper_methods(**flux: Any) -> dict[str, Method]:
    """Those methods of the paper's tables that the package has, in their order; with their defaults but for `flux`."""
    return common.methods_here(published.METHODS, flux=flux)


def sensing_case(
    data: str, regime: str, scale: Scale, methods: Mapping[str, Method], *, label: str = "", **training: Any
) -> common.Case:
    """A case on health-sensing data: natural clients, masks and split drawn anew for each seed (Appendix D.3)."""
    options = {"partition": "natural", "missing": regime, "missing_protocol": "sensing"}
    name = regime.replace(",", "-") + (label and f"-{label}")
    return common.Case(data, SENSING[data], name, options, methods, scale.training(data, **training), each=True)


def comparison(data: str, regime: str, scale: Scale) -> common.Case:
    """The paper's methods under a regime: a run that Tables 1, 3 and 5 share."""
    return sensing_case(data, regime, scale, paper_methods())


def one_data_set() -> str:
    """The data set of the tables that the paper has for PAMAP2 alone."""
    return common.first_there(ONE)


def beside(rows: Sequence[Mapping[str, Cell]]) -> dict[str, str]:
    """Method -> what is published in a row, or the mean over several rows."""
    if len(rows) == 1:
        return {name: str(cell) for name, cell in rows[0].items()}
    return {name: str(average([row[name] for row in rows])) for name in rows[0]}


def with_averages(groups: Sequence[Group], rows: Sequence[Mapping[str, Cell]], head: Mapping[str, str]) -> list[Group]:
    """The groups, and where there are several one more with their mean, seed by seed."""
    runs = [run for group in groups for run in group.runs]
    return [*groups, *([Group(head, runs, beside(rows))] if len(groups) > 1 else [])]


def left_out(run: fmm.Run) -> str:
    """How many clients' updates were not finite, by variant, over all rounds and seeds."""
    table = run.rounds()
    found = table[table["metric"] == "skipped"].groupby("method", sort=False)["value"].sum()
    return ", ".join(f"{label} {count:.0f}" for label, count in found.items() if count) or "none"


def prepare(setting: str, out: pathlib.Path) -> tuple[Scale, pathlib.Path]:
    """The scale of a setting, and the folder of its runs and results.

    Raises:
        UsageError: The setting is unknown.
    """
    return common.prepare(setting, out, SCALES)


def explain(scale: Scale, *, clinical: bool = False) -> None:
    """Says what the numbers of the tables are."""
    n, training = scale.seeds, CLINICAL_TRAINING if clinical else SENSING_TRAINING
    encoder, rounds = ("mlp", scale.clinical_rounds) if clinical else (scale.encoder, scale.rounds)
    print(
        "\nMean over clients of a test metric, macro-F1 over the classes present; the round is chosen on validation "
        "macro-F1, for global methods one for all clients,\nfor personal ones each client's own. Mean ± sample SD over "
        f"{n} seeds (0 to {n - 1}); each draws masks, split, initial weights and batches, the same for all methods."
        f"\nDifferences paired by seed; p of the exact sign-flip test, which with {n} seeds cannot be below "
        f"{2 / 2**n:.3g}.\nEncoder {encoder}; {rounds} rounds; for all methods, nothing tuned: "
        f"{', '.join(f'{name} {value}' for name, value in training.items())}."
    )
