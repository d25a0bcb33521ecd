"""The contract between a federated method and the engine.

A method is written for *one* lane (one client of one seed) and one batch; the engine stacks, masks, trains, averages,
evaluates and counts bytes. Float fields of a method are leaves of a pytree: they are arguments of the compiled program,
so changing or sweeping them compiles nothing. Every other field is structure.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Layout, Spec, Stage, Upload, shared_model
from fedjax_mm.objectives.supervised import cross_entropy

Array = jax.Array
Tree = Any
Terms = dict[str, tuple[Array, Array]]
"""Name -> (sum, weight): what is reported is the sum of sums over the sum of weights."""


class Info(NamedTuple):
    """What is known of one client.

    Attributes:
        id: Client id, int32 scalar in 0..K-1.
        task: Task id, int32 scalar.
        modalities: Bool `[M]`, True where the client holds the modality.
        counts: Training samples per class, int32 `[C]`.
        n: Training samples, int32 scalar.
        n_m: Training samples that have the modality, int32 `[M]`.
    """

    id: Array
    task: Array
    modalities: Array
    counts: Array
    n: Array
    n_m: Array


class Batch(NamedTuple):
    """One batch of one client; entries that are not valid are zero and count for nothing.

    Attributes:
        y: Class ids, int32 `[B]`.
        valid: Bool `[B]`, False for padding.
        observed: Bool `[M, B]`, True where the sample has the modality; never True for padding.
        index: Rows of the data set, int32 `[B]`, one past the last row for padding.
    """

    y: Array
    valid: Array
    observed: Array
    index: Array


@dataclasses.dataclass(frozen=True)
class Lane:
    """All that a method may look at: one client of one seed, with one batch.

    Attributes:
        features: View -> encoder outputs `[M, B, d]`, zero where not observed; gradients flow through `current` only.
        params: View -> module name -> parameters of the client's networks, the encoders apart; of a module per modality
            leaves `[M, ...]`, 0 where the client does not hold the modality.
        batch: The batch.
        info: The client.
        state: The client's own state (`Method.init_client`).
        download: What the server sent (`Method.download`).
        key: A key of this lane, round and step.
        round: The round, int32 scalar, 1..R.
        networks: Module name -> its pure function `(params, *inputs) -> output`.
        encoder: Quantity named in the layout -> its value per modality, `[M]`.
    """

    features: Mapping[str, Array]
    params: Mapping[str, Mapping[str, Tree]]
    batch: Batch
    info: Info
    state: Tree
    download: Tree
    key: Array
    round: Array
    networks: Mapping[str, Callable[..., Array]]
    encoder: Mapping[str, Array] = dataclasses.field(default_factory=dict)

    def apply(self, module: str, *inputs: Array, view: str = "current") -> Array:
        """The output of one of the client's networks.

        Args:
            module: A module of the layout, the encoders apart.
            *inputs: What the network takes; of a module per modality, with a leading axis `[M]`, as the output.
            view: Whose parameters: a view of the layout.

        Returns:
            The network's output.
        """
        return self.networks[module](self.params[view][module], *inputs)

    def fuse(self, view: str = "current") -> Array:
        """The fused feature of each sample, `[B, d]` (`[B, M * d]` for `concat`); 0 for a sample with no modality."""
        return self.networks["fusion"](self.params[view].get("fusion"), self.features[view], self.batch.observed)

    def logits(self, view: str = "current") -> Array:
        """The head's logits on the fused feature, `[B, C]`."""
        return self.apply("head", self.fuse(view), view=view)


class Server(NamedTuple):
    """The server's side of one seed.

    Attributes:
        modules: Shared module name -> parameters; of a module per modality leaves `[m, ...]` for the m modalities that
            someone holds, of the encoders a list of such trees.
        state: The method's own state (`Method.init_server`).
    """

    modules: Tree
    state: Tree


class Mean(NamedTuple):
    """Averages over the cohort.

    Attributes:
        modules: Shared module name -> averaged parameters; where there was no weight, the previous ones.
        extra: Name -> (mean of the leaves of `Upload.mean`, sum of the weights), floating; 0 where that sum is 0.
    """

    modules: Tree
    extra: Tree


