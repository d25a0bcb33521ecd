"""A round: cohort, download, local training, averages, server step."""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Phase
from fedjax_mm.methods.method import Mean, Server, Terms
from fedjax_mm.objectives.masked import finish_mean
from fedjax_mm.simulation.aggregate import Progress, absorb, combine, empty_progress, finish
from fedjax_mm.simulation.context import Context, Slots, State, World, select
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.local import Trainer, all_finite
from fedjax_mm.simulation.plans import Plan
from fedjax_mm.simulation.waits import traced

Array = jax.Array
Tree = Any


class Cohort(NamedTuple):
    """Who takes part in a round.

    Attributes:
        clients: Client ids, ascending, int32 `[S, cohort]`.
        lanes: As many lanes of each seed as can take part here, those that do first, int32 `[S * most]`, seed by seed.
        active: Whether a lane takes part, bool `[L]`.
        position: Lane -> its position in the stacked cohort, int32 `[L]`; one past the last for all others.
        round: The round, int32 scalar, from 1.
    """

    clients: Array
    lanes: Array
    active: Array
    position: Array
    round: Array


class Record(NamedTuple):
    """What a round reports.

    Attributes:
        terms: Term -> (sum, weight), each `[S]`.
        clients: The cohort's client ids, int32 `[S, cohort]`.
        heard: Members whose result was finite, int32 `[S]`.
        broken: Module, or `upload` -> lanes where it was not finite, bool `[L]`.
        server_broken: Whether the server step was not finite and the server stayed as it was, bool `[S]`.
        sent_rows: Rows present in each `Rows` of the uploads, int32 `[S]` each.
        received_rows: Rows present in each `Rows` of the downloads, int32 `[S]` each.
    """

    terms: Terms
    clients: Array
    heard: Array
    broken: dict[str, Array]
    server_broken: Array
    sent_rows: list[Array]
    received_rows: list[Array]


def draw_clients(context: Context, keys: Array, round_: Array) -> Array:
    """Draws, for every seed, `context.cohort` clients without replacement: ids, ascending, int32 `[S, cohort]`."""
    everyone, size = context.everyone, context.cohort

    def draw(key: Array) -> Array:
        scores = jax.random.uniform(derive(key, "cohort", round_), (everyone,), jnp.float32)
        return jnp.sort(jnp.argsort(scores)[:size]).astype(jnp.int32)

    if size == everyone:
        return jnp.broadcast_to(jnp.arange(everyone, dtype=jnp.int32), (context.seeds, everyone))
    return jax.vmap(draw)(keys)


