"""What a method is made of: modules and their owners, optimiser groups, stages and phases, uploads."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.models.fusion import ATTENTION, AttentionSpec
from fedjax_mm.models.networks import NetworkSpec

SHARES = ("private", "mean")
WEIGHTS = ("samples", "everyone", "uniform")
BLOCKS = {"partial": "samples", "naive": "everyone"}
"""What a modality's networks are averaged over: those who trained them, or everyone with untrained copies -> weight."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Static facts about a federation that shape a method's networks.

    Attributes:
        modalities: The M modality names.
        classes: The number of classes C.
        clients: The number of clients K.
        dim: Width d of the shared feature space.
        fusion: How modality features become one: `sum`, `mean`, `concat` or `attention`.
        model: `pool` (an own encoder per client and modality) or `shared` (one per modality).
        head: The network from the fused feature to the C logits.
        rounds: Rounds R of the run.
        epochs: Local epochs E of a phase that names none.
    """

    modalities: tuple[str, ...]
    classes: int
    clients: int
    dim: int
    fusion: str
    model: str
    head: NetworkSpec
    rounds: int
    epochs: int

    @property
    def fused(self) -> int:
        """Width of the fused feature."""
        return self.dim * len(self.modalities) if self.fusion == "concat" else self.dim

    @property
    def fusion_network(self) -> NetworkSpec | None:
        """The network that fuses modality features; None where fusing has no parameters."""
        return AttentionSpec(self.dim, self.dim) if self.fusion == ATTENTION else None


@dataclasses.dataclass(frozen=True)
class Module:
    """One kind of network every client has.

    Attributes:
        network: Its architecture; None for the encoders, whose architectures come with the federation.
        share: `private` (each client keeps its own) or `mean` (the server averages; clients start from the average).
        weight: Weight of a client in that average: `samples` (training samples; for what exists per modality those that
            have it), `uniform` over the holders, or `everyone`: all training samples of every cohort member, of whom
            those without the modality send back, and are sent, a copy they did not train.
        group: Optimiser group, whose gradient is clipped as one.
        statistics: BatchNorm statistics of a shared module: `average` with its parameters or `local`.
        per_modality: Whether each client has one for each of its modalities, all of one architecture.
            `Lane.apply` then runs all M at once, with a leading axis `[M]` on every input and on the output.
        start: Another module of the same architecture, whose initial weights it starts from; None for its own.
    """

    network: NetworkSpec | None
    share: str = "private"
    weight: str = "samples"
    group: str = "main"
    statistics: str = "average"
    per_modality: bool = False
    start: str | None = None

    def __post_init__(self):
        choose("share", self.share, SHARES)
        choose("weight", self.weight, WEIGHTS)
        choose("statistics rule", self.statistics, ("average", "local"))

    @property
    def by_modality(self) -> bool:
        """Whether a client has one per modality: the encoders, and what says so."""
        return self.network is None or self.per_modality


@dataclasses.dataclass(frozen=True)
class Phase:
    """Local training of some modules with one loss.

    Attributes:
        train: Names of the modules that learn; None for all. The others are frozen, their statistics too.
        epochs: Passes over the client's training data; None for the run's.
        loss: A key of `Method.losses`.
    """

    train: tuple[str, ...] | None = None
    epochs: int | None = None
    loss: str = "loss"

    def __post_init__(self):
        if self.epochs is not None and self.epochs < 0:
            raise UsageError(f"a phase of {self.epochs} epochs; it must be at least 0")

    def trained(self, modules: Iterable[str]) -> tuple[str, ...]:
        """The names of the modules that learn, of all there are."""
        return tuple(modules) if self.train is None else self.train


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive rounds with the same phases.

    Attributes:
        rounds: Its length; None for what the other stages leave.
        phases: What a client does in a round, in order.
    """

    rounds: int | None = None
    phases: tuple[Phase, ...] = (Phase(),)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A method's modules and schedule.

    Attributes:
        modules: Name -> module. `encoders` is the one without a network. `fusion`, where fusing has parameters, may be
            left out: see `with_fusion`.
        stages: The schedule.
        views: Parameter sets the encoders run with besides `current`: `download` (as received this round) and
            `previous` (as the client last finished; as received, before it ever did).
        quantities: Encoder quantities the losses need, per modality: `proximal`, the squared distance to `download`.
            With it come the parameters of the other networks in `download`, without the features of that view.
    """

    modules: Mapping[str, Module]
    stages: tuple[Stage, ...] = (Stage(),)
    views: tuple[str, ...] = ()
    quantities: tuple[str, ...] = ()

    def __post_init__(self):
        if "encoders" not in self.modules or self.modules["encoders"].network is not None:
            raise UsageError("a layout needs a module 'encoders' without a network: Module(None)")
        apart = [name for name, module in self.modules.items() if name != "encoders" and module.network is None]
        if apart:
            raise UsageError(f"module {apart[0]!r} has no network; only 'encoders' come with the federation")
        for name, module in self.modules.items():
            twin = self.modules.get(module.start or name)
            if twin is None or twin.network != module.network:
                raise UsageError(f"module {name!r} starts from {module.start!r}, no module of its architecture")
        for view in self.views:
            choose("view", view, ("download", "previous"))
        for quantity in self.quantities:
            choose("encoder quantity", quantity, ("proximal",))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """An array of which only some rows are sent; the others are masked and cost nothing.

    Attributes:
        value: `[rows, ...]`.
        present: Bool `[rows]`.
    """

    value: jax.Array
    present: jax.Array

    def filled(self) -> jax.Array:
        """The values, 0 where a row is not present."""
        present = self.present.reshape(self.present.shape + (1,) * (self.value.ndim - self.present.ndim))
        return jnp.where(present, self.value, 0)


class Upload(NamedTuple):
    """What a client sends besides shared modules, and what it keeps.

    Attributes:
        mean: Name -> (leaf, weight): averaged on the way, weight a scalar, 0 for "nothing to say".
        stack: Leaves the server sees one by one.
        state: The client's new state, which stays where it is.
    """

    mean: Mapping[str, tuple[Any, jax.Array]] = {}
    stack: Any = {}  # noqa: RUF012
    state: Any = {}  # noqa: RUF012


def shared_model(spec: Spec, *, encoders: str, head: str, fusion: str | None = None, blocks: str = "partial") -> Layout:
    """The plain layout: encoders, one head and, where it has parameters, the fusion, each with its share.

    Args:
        spec: The federation.
        encoders: Share of the encoders.
        head: Share of the head.
        fusion: Share of the fusion; None for the head's.
        blocks: Over whom encoders are averaged, where they are: a key of `BLOCKS`.

    Returns:
        The layout.
    """
    modules = {"encoders": Module(None, share=encoders, weight=BLOCKS[blocks]), "head": Module(spec.head, share=head)}
    if fusion is not None and spec.fusion_network is not None:
        modules["fusion"] = Module(spec.fusion_network, share=fusion)
    return Layout(modules)


def with_fusion(layout: Layout, spec: Spec) -> Layout:
    """The layout with a module `fusion`, where fusing has parameters and the layout names none.

    It goes with the head: same share, weight and optimiser group, and it learns in the phases in which the head does.
    Where there is no module `head`, it goes with the encoders.

    Args:
        layout: A method's layout.
        spec: The federation.

    Returns:
        The layout.
    """
    if spec.fusion_network is None or "fusion" in layout.modules:
        return layout
    leader = "head" if "head" in layout.modules else "encoders"
    fusion = dataclasses.replace(layout.modules[leader], network=spec.fusion_network)

    def joined(phase: Phase) -> Phase:
        if phase.train is None or leader not in phase.train:
            return phase
        return dataclasses.replace(phase, train=(*phase.train, "fusion"))

    stages = [dataclasses.replace(stage, phases=tuple(map(joined, stage.phases))) for stage in layout.stages]
    return dataclasses.replace(layout, modules={**layout.modules, "fusion": fusion}, stages=tuple(stages))
