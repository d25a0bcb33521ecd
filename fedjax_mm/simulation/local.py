"""Local training of a plan's lanes: phases, epochs, masked steps; then one pass to collect, and the upload."""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Phase, Rows, Upload
from fedjax_mm.methods.method import Batch, Lane, Method, Terms
from fedjax_mm.simulation.context import Context, Slots, State, World, at, select
from fedjax_mm.simulation.forward import Crowd, gather_crowd, lane_params, per_lane, read, see
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.optimise import clip_factor
from fedjax_mm.simulation.plans import Plan
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
    """

    context: Context
    plan: Plan
    phases: tuple[Phase, ...]

    @functools.cached_property
    def train(self) -> Callable[[World, State, Array, Array, Array], Outcome]:
        """`__call__`, traced once however often it is used."""
        return jax.jit(self.__call__)

    @functools.cached_property
    def _steps(self) -> list[Callable[..., tuple[Slots, Tree, Terms]]]:
        return [jax.jit(partial(self._step, phase)) for phase in self.phases]

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
        networks, optimisers, terms = start, [], {}
        for index, phase in enumerate(self.phases):
            kept = at_slots(self.plan, world, state.optimisers[index], lanes) if state.optimisers else None
            networks, kept, new = self._train(world, crowd, networks, index, phase, kept)
            optimisers.append(kept)
            for name, term in new.items():
                name = name if len(self.phases) == 1 else f"{phase.loss}.{name}"
                terms[name] = jax.tree.map(jnp.add, terms[name], term) if name in terms else term
        sums = self._collect(world, crowd, networks)
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
                {part: select(ok[bucket.lanes], new[part], old[part]) for part in PARTS}
                for bucket, new, old in zip(self.plan.buckets[name], networks[name], start[name], strict=True)
            ]
            for name in networks
        }

    def _visible(self, networks: Slots) -> Tree:
        """The parameters an upload may be made of: shared ones that are not encoders."""
        params, stores = lane_params(self.context, self.plan, networks), self.context.stores
        return {name: tree for name, tree in params.items() if stores[name].shared("params")}

    def _train(
        self, world: World, crowd: Crowd, networks: Slots, index: int, phase: Phase, kept: Tree
    ) -> tuple[Slots, Tree, Terms]:
        """One phase: `epochs` passes over every lane's samples in an order of its own."""
        settings = self.context.settings
        names = phase.trained(self.context.layout.modules)
        epochs = self.context.spec.epochs if phase.epochs is None else phase.epochs
        width = world.tables.train.shape[1]
        # No client fills a larger batch; with drop_last it would not train at all.
        size = settings.batch or 1
        size = size if settings.drop_last else min(size, width)
        steps = -(-width // size)
        keys = jax.vmap(lambda key, info: derive(key, "local", crowd.round[0], info.id, index))(crowd.keys, crowd.info)
        n = jnp.where(crowd.active, crowd.info.n, 0)
        n = n // size * size if settings.drop_last else n
        longest = jnp.max(-(-n // size))
        step = partial(self._steps[index], world, crowd)
        optimisers = kept if kept is not None else self._optimisers(world, crowd, names, networks)
        empty = jax.eval_shape(step, networks, optimisers, jnp.zeros((self.plan.size, size), jnp.int32), keys)[2]
        terms = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), empty)

        def epoch(number: Array, carry: tuple) -> tuple:
            epoch_keys = jax.vmap(lambda key: derive(key, "epoch", number))(keys)
            order = jax.vmap(partial(shuffled, width=steps * size, filler=world.tables.labels.shape[0] - 1))(
                jax.vmap(lambda key: derive(key, "order"))(epoch_keys), world.tables.train[crowd.member], n
            )

            def body(t: Array, carry: tuple) -> tuple:
                networks, optimisers, terms = carry
                rows = jax.lax.dynamic_slice_in_dim(order, t * size, size, axis=1)
                step_keys = jax.vmap(lambda key: derive(key, "step", t))(epoch_keys)
                networks, optimisers, new = step(networks, optimisers, rows, step_keys)
                return networks, optimisers, jax.tree.map(jnp.add, terms, new)

            return jax.lax.fori_loop(0, longest, body, carry)

        networks, optimisers, terms = jax.lax.fori_loop(0, epochs, epoch, (networks, optimisers, terms))
        return networks, optimisers, terms

    def _step(
        self,
        phase: Phase,
        world: World,
        crowd: Crowd,
        networks: Slots,
        optimisers: Tree,
        rows: Array,
        keys: Array,
    ) -> tuple[Slots, Tree, Terms]:
        """One masked step of all lanes; a lane without valid samples keeps everything, bit for bit."""
        names = phase.trained(self.context.layout.modules)
        batch = read(world, crowd, rows)
        stepping = jnp.any(batch.valid, axis=1)

        def total_loss(trained: dict[str, list[Tree]]) -> tuple[Array, tuple[list[Tree], Terms]]:
            current = {
                name: [
                    values | ({"params": trained[name][b]} if name in names else {})
                    for b, values in enumerate(networks[name])
                ]
                for name in networks
            }
            sight, statistics = see(
                self.context, self.plan, world, crowd, current, batch, keys, train="encoders" in names
            )

            def loss(method: Method, lane: Lane) -> tuple[Array, Terms]:
                return checked_loss(method.losses[phase.loss](lane), f"{method.name}: {phase.loss}")

            losses, terms = per_lane(self.context, crowd, loss, sight, batch, keys)
            terms = jax.tree.map(lambda leaf: jnp.where(stepping, leaf, 0), terms)
            # Lanes share nothing, so the gradient of the sum is each lane's own gradient.
            return jnp.sum(jnp.where(stepping, losses, 0)), (statistics, terms)

        trained = {name: [values["params"] for values in networks[name]] for name in names}
        gradients, (statistics, terms) = jax.grad(total_loss, has_aux=True)(trained)
        trained, optimisers = self._update(world, crowd, stepping, trained, gradients, optimisers)
        new = dict(networks)
        for name in names:
            new[name] = [values | {"params": p} for values, p in zip(networks[name], trained[name], strict=True)]
        if "encoders" in names:
            new["encoders"] = [
                values | {"statistics": select(stepping[bucket.lanes], fresh, values["statistics"])}
                for bucket, values, fresh in zip(
                    self.plan.buckets["encoders"], new["encoders"], statistics, strict=True
                )
            ]
        return new, optimisers, terms

    def _optimisers(self, world: World, crowd: Crowd, names: tuple[str, ...], networks: Slots) -> Tree:
        """Fresh optimiser states by slot."""

        def fresh(name: str, lanes: np.ndarray, params: Tree) -> Tree:
            rules = at(world.optimisers[self.context.layout.modules[name].group], crowd.seed[lanes])
            return jax.vmap(lambda o, p: o.transformation().init(p))(rules, params)

        return {
            name: [
                fresh(name, bucket.lanes, values["params"])
                for bucket, values in zip(self.plan.buckets[name], networks[name], strict=True)
            ]
            for name in names
        }

    def _update(
        self, world: World, crowd: Crowd, stepping: Array, params: dict, gradients: dict, states: dict
    ) -> tuple[dict, dict]:
        """Applies each group's optimiser to its modules, clipping the group's gradient as one per lane."""
        factors = self._clip_factors(world, crowd, gradients)
        new_params, new_states = {}, {}

        def one(rule, factor, p, g, s):
            g = g if factor is None else jax.tree.map(lambda leaf: leaf * factor, g)
            updates, s = rule.transformation().update(g, s, p)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), p, updates), s

        def moved(group: str, lanes: np.ndarray, p: Tree, g: Tree, s: Tree) -> tuple[Tree, Tree]:
            by_lane = factors[group]
            factor = None if by_lane is None else by_lane[lanes]
            new, state = jax.vmap(one)(at(world.optimisers[group], crowd.seed[lanes]), factor, p, g, s)
            return select(stepping[lanes], new, p), select(stepping[lanes], state, s)

        for name in params:
            group = self.context.layout.modules[name].group
            pairs = [
                moved(group, bucket.lanes, p, g, s)
                for bucket, p, g, s in zip(
                    self.plan.buckets[name], params[name], gradients[name], states[name], strict=True
                )
            ]
            new_params[name], new_states[name] = ([pair[k] for pair in pairs] for k in (0, 1))
        return new_params, new_states

    def _clip_factors(self, world: World, crowd: Crowd, gradients: dict) -> dict[str, Array | None]:
        factors: dict[str, Array | None] = {}
        for group, rule in world.optimisers.items():
            if rule.clip is None:
                factors[group] = None
                continue
            squared = jnp.zeros(self.plan.size, self.context.settings.dtype)
            for name, trees in gradients.items():
                if self.context.layout.modules[name].group != group:
                    continue
                for bucket, tree in zip(self.plan.buckets[name], trees, strict=True):
                    for leaf in jax.tree.leaves(tree):
                        rows = jnp.sum(jnp.square(leaf).reshape(leaf.shape[0], -1), axis=1)
                        squared = squared.at[bucket.lanes].add(rows)
            factors[group] = clip_factor(squared, rule.clip[crowd.seed])
        return factors

    def _collect(self, world: World, crowd: Crowd, networks: Slots) -> Tree:
        """Sums of `Method.collect` over each lane's training data, in evaluation mode."""
        if type(self.context.method).collect is Method.collect:
            return {}

        def collect(batch: Batch, keys: Array) -> Tree:
            sight, _ = see(self.context, self.plan, world, crowd, networks, batch, keys, train=False)
            return per_lane(self.context, crowd, lambda method, lane: method.collect(lane), sight, batch, keys)

        n = jnp.where(crowd.active, crowd.info.n, 0)
        return sum_over(world, crowd, world.tables.train[crowd.member], n, collect)

    def _finite(self, networks: Slots, upload: Upload) -> dict[str, Array]:
        finite = {}
        for name, buckets in self.plan.buckets.items():
            finite[name] = jnp.ones(self.plan.size, bool)
            for bucket, values in zip(buckets, networks[name], strict=True):
                finite[name] = finite[name].at[bucket.lanes].min(all_finite(values, len(bucket.lanes)))
        finite["upload"] = all_finite(upload, self.plan.size)
        return finite


