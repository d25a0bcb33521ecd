"""Local training of a plan's lanes: phases, epochs, masked steps; then one pass to collect, and the upload."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.layout import Phase, Rows, Upload
from fedjax_mm.methods.method import Batch, Method, Terms
from fedjax_mm.simulation.context import Context, Slots, State, World, select
from fedjax_mm.simulation.forward import Crowd, gather_crowd, lane_params, per_lane, read, see
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.narrow import Narrowing, narrow
from fedjax_mm.simulation.plans import Plan, by_slot
from fedjax_mm.simulation.steps import Steps, at_slots
from fedjax_mm.simulation.stores import PARTS

Array = jax.Array
Tree = Any
PASS_BATCH = 256
"""Samples of a lane that a pass without gradient takes at once."""


class Outcome(NamedTuple):
    """What local training leaves, by lane of the plan.

    Attributes:
        crowd: The lanes.
        networks: Networks by slot, of each bucket; of a lane that does not count, those it started with.
        optimisers: Per phase, optimiser states by slot (empty unless they are kept).
        upload: The uploads, leaves `[n, ...]`.
        finite: Module, or `upload` -> whether all of it is finite, bool `[n]`.
        ok: Whether the lane counts: it is active and all of it is finite, bool `[n]`.
        terms: Term -> (sum, weight), each `[n]`.
    """

    crowd: Crowd
    networks: Slots
    optimisers: list[Tree]
    upload: Upload
    finite: dict[str, Array]
    ok: Array
    terms: Terms


@dataclasses.dataclass(frozen=True, eq=False)
class Trainer:
    """Local training of one plan's lanes in one stage.

    Attributes:
        context: The context.
        plan: The plan.
        phases: The stage's phases.
        ways: How the plan is trained; made when first asked for.
    """

    context: Context
    plan: Plan
    phases: tuple[Phase, ...]
    ways: list[tuple[Narrowing, list[Steps]]] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def train(self) -> Callable[[World, State, Array, Array, Array], Outcome]:
        """`__call__`, traced once however often it is used."""
        return jax.jit(self.__call__)

    def _trained(self, world: World) -> tuple[Narrowing, list[Steps]]:
        """How the plan is trained, and its phases; shapes alone decide."""
        if not self.ways:
            narrowing = narrow(self.context, self.plan, self.phases, world.optimisers)
            steps = [Steps(self.context, narrowing.plan, phase, i) for i, phase in enumerate(self.phases)]
            self.ways.append((narrowing, steps))
        return self.ways[0]

    def __call__(self, world: World, state: State, lanes: Array, active: Array, round_: Array) -> Outcome:
        """Trains the lanes.

        Args:
            world: The world.
            state: The state at the start of the round.
            lanes: Lane numbers, int32 `[plan.size]`.
            active: Bool `[plan.size]`; an inactive lane costs next to nothing alone and does nothing.
            round_: The round, int32 scalar, from 1.

        Returns:
            The outcome; that of an inactive lane is meaningless.
        """
        crowd, start = gather_crowd(self.context, self.plan, world, state, lanes, active, round_)
        narrowing, phases = self._trained(world)
        inside, networks = narrowing.enter(self.context, world, crowd, start)
        optimisers, terms = [], {}
        for phase, steps in zip(self.phases, phases, strict=True):
            kept = at_slots(self.plan, world, state.optimisers[steps.index], lanes) if state.optimisers else None
            networks, kept, new = steps(world, inside, networks, kept)
            optimisers.append(kept)
            for name, term in new.items():
                name = name if len(self.phases) == 1 else f"{phase.loss}.{name}"
                terms[name] = jax.tree.map(jnp.add, terms[name], term) if name in terms else term
        sums = self._collect(narrowing.plan, world, inside, networks)
        networks = narrowing.leave(self.context, world, crowd, start, networks)
        upload = jax.vmap(lambda m, *arguments: m.upload(*arguments))(
            crowd.method, self._visible(start), self._visible(networks), sums, crowd.info, crowd.state
        )
        finite = self._finite(networks, upload)
        ok = crowd.active & jnp.all(jnp.stack(list(finite.values())), axis=0)
        kept = self._kept(ok, networks, start)
        return Outcome(crowd, kept, optimisers, upload, finite, ok, terms)

    def _kept(self, ok: Array, networks: Slots, start: Slots) -> Slots:
        """The new networks of lanes that are `ok`, the old ones of the others."""
        return {
            name: [
                {part: select(good, new[part], old[part]) for part in PARTS}
                for good, new, old in zip(by_slot(buckets, ok), networks[name], start[name], strict=True)
            ]
            for name, buckets in self.plan.buckets.items()
        }

    def _visible(self, networks: Slots) -> Tree:
        """The parameters an upload may be made of: shared ones that are not encoders."""
        params, stores = lane_params(self.context, self.plan, networks), self.context.stores
        return {name: tree for name, tree in params.items() if stores[name].shared("params")}

    def _collect(self, plan: Plan, world: World, crowd: Crowd, networks: Slots) -> Tree:
        """Sums of `Method.collect` over each lane's training data, in evaluation mode."""
        if type(self.context.method).collect is Method.collect:
            return {}

        def collect(batch: Batch, places: Array, keys: Array) -> Tree:
            sight, _ = see(self.context, plan, world, crowd, networks, batch, keys, train=False, places=places)
            return per_lane(self.context, crowd, lambda method, lane: method.collect(lane), sight, batch, keys)

        n = jnp.where(crowd.active, crowd.info.n, 0)
        return sum_over(world, crowd, world.tables.train[crowd.member], n, collect)

    def _finite(self, networks: Slots, upload: Upload) -> dict[str, Array]:
        finite = {}
        for name, buckets in self.plan.buckets.items():
            finite[name] = jnp.ones(self.plan.size, bool)
            if buckets:
                lanes = np.concatenate([bucket.lanes for bucket in buckets])
                flags = [all_finite(values, len(b.lanes)) for b, values in zip(buckets, networks[name], strict=True)]
                finite[name] = finite[name].at[lanes].min(jnp.concatenate(flags))
        finite["upload"] = all_finite(upload, self.plan.size)
        return finite


