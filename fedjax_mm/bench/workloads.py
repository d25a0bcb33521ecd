"""What is timed: federations of synthetic data, with a method and its settings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_mm.data import MultimodalDataset
from fedjax_mm.federation import Federation
from fedjax_mm.federation.federation import IndexTable
from fedjax_mm.federation.modalities import hold_modalities
from fedjax_mm.seeding import generator

HELD_OUT = 100
"""Samples to validate on, and as many to test on; each client has one of either, so that evaluating costs little."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One line of the benchmark's table.

    Attributes:
        name: Its name.
        what: What is done, in words.
        method: Name of the method.
        options: Its options.
        settings: Settings by name, as `fedjax_mm.simulation.settings.Settings` takes them.
        inputs: Modality -> shape of one input.
        partition: Who holds what, as in `federate`.
        pool: Samples that clients index.
        samples: Training samples of a client, equal for all.
        lanes: Rounds of one client that a timed block holds, about; a block has 1 to 20 rounds.
        clients: Number of clients where none is asked for.
        seeds: Numbers of seeds where none is asked for.
        references: The PyTorch variants that do the same work.
        kind: What all its modalities are.
        classes: The number of classes C.
    """

    name: str
    what: str
    method: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    partition: str
    pool: int
    samples: int
    lanes: int
    clients: int
    seeds: tuple[int, ...] = (1,)
    references: tuple[str, ...] = ()
    kind: str = "vector"
    classes: int = 10

    def rounds(self, clients: int, seeds: int) -> int:
        """The rounds of a timed block; an evaluation ends it."""
        return int(np.clip(self.lanes // (clients * seeds), 1, 20))


W1 = Workload(
    name="W1",
    what="FedAvg, MLP 784-128-10, 80 samples of a pool of 60,000, batch 10, 2 epochs",
    method="fedavg",
    options={},
    settings={"encoders": ("mlp",), "widths": ((),), "dim": 128, "batch": 10, "epochs": 2},
    inputs={"x": (784,)},
    partition="all",
    pool=60_000,
    samples=80,
    lanes=1000,
    clients=100,
    references=("torch-loop", "torch-vmap", "torch-bmm"),
)
W2 = dataclasses.replace(
    W1,
    name="W2",
    what="FedProto, MLPs 784-64-10, 784-128-64-10 and 784-256-128-64-10, data as in W1",
    method="fedproto",
    settings={**W1.settings, "widths": ((), (128,), (256, 128)), "dim": 64},
    references=("torch-loop", "torch-vmap"),
)
W3 = Workload(
    name="W3",
    what="MFedPBA without server steps, six modalities in random subsets, DNNs of depth 2-5 and width 64-128, batch 12",
    method="mfedpba",
    options={"server_steps": 0},
    settings={"encoders": ("dnn",), "dim": 48, "batch": 12, "epochs": 2},
    inputs={"a": (2000,), "b": (1024,), "c": (64,), "d": (512,), "e": (64,), "f": (647,)},
    partition="m1+",
    pool=7200,
    samples=72,
    lanes=200,
    clients=20,
    references=("torch-loop",),
)
W3S = dataclasses.replace(
    W3, name="W3s", what="W3 with ten server steps a round", options={"server_steps": 10}, references=()
)
W4 = Workload(
    name="W4",
    what="FedAvg, six streams of 200 x 3, 1-D CNNs and masked attention, 96 samples, batch 32",
    method="fedavg",
    options={},
    settings={"model": "shared", "encoders": ("sensing",), "fusion": "attention", "dim": 96, "batch": 32, "epochs": 1},
    inputs=dict.fromkeys("abcdef", (200, 3)),
    partition="all",
    pool=4800,
    samples=96,
    lanes=8,
    clients=8,
    references=("torch-loop",),
    kind="time-series",
    classes=12,
)
W5 = dataclasses.replace(W3, name="W5", what="W3 with 1, 5 and 20 seeds at once", seeds=(1, 5, 20))
WORKLOADS = {workload.name: workload for workload in (W1, W2, W3, W3S, W4, W5)}


def make_federation(workload: Workload, clients: int) -> Federation:
    """The federation of a workload: the same for the same arguments.

    Clients draw their samples from the pool without replacement as long as it lasts, then again from the whole pool.

    Args:
        workload: The workload.
        clients: The number of clients K.

    Returns:
        The federation, over samples of standard normal features and uniform labels.
    """
    rng = generator(0, f"benchmark {workload.method}", workload.pool)
    size, held = workload.pool + 2 * HELD_OUT, np.arange(clients) % HELD_OUT
    data = MultimodalDataset(
        name=workload.name,
        inputs={name: rng.standard_normal((size, *shape), np.float32) for name, shape in workload.inputs.items()},
        labels=rng.integers(0, workload.classes, size, np.int32),
        classes=tuple(map(str, range(workload.classes))),
        kinds=dict.fromkeys(workload.inputs, workload.kind),
        observed=np.ones((size, len(workload.inputs)), bool),
    )
    at_once = workload.pool // workload.samples
    dealt = [
        rng.permutation(workload.pool)[: at_once * workload.samples].reshape(at_once, workload.samples)
        for _ in range(-(-clients // at_once))
    ]
    return Federation(
        data=data,
        clients=tuple(map(str, range(clients))),
        holds=hold_modalities(workload.partition, clients, len(workload.inputs), seed=0),
        observed=data.observed,
        train=_table(np.sort(np.concatenate(dealt)[:clients])),
        validation=_table(workload.pool + held[:, None]),
        test=_table(workload.pool + HELD_OUT + held[:, None]),
        split_seed=0,
        settings={"partition": workload.partition},
    )


def _table(rows: np.ndarray) -> IndexTable:
    return IndexTable(rows.astype(np.int32), np.full(len(rows), rows.shape[1], np.int32))


def architectures(workload: Workload, clients: int) -> list[dict[int, tuple[int, ...]]]:
    """The encoders of every client as the package draws them: position of a modality -> widths, the input's first."""
    from fedjax_mm.models.pool import draw_encoder

    settings, features = workload.settings, list(workload.inputs.values())
    holds = hold_modalities(workload.partition, clients, len(features), seed=0)
    drawn = []
    for client in range(clients):
        specs = {
            int(m): draw_encoder(
                features[m],
                settings["dim"],
                kinds=settings["encoders"],
                split_seed=0,
                client=client,
                modality=int(m),
                widths=settings.get("widths"),
            )
            for m in np.flatnonzero(holds[client])
        }
        drawn.append({m: (*spec.shape, *spec.widths, spec.dim) for m, spec in specs.items()})
    return drawn