def draw_cohort(context: Context, world: World, round_: Array, drawn: Array | None = None) -> Cohort:
    """The cohort of a round; `drawn` is what `draw_clients` gave, if it is known already."""
    seeds, size = context.seeds, context.cohort
    chosen = draw_clients(context, world.keys, round_) if drawn is None else drawn
    nowhere = seeds * size
    order = jnp.arange(nowhere, dtype=jnp.int32).reshape(seeds, size)
    ids = world.tables.info.id[world.tables.member].reshape(seeds, context.clients)
    # Nothing here is as long as the federation: its clients may be many more than those that are lanes.
    place = jnp.minimum(jax.vmap(partial(jnp.searchsorted, method="scan_unrolled"))(chosen, ids), size - 1)
    found = jnp.take_along_axis(chosen, place, axis=1) == ids
    position = jnp.where(found, jnp.take_along_axis(order, place, axis=1), nowhere)
    active = position < nowhere
    most = min(size, context.clients)
    first = jnp.argsort(~active, axis=1, stable=True)[:, :most].astype(jnp.int32)
    lanes = first + context.clients * jnp.arange(seeds, dtype=jnp.int32)[:, None]
    return Cohort(chosen, lanes.reshape(-1), active.reshape(-1), position.reshape(-1), jnp.asarray(round_, jnp.int32))


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """The rounds of one stage.

    Attributes:
        context: The context.
        phases: What clients do.
        trainers: Local training by plan, made when first asked for.
    """

    context: Context
    phases: tuple[Phase, ...]
    trainers: dict[Plan, Trainer] = dataclasses.field(default_factory=dict)

    @property
    def trained(self) -> frozenset[str]:
        """The modules some phase trains; the others are frozen, and neither sent up nor averaged."""
        modules = self.context.layout.modules
        return frozenset(name for phase in self.phases for name in phase.trained(modules))

    def trainer(self, plan: Plan) -> Trainer:
        """Local training of a plan's lanes."""
        return self.trainers.setdefault(plan, Trainer(self.context, plan, self.phases))

    def __call__(
        self, executor: Executor, world: World, state: State, round_: Array, drawn: Array | None = None
    ) -> tuple[State, Record]:
        """One round, inside a compiled program; `drawn` as for `draw_cohort`."""
        cohort, progress = self.open(executor.plans[0], world, state, round_, drawn)

        def advance(plan: Plan, progress: Progress, lanes: Array, active: Array) -> Progress:
            return self.advance(plan, world, cohort, progress, lanes, active)

        progress = executor(advance, progress, cohort.lanes, cohort.active)
        return self.closing(world, cohort, combine(progress, self.context.axis))

    def open(
        self, plan: Plan, world: World, state: State, round_: Array, drawn: Array | None = None
    ) -> tuple[Cohort, Progress]:
        """Draws the cohort and sets up the sums."""
        cohort = draw_cohort(self.context, world, round_, drawn)
        nobody = jnp.zeros(plan.size, bool)
        shapes = jax.eval_shape(
            self.trainer(plan).train, world, state, jnp.zeros(plan.size, jnp.int32), nobody, cohort.round
        )
        return cohort, empty_progress(self.context, self.trained, state, shapes)

    @functools.cached_property
    def closing(self) -> Callable[[World, Cohort, Progress], tuple[State, Record]]:
        """`close`, traced once however often it is used."""
        return jax.jit(self.close)

    def check(self, plan: Plan, world: World, state: State) -> frozenset[str]:
        """Traces one round on shapes alone.

        Returns:
            The operations in it that wait (`waits.WAITING`).

        Raises:
            UsageError: What the method returns would change the shape of its states.
        """
        name = self.context.method.name

        def one_round(world: World, state: State) -> State:
            cohort, progress = self.open(plan, world, state, jnp.int32(1))
            lanes = jnp.zeros(plan.size, jnp.int32)
            outcome = self.trainer(plan).train(world, state, lanes, lanes == 0, cohort.round)
            kept = jax.tree.map(lambda leaf: leaf[lanes], state.clients)
            _same_shapes(outcome.upload.state, kept, f"{name}: the client state that upload returns")
            progress = self.advance(plan, world, cohort, progress, lanes, lanes == 0)
            return self.closing(world, cohort, progress)[0]

        return traced(one_round, world, state)[0]

    def advance(
        self, plan: Plan, world: World, cohort: Cohort, progress: Progress, lanes: Array, active: Array
    ) -> Progress:
        """Trains some lanes and adds them to the sums."""
        outcome = self.trainer(plan).train(world, progress.state, lanes, active, cohort.round)
        return absorb(self.context, plan, world, progress, outcome, cohort.position)

    def close(self, world: World, cohort: Cohort, progress: Progress) -> tuple[State, Record]:
        """Finishes the averages and takes the server's step, seed by seed."""
        seeds = self.context.seeds
        stores = finish(self.context, progress)
        old = Server(self._modules(progress.state.stores), progress.state.server)
        extra = {
            name: (
                jax.tree.map(lambda total, w=weight: jax.vmap(finish_mean)(total, w, jnp.zeros_like(total)), summed),
                weight,
            )
            for name, (summed, weight) in progress.extra.items()
        }
        mean = Mean(self._modules(stores), extra)
        stack = jax.tree.map(lambda leaf: leaf.reshape(seeds, -1, *leaf.shape[1:]), progress.stack)
        keys = jax.vmap(lambda key: derive(key, "server", cohort.round))(world.keys)
        new, terms = jax.vmap(lambda m, *arguments: m.server(*arguments))(
            world.method, old, mean, stack, progress.heard.reshape(seeds, -1), keys
        )
        _same_shapes(new, old, f"{self.context.method.name}: what server returns")
        # A state must not change its types from round to round, whatever the method computes in.
        new = jax.tree.map(lambda value, kept: jnp.asarray(value).astype(kept.dtype), new, old)
        sound = all_finite(new, seeds)
        new = select(sound, new, old)
        state = progress.state._replace(stores=self._with_modules(stores, new.modules), server=new.state)
        record = Record(
            terms=progress.terms | terms,
            clients=cohort.clients,
            heard=jnp.sum(progress.heard.reshape(seeds, -1), axis=1, dtype=jnp.int32),
            broken=progress.broken,
            server_broken=~sound,
            sent_rows=progress.sent_rows,
            received_rows=progress.received_rows,
        )
        return state, record

    def _shared(self) -> list[str]:
        return [name for name, store in self.context.stores.items() if store.shared("params")]

    def _modules(self, stores: Slots) -> dict[str, Tree]:
        """Shared parameters: `[S, ...]`, of a module per modality `[S, modalities, ...]`, encoders a list of these."""
        seeds = self.context.seeds

        def by_seed(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: leaf.reshape(seeds, -1, *leaf.shape[1:]), tree)

        modules = {}
        for name in self._shared():
            trees = [values["params"] for values in stores[name]]
            if self.context.layout.modules[name].by_modality:
                trees = [by_seed(tree) for tree in trees]
            modules[name] = trees[0] if name in self.context.lane_modules else trees
        return modules

    def _with_modules(self, stores: Slots, modules: dict[str, Tree]) -> Slots:
        new = dict(stores)
        for name in self._shared():
            trees = [modules[name]] if name in self.context.lane_modules else modules[name]
            new[name] = [
                values | {"params": jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), tree, values["params"])}
                for values, tree in zip(stores[name], trees, strict=True)
            ]
        return new


def _same_shapes(new: Tree, old: Tree, what: str) -> None:
    """Raises `UsageError` if two trees differ in structure or in a leaf's shape, or floats replace integers."""
    expected, _ = jax.tree.flatten_with_path(old)
    found, _ = jax.tree.flatten_with_path(new)
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise UsageError(
            f"{what} must have the structure it started with: {_leaves(expected)}; it has {_leaves(found)}"
        )
    for (path, kept), (_, leaf) in zip(expected, found, strict=True):
        if jnp.shape(leaf) != kept.shape or not jnp.can_cast(jnp.result_type(leaf), kept.dtype, "same_kind"):
            raise UsageError(
                f"{what} must keep shapes and types: leaf {jax.tree_util.keystr(path) or '(whole)'} was "
                f"{kept.dtype}{list(kept.shape)} and became {jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
            )


def _leaves(paths: list) -> str:
    return ", ".join(jax.tree_util.keystr(path) or "(whole)" for path, _ in paths) or "nothing"
