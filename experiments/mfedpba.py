"""How MFedPBA's tables and figures are measured: data, scales and cases."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments import common
from experiments import mfedpba_published as published
from fedjax_mm.methods import Method


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A data set in the place of one of the paper's, with what the paper's Table 5 sets for that one.

    Attributes:
        stands_for: The paper's data set.
        rounds: Rounds T.
        dim: Width d of the feature space.
        lr: Learning rate of the clients, from the paper's range.
    """

    stands_for: str
    rounds: int
    dim: int
    lr: float


DATA = {
    "mfeat": StandIn("Youtube", rounds=400, dim=48, lr=0.01),
    "reuters1200": StandIn("Reuters", rounds=200, dim=24, lr=0.005),
    "leaves100": StandIn("Caltech101", rounds=400, dim=64, lr=0.01),
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long and how often an experiment trains.

    Attributes:
        seeds: Number of seeds n; the seeds are 0..n-1.
        rounds: Rounds; None for the paper's.
        eval_every: Rounds between evaluations.
        encoders: Kinds of encoder in the pool; None for all of the paper's Table 4, which train and compile several
            times as long as `dnn` alone.
    """

    seeds: int
    rounds: int | None
    eval_every: int
    encoders: tuple[str, ...] | None

    def training(self, data: str, **options: Any) -> dict[str, Any]:
        """The training options of a case on a data set; `options` come on top."""
        source = DATA[data]
        common = {"seeds": tuple(range(self.seeds)), "eval_every": self.eval_every, "dim": source.dim, "lr": source.lr}
        return common | {"rounds": self.rounds or source.rounds, "encoders": self.encoders} | options


SCALES = {
    "short": Scale(seeds=5, rounds=40, eval_every=5, encoders=("dnn",)),
    "full": Scale(seeds=5, rounds=None, eval_every=10, encoders=None),
}


def paper_methods() -> dict[str, Method]:
    """Those methods of the paper's tables that the package has, in their order, with their defaults."""
    return common.methods_here(published.METHODS)


def make_case(
    data: str,
    label: str,
    partition: str,
    methods: Mapping[str, Method],
    training: Mapping[str, Any],
    clients: int | None = None,
) -> common.Case:
    """A case under Dirichlet(0.5) over so many clients, by default the number of modalities."""
    options = {"partition": partition, "alpha": 0.5} | ({} if clients is None else {"clients": clients})
    return common.Case(data, DATA[data].stands_for, label, options, methods, training)


def prepare(setting: str, out: pathlib.Path) -> tuple[Scale, pathlib.Path]:
    """The scale of a setting, and the folder of its runs and results.

    Raises:
        UsageError: The setting is unknown.
    """
    return common.prepare(setting, out, SCALES)


def explain(scale: Scale) -> None:
    """Says what the numbers of the tables are."""
    n = scale.seeds
    print(
        "\nAccuracy in %, pooled over the test samples of all clients; each client at the round that is best on its "
        f"validation data.\nMean ± sample SD over {n} seeds (0 to {n - 1}), which vary initial weights and batches; "
        "one split (split seed 0) for all of them.\nDifferences in percentage points, paired by seed; p of the exact "
        f"sign-flip test, which with {n} seeds cannot be below {2 / 2**n:.3g}.\nEncoders drawn from: "
        f"{', '.join(scale.encoders) if scale.encoders else 'the whole pool'}."
    )