def checked_loss(result: Any, name: str) -> tuple[Array, Terms]:
    """What a loss returned, or a `UsageError`: a scalar and, by name, pairs (sum, weight) of scalars."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise UsageError(f"{name} must return (loss, terms), terms a dict of name -> (sum, weight)")
    loss, terms = result
    if jnp.shape(loss) != ():
        raise UsageError(
            f"{name} returned a loss of shape {jnp.shape(loss)}; it must be a scalar, a mean over the batch"
        )
    for term, pair in terms.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(jnp.shape(part) == () for part in pair)):
            raise UsageError(f"{name}: term {term!r} must be a pair (sum, weight) of scalars")
    return loss, {term: (jnp.asarray(total), jnp.asarray(weight)) for term, (total, weight) in terms.items()}


def all_finite(tree: Tree, size: int) -> Array:
    """Whether all floating leaves are finite, per entry of the leading axis, bool `[size]`.

    Rows of a `Rows` that are not present may be anything.
    """

    def readable(node: Any) -> Any:
        return node.filled() if isinstance(node, Rows) else node

    tree = jax.tree.map(readable, tree, is_leaf=lambda node: isinstance(node, Rows))
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    flags = [jnp.all(jnp.isfinite(leaf).reshape(size, -1), axis=1) for leaf in leaves]
    return jnp.all(jnp.stack(flags), axis=0) if flags else jnp.ones(size, bool)


def shuffled(key: Array, rows: Array, n: Array, *, width: int, filler: int) -> Array:
    """The first `n` rows in random order, then padding.

    The order does not depend on how far the table is padded.

    Args:
        key: The key of the epoch.
        rows: Int32 `[table width]`, of which the first entries are in use.
        n: How many of them to take after shuffling all in use, int32 scalar.
        width: Width of the result, at least the table's.
        filler: What padding holds.

    Returns:
        Int32 `[width]`.
    """
    rows = jnp.pad(rows, (0, width - rows.shape[0]), constant_values=filler)
    scores = jnp.where(rows == filler, 2.0, jax.random.uniform(key, (width,), jnp.float32))
    order = rows[jnp.argsort(scores)]
    return jnp.where(jnp.arange(width) < n, order, filler)


def sum_over(world: World, crowd: Crowd, rows: Array, n: Array, function: Callable[[Batch, Array], Tree]) -> Tree:
    """Sums `function(batch, keys)` over all samples of every lane, batch after batch, without shuffling.

    Args:
        world: The world.
        crowd: The lanes.
        rows: Rows of the data set, int32 `[n, width]`.
        n: Rows in use per lane, int32 `[n]`.
        function: From a batch `[n, B]` and keys `[n]` to additive leaves.

    Returns:
        The sums.
    """
    filler = world.tables.labels.shape[0] - 1
    size = min(PASS_BATCH, max(rows.shape[1], 1))
    rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size)), constant_values=filler)
    keys = jax.vmap(lambda key, info: derive(key, "pass", crowd.round[0], info.id))(crowd.keys, crowd.info)

    def add(t: Array, sums: Tree) -> Tree:
        part = jax.lax.dynamic_slice_in_dim(rows, t * size, size, axis=1)
        part = jnp.where(t * size + jnp.arange(size) < n[:, None], part, filler)
        batch_keys = jax.vmap(lambda key: derive(key, "step", t))(keys)
        return jax.tree.map(jnp.add, sums, function(read(world, crowd, part), batch_keys))

    first = jax.eval_shape(lambda part: function(read(world, crowd, part), keys), rows[:, :size])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
    if not jax.tree.leaves(zeros):
        return zeros
    return jax.lax.fori_loop(0, jnp.max(-(-n // size)), add, zeros)


def at_slots(plan: Plan, world: World, kept: Tree, lanes: Array) -> Tree:
    """Kept optimiser states of a plan's lanes, by slot."""
    return {
        name: [
            at(kept[name][bucket.position], world.rows[name]["slots"][lanes[bucket.lanes], bucket.columns])
            for bucket in plan.buckets[name]
        ]
        for name in kept
    }
