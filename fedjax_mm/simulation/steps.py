"""One phase of local training: epochs of masked steps of all lanes of a plan."""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Phase
from fedjax_mm.methods.method import Lane, Method, Terms
from fedjax_mm.simulation.context import Context, Slots, World, at, select
from fedjax_mm.simulation.forward import Crowd, per_lane, read, see
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.optimise import clip_factor
from fedjax_mm.simulation.plans import Plan, by_slot

Array = jax.Array
Tree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """One phase of local training of a plan's lanes.

    Attributes:
        context: The context.
        plan: The plan as it is trained.
        phase: The phase.
        index: Its position in its stage.
    """

    context: Context
    plan: Plan
    phase: Phase
    index: int

    @functools.cached_property
    def _traced_step(self) -> Callable[..., tuple[Slots, Tree, Terms]]:
        return jax.jit(self._step)

    def __call__(self, world: World, crowd: Crowd, networks: Slots, kept: Tree) -> tuple[Slots, Tree, Terms]:
        """`epochs` passes over every lane's samples, each in an order of its own.

        Args:
            world: The world.
            crowd: The plan's lanes.
            networks: Networks by slot.
            kept: Optimiser states by slot; None for fresh ones.

        Returns:
            Networks and optimiser states after it, and the terms summed over all steps, by lane.
        """
        settings, phase = self.context.settings, self.phase
        names = phase.trained(self.context.layout.modules)
        epochs = self.context.spec.epochs if phase.epochs is None else phase.epochs
        width = world.tables.train.shape[1]
        # No client fills a larger batch; with drop_last it would not train at all.
        size = settings.batch or 1
        size = size if settings.drop_last else min(size, width)
        steps = -(-width // size)
        keys = jax.vmap(lambda key, info: derive(key, "local", crowd.round[0], info.id, self.index))(
            crowd.keys, crowd.info
        )
        n = jnp.where(crowd.active, crowd.info.n, 0)
        n = n // size * size if settings.drop_last else n
        longest = jnp.max(-(-n // size))
        step = partial(self._traced_step, world, crowd)
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
                places = jax.lax.dynamic_slice_in_dim(order, t * size, size, axis=1)
                step_keys = jax.vmap(lambda key: derive(key, "step", t))(epoch_keys)
                networks, optimisers, new = step(networks, optimisers, places, step_keys)
                return networks, optimisers, jax.tree.map(jnp.add, terms, new)

            return jax.lax.fori_loop(0, longest, body, carry)

        networks, optimisers, terms = jax.lax.fori_loop(0, epochs, epoch, (networks, optimisers, terms))
        return networks, optimisers, terms

    def _step(
        self, world: World, crowd: Crowd, networks: Slots, optimisers: Tree, places: Array, keys: Array
    ) -> tuple[Slots, Tree, Terms]:
        """One masked step of all lanes; a lane without valid samples keeps everything, bit for bit.

        The batch are the samples at `places` `[n, B]` of each client's table, one past its last for padding.
        """
        phase, names = self.phase, self.phase.trained(self.context.layout.modules)
        batch = read(world, crowd, rows_at(world, crowd, places))
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
                self.context, self.plan, world, crowd, current, batch, keys, train="encoders" in names, places=places
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
            flags = by_slot(self.plan.buckets["encoders"], stepping)
            new["encoders"] = [
                values | {"statistics": select(step, fresh, values["statistics"])}
                for step, values, fresh in zip(flags, new["encoders"], statistics, strict=True)
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

        def moved(known: tuple[Tree, Array | None, Array], p: Tree, g: Tree, s: Tree) -> tuple[Tree, Tree]:
            rule, factor, step = known
            new, state = jax.vmap(one)(rule, factor, p, g, s)
            return select(step, new, p), select(step, state, s)

        for name in params:
            group = self.context.layout.modules[name].group
            rules = at(world.optimisers[group], crowd.seed)
            known = by_slot(self.plan.buckets[name], (rules, factors[group], stepping))
            pairs = [
                moved(mine, p, g, s)
                for mine, p, g, s in zip(known, params[name], gradients[name], states[name], strict=True)
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


def shuffled(key: Array, rows: Array, n: Array, *, width: int, filler: int) -> Array:
    """The places of the first `n` rows of a table in random order, then padding.

    The order does not depend on how far the table is padded.

    Args:
        key: The key of the epoch.
        rows: Int32 `[table width]`, of which the first entries are in use.
        n: How many of them to take after shuffling all in use, int32 scalar.
        width: Width of the result, at least the table's.
        filler: What padding holds in the table.

    Returns:
        Positions in the table, int32 `[width]`; one past its last for padding.
    """
    last = rows.shape[0]
    rows = jnp.pad(rows, (0, width - rows.shape[0]), constant_values=filler)
    scores = jnp.where(rows == filler, 2.0, jax.random.uniform(key, (width,), jnp.float32))
    return jnp.where(jnp.arange(width) < n, jnp.argsort(scores), last).astype(jnp.int32)


def rows_at(world: World, crowd: Crowd, places: Array) -> Array:
    """The rows of the data set at places `[n, B]` of each lane's training table; padding for one past its last."""
    table, filler = world.tables.train[crowd.member], world.tables.labels.shape[0] - 1
    return jax.vmap(lambda rows, at: jnp.take(rows, at, mode="fill", fill_value=filler))(table, places)


def at_slots(plan: Plan, world: World, kept: Tree, lanes: Array) -> Tree:
    """Kept optimiser states of a plan's lanes, by slot."""
    return {
        name: [
            at(kept[name][bucket.position], world.rows[name]["slots"][lanes[bucket.lanes], bucket.columns])
            for bucket in plan.buckets[name]
        ]
        for name in kept
    }