NUMERIC = (float, "float", float | None, "float | None")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(cls: type) -> type:
    """Makes a class a method: a frozen, keyword-only dataclass whose float fields are pytree leaves.

    A field that may be a float or None is one too; whether it is None is structure.
    """
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(cls)
    numeric = [field.name for field in fields if field.type in NUMERIC]
    static = [field.name for field in fields if field.name not in numeric]
    return jax.tree_util.register_dataclass(cls, data_fields=numeric, meta_fields=static)


@method
class Method:
    """Base of all methods: federated training of everything by cross-entropy, averaged where the layout says so.

    Attributes:
        name: The name on the command line.
        kind: `global` (one model: selected at one round for all clients) or `personal` (each client selects its own).
        primary: The predictor that is meant when none is named.
        averages_encoders: True if it needs encoders of equal shape at all clients.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "personal"
    primary: ClassVar[str] = "head"
    averages_encoders: ClassVar[bool] = False

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` if an option is out of range or the federation does not suit the method."""

    def layout(self, spec: Spec) -> Layout:
        """The method's modules, who owns them, its stages and its views."""
        return shared_model(spec, encoders="private", head="private")

    def optimisers(self, default: Any, layout: Layout) -> Mapping[str, Any]:
        """Optimiser group -> optimiser; for a rate of its own a method replaces `lr` in `default`."""
        return {module.group: default for module in layout.modules.values()}

    def init_client(self, key: Array, info: Info) -> Tree:
        """The state a client keeps between rounds."""
        return {}

    def init_server(self, key: Array, spec: Spec) -> Tree:
        """The state the server keeps between rounds."""
        return {}

    def download(self, server: Tree, info: Info) -> Tree:
        """What one cohort member receives besides the shared modules; `server` is the server's state."""
        return server

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """The loss of one batch, a mean over its valid samples, and the terms to report."""
        ce, n = cross_entropy(lane.logits(), lane.batch.y, lane.batch.valid)
        return ce, {"ce": (ce * n, n)}

    def collect(self, lane: Lane) -> Tree:
        """Sums over one batch of the client's training data, taken after training in evaluation mode."""
        return {}

    def upload(self, start: Tree, end: Tree, sums: Tree, info: Info, state: Tree) -> Upload:
        """What goes to the server besides the shared modules.

        Args:
            start: Shared modules that are not encoders, as downloaded (those per modality as in `Lane.params`). Private
                ones are not here, and cannot leave.
            end: The same after local training.
            sums: What `collect` returned, summed over the client's training data.
            info: The client.
            state: The client's state.

        Returns:
            Leaves to average, leaves to stack, and the client's new state.
        """
        return Upload(state=state)

    def server(self, server: Server, mean: Mean, stack: Tree, mask: Array, key: Array) -> tuple[Server, Terms]:
        """The server step of one seed.

        Args:
            server: The server before the step.
            mean: Averages over the cohort.
            stack: `Upload.stack` of the cohort, leaves `[cohort, ...]` in ascending order of client id.
            mask: Bool `[cohort]`, True for members whose upload counts.
            key: A key of this seed and round.

        Returns:
            The server after the step and terms to report.
        """
        return Server(mean.modules, server.state), {}

    def predict(self, lane: Lane) -> dict[str, Array]:
        """Scores `[B, C]` by predictor; argmax is the class, softmax the probabilities."""
        return {"head": lane.logits()}

    @property
    def losses(self) -> Mapping[str, Callable[[Lane], tuple[Array, Terms]]]:
        """Loss name, as the phases of the layout name it -> function."""
        return {"loss": self.loss}


def stages_of(layout: Layout, spec: Spec) -> tuple[Stage, ...]:
    """The layout's stages with every length resolved.

    Raises:
        UsageError: The lengths do not add up to the run's rounds.
    """
    stages = layout.stages
    fixed = sum(stage.rounds for stage in stages if stage.rounds is not None)
    open_ended = [stage for stage in stages if stage.rounds is None]
    if len(open_ended) > 1 or fixed > spec.rounds or (not open_ended and fixed != spec.rounds):
        raise UsageError(f"stages of {[stage.rounds for stage in stages]} rounds do not fill {spec.rounds} rounds")
    return tuple(
        dataclasses.replace(stage, rounds=spec.rounds - fixed) if stage.rounds is None else stage for stage in stages
    )
