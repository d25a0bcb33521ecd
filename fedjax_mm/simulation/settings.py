"""How a federation is trained: every option that is not the federation's and not the method's."""

import dataclasses
import re
from typing import Any

import jax.numpy as jnp

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.models.encoders import ENCODERS, POOL
from fedjax_mm.models.fusion import ATTENTION, FUSION_NAMES

EXECUTORS = ("auto", "vmap", "map", "lockstep", "debug")
CHUNK = re.compile(r"chunk:([1-9]\d*)")
PRECISIONS = {"float32": jnp.float32, "float64": jnp.float64}
BY_MODEL = {
    "pool": {"encoders": POOL, "fusion": "sum", "epochs": 2, "batch": 12, "select": "accuracy"},
    "shared": {"encoders": ("dnn",), "fusion": ATTENTION, "epochs": 3, "batch": 32, "select": "macro_f1"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Training options. None means "what the model setting says"; `resolved` fills it in.

    Attributes:
        rounds: Rounds R, at least 1.
        eval_every: Rounds between evaluations, at least 1; the last block may be shorter.
        seeds: Seeds, distinct, at least 0.
        participation: A float is a rate: max(1, round(rate * K)) clients a round; an int a count.
        model: `pool` (own encoder per client and modality) or `shared` (one per modality).
        encoders: Kinds of encoder, of which each modality takes those that apply: `dnn` (any data), `cnn1d` (all but
            images), `cnn2d` (images), `textcnn` (language), `resmodel` (audio, time series, vectors), `dnn_bn` (all but
            text), `mlp` (any data), `sensing` (time series). From the pool each client draws one of them, the shared
            model takes the first.
        pool_size: Distinct architectures per modality in the pool, at least 1; None for any that may be drawn.
        widths: Hidden widths of the encoders: those of one joined by -, several separated by commas, none for no hidden
            layer (`none,` for that alone). From the pool each client draws one, the shared model takes the first; None
            for those of the model.
        dim: Width d of the shared feature space.
        fusion: `sum`, `mean`, `concat` or `attention`; by default the pool's is `sum`, the shared model's `attention`.
        epochs: Local epochs E.
        batch: Local batch size B.
        drop_last: True leaves out a last partial batch, as the PyTorch libraries do; by default it is kept and masked.
        optimizer: `sgd` or `adam`.
        lr: Learning rate.
        momentum: Momentum of `sgd`, in [0, 1).
        weight_decay: Factor of the parameters added to the gradient.
        clip: Largest Euclidean norm of an optimiser group's gradient; None for no clipping.
        optimizer_state: `reset` each round or `keep`.
        statistics: BatchNorm statistics of shared modules: `average` or `local`; None leaves it to the method.
        nonfinite: What happens where a client's result or the server step is not finite: `stop` the run, or `skip`,
            that is, leave it out and count it. A score that is not finite counts as a wrong prediction.
        select: Validation metric that selects a round: `accuracy` (pooled) or `macro_f1` (client mean).
        executor: How lanes are run: `auto`, `vmap`, `map`, `lockstep`, `chunk:N` (N lanes of one shape at a time) or
            `debug`.
        devices: The most devices to divide lanes among, at least 1; None for all there are.
        client_state: Where clients' own networks and states are between blocks of rounds: `device`, or `host`, from
            where those of the next cohorts are fetched. `host` needs clients of one shape.
        precision: `float32` or `float64`.
    """

    rounds: int = 100
    eval_every: int = 10
    seeds: tuple[int, ...] = (0,)
    participation: float | int = 1.0
    model: str | None = None
    encoders: tuple[str, ...] | None = None
    pool_size: int | None = None
    widths: tuple[tuple[int, ...], ...] | None = None
    dim: int = 48
    fusion: str | None = None
    epochs: int | None = None
    batch: int | None = None
    drop_last: bool = False
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer_state: str = "reset"
    statistics: str | None = None
    nonfinite: str = "stop"
    select: str | None = None
    executor: str = "auto"
    devices: int | None = None
    client_state: str = "device"
    precision: str = "float32"

    def resolved(self, partition: str, clients: int) -> "Settings":
        """Fills in what depends on the federation and checks every value.

        Args:
            partition: The federation's partition.
            clients: The number of clients K.

        Returns:
            Settings without None but for `clip`, `pool_size`, `widths` and `statistics`.

        Raises:
            UsageError: A value is unknown or out of range.
        """
        model = self.model or ("pool" if partition in ("m1", "m2", "m1+") else "shared")
        defaults = BY_MODEL[choose("model", model, BY_MODEL)]
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        settings = dataclasses.replace(self, model=model, **missing)
        _check_names(settings)
        _check_ranges(settings)
        settings.cohort(clients)
        return settings

    def cohort(self, clients: int) -> int:
        """The number of clients in a round.

        Raises:
            UsageError: The participation is not above 0, or above the number of clients.
        """
        value = self.participation
        rate = isinstance(value, float)
        if not 0 < value <= (1.0 if rate else clients):
            limit = "a rate in (0, 1]" if rate else f"a count from 1 to the {clients} clients"
            raise UsageError(f"participation is {value}, must be {limit} (a decimal point makes a rate)")
        return max(1, round(value * clients)) if rate else int(value)

    @property
    def dtype(self) -> Any:
        """The floating dtype of parameters and features."""
        return PRECISIONS[self.precision]


def structure(settings: Settings) -> Settings:
    """The settings without the numbers that are arguments of a compiled program."""
    return dataclasses.replace(settings, lr=0.0, momentum=0.0, weight_decay=0.0, clip=None)


def _check_names(settings: Settings) -> None:
    choose("fusion", settings.fusion or "", FUSION_NAMES)
    choose("optimizer", settings.optimizer, ("sgd", "adam"))
    choose("optimizer_state", settings.optimizer_state, ("reset", "keep"))
    choose("nonfinite policy", settings.nonfinite, ("stop", "skip"))
    choose("selection metric", settings.select or "", ("accuracy", "macro_f1"))
    if not CHUNK.fullmatch(settings.executor):
        choose("executor", settings.executor, (*EXECUTORS, "chunk:N"))
    choose("client_state", settings.client_state, ("device", "host"))
    choose("precision", settings.precision, PRECISIONS)
    if settings.statistics is not None:
        choose("statistics rule", settings.statistics, ("average", "local"))
    for kind in settings.encoders or ():
        choose("encoder", kind, ENCODERS)


def _check_ranges(settings: Settings) -> None:
    rules = {
        "rounds": (settings.rounds >= 1, "at least 1"),
        "eval_every": (settings.eval_every >= 1, "at least 1"),
        "seeds": (
            len(settings.seeds) > 0
            and len(set(settings.seeds)) == len(settings.seeds)
            and all(0 <= seed < 2**32 for seed in settings.seeds),
            "at least one, distinct, from 0 to 2^32 - 1",
        ),
        "encoders": (len(settings.encoders or ()) > 0, "at least one"),
        "pool_size": (settings.pool_size is None or settings.pool_size >= 1, "at least 1, or left out"),
        "widths": (
            settings.widths is None
            or (
                len(settings.widths) > 0
                and len(set(settings.widths)) == len(settings.widths)
                and all(width >= 1 for hidden in settings.widths for width in hidden)
            ),
            "at least one, distinct, each width at least 1, or left out",
        ),
        "dim": (settings.dim >= 1, "at least 1"),
        "epochs": ((settings.epochs or 0) >= 1, "at least 1"),
        "devices": (settings.devices is None or settings.devices >= 1, "at least 1, or left out"),
        "batch": ((settings.batch or 0) >= 1, "at least 1"),
        "lr": (0 <= settings.lr < float("inf"), "finite and at least 0"),
        "momentum": (0 <= settings.momentum < 1, "in [0, 1)"),
        "weight_decay": (0 <= settings.weight_decay < float("inf"), "finite and at least 0"),
        "clip": (settings.clip is None or 0 < settings.clip < float("inf"), "above 0, or left out"),
    }
    for name, (right, rule) in rules.items():
        if not right:
            raise UsageError(f"{name} is {getattr(settings, name)}, must be {rule}")
