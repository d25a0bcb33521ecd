"""Evaluation: what every client would answer if it were deployed now, as additive counts."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_mm.methods.method import Batch
from fedjax_mm.simulation.context import Context, State, World
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.forward import gather_crowd, per_lane, see
from fedjax_mm.simulation.local import sum_over
from fedjax_mm.simulation.plans import Plan
from fedjax_mm.simulation.population import federation_of

Array = jax.Array
Tree = Any
PARTS = 2  # validation, test


class Counts(NamedTuple):
    """Sums over the evaluated samples of every lane, for the P predictors in `predictors` order.

    Attributes:
        confusion: Samples by truth and prediction, int32 `[L, P, 2, C, C]`.
        loss: Cross-entropy in nats, `[L, P, 2]`.
        broken: Samples with a score that is not finite, int32 `[L]`; they count as wrongly predicted.
    """

    confusion: Array
    loss: Array
    broken: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates all lanes.

    Attributes:
        context: The context.
        predictors: Names of the predictors, the primary one first.
    """

    context: Context
    predictors: tuple[str, ...]

    def __call__(self, executor: Executor, world: World, state: State, round_: Array) -> Counts:
        """Counts for every lane, after the server step of `round_` (int32 scalar)."""
        everyone = jnp.arange(self.context.seeds * self.context.clients, dtype=jnp.int32)

        def advance(plan: Plan, counts: Counts, lanes: Array, active: Array) -> Counts:
            return self.advance(plan, world, state, counts, lanes, active, round_)

        return executor(advance, self.empty(), everyone, jnp.ones(everyone.shape, bool))

    def empty(self) -> Counts:
        """Counts before the first lane."""
        lanes, classes = self.context.seeds * self.context.clients, self.context.spec.classes
        lead = (lanes, len(self.predictors), PARTS)
        return Counts(
            confusion=jnp.zeros((*lead, classes, classes), jnp.int32),
            loss=jnp.zeros(lead, self.context.settings.dtype),
            broken=jnp.zeros(lanes, jnp.int32),
        )

    def advance(
        self, plan: Plan, world: World, state: State, counts: Counts, lanes: Array, active: Array, round_: Array
    ) -> Counts:
        """Adds a plan's lanes."""
        crowd, networks = gather_crowd(self.context, plan, world, state, lanes, active, round_)
        part_of = world.tables.part[federation_of(world.tables, crowd.member)]

        def count(batch: Batch, keys: Array) -> Counts:
            sight, _ = see(self.context, plan, world, crowd, networks, batch, keys, train=False)
            scores = per_lane(self.context, crowd, lambda method, lane: method.predict(lane), sight, batch, keys)
            stacked = jnp.stack([scores[name] for name in self.predictors], axis=1)
            return Counts(*jax.vmap(_tally)(stacked, batch, part_of))

        rows, n = world.tables.evaluated[crowd.member], world.tables.evaluated_n[crowd.member]
        new = sum_over(world, crowd, rows, n, count)
        return jax.tree.map(lambda table, values: table.at[lanes].set(values), counts, new)


def _tally(scores: Array, batch: Batch, part_of: Array) -> tuple[Array, Array, Array]:
    """Confusion counts `[P, 2, C, C]`, summed cross-entropy `[P, 2]` and broken samples, from scores `[P, B, C]`."""
    predictors, _, classes = scores.shape
    part = part_of[batch.index]
    cells = PARTS * classes * classes
    sound = jnp.all(jnp.isfinite(scores), axis=2)
    prediction = jnp.where(sound, jnp.argmax(scores, axis=2), (batch.y + 1) % classes)
    cell = (part * classes + batch.y) * classes + prediction
    cell = jnp.where(batch.valid, cell, cells)
    confusion = jax.vmap(lambda c: jnp.zeros(cells + 1, jnp.int32).at[c].add(1))(cell)[:, :-1]
    safe = jnp.where(batch.valid[:, None], scores, 0)
    picked = jnp.take_along_axis(safe, batch.y[None, :, None], axis=2)[..., 0]
    nats = jnp.where(batch.valid, jax.nn.logsumexp(safe, axis=2) - picked, 0)
    members = jnp.stack([part == position for position in range(PARTS)])
    loss = jnp.sum(jnp.where(members, nats[:, None], 0), axis=2)
    broken = jnp.sum(jnp.any(~sound, axis=0) & batch.valid, dtype=jnp.int32)
    return confusion.reshape(predictors, PARTS, classes, classes), loss, broken