def all_finite(tree: Tree, size: int) -> Array:
    """Whether all floating leaves are finite, per entry of the leading axis, bool `[size]`.

    Rows of a `Rows` that are not present may be anything.
    """

    def readable(node: Any) -> Any:
        return node.filled() if isinstance(node, Rows) else node

    tree = jax.tree.map(readable, tree, is_leaf=lambda node: isinstance(node, Rows))
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    # A sum of zeros, unless some entry is none: sums compile and run faster than a reduction of flags.
    sums = [jnp.sum((leaf * 0).reshape(size, -1), axis=1) for leaf in leaves]
    return jnp.all(jnp.stack(sums) == 0, axis=0) if sums else jnp.ones(size, bool)


def sum_over(
    world: World, crowd: Crowd, rows: Array, n: Array, function: Callable[[Batch, Array, Array], Tree]
) -> Tree:
    """Sums `function(batch, places, keys)` over all samples of every lane, batch after batch, without shuffling.

    Args:
        world: The world.
        crowd: The lanes.
        rows: Rows of the data set, int32 `[n, width]`.
        n: Rows in use per lane, int32 `[n]`.
        function: From a batch `[n, B]`, its places in `rows` (int32 `[n, B]`) and keys `[n]` to additive leaves.

    Returns:
        The sums.
    """
    filler = world.tables.labels.shape[0] - 1
    size = min(PASS_BATCH, max(rows.shape[1], 1))
    rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size)), constant_values=filler)
    keys = jax.vmap(lambda key, info: derive(key, "pass", crowd.round[0], info.id))(crowd.keys, crowd.info)

    def add(t: Array, sums: Tree) -> Tree:
        places = t * size + jnp.arange(size, dtype=jnp.int32)
        part = jax.lax.dynamic_slice_in_dim(rows, t * size, size, axis=1)
        part = jnp.where(places < n[:, None], part, filler)
        batch_keys = jax.vmap(lambda key: derive(key, "step", t))(keys)
        new = function(read(world, crowd, part), jnp.broadcast_to(places, part.shape), batch_keys)
        return jax.tree.map(jnp.add, sums, new)

    first = jax.eval_shape(lambda part: function(read(world, crowd, part), part, keys), rows[:, :size])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
    if not jax.tree.leaves(zeros):
        return zeros
    return jax.lax.fori_loop(0, jnp.max(-(-n // size)), add, zeros)
