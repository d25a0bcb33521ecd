"""Evaluation: what every client would answer if it were deployed now, as additive sums."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.method import Batch
from fedjax_mm.metrics.evaluation import BINS, EVALUATED, Sums
from fedjax_mm.metrics.subsets import by_pattern, group_count
from fedjax_mm.simulation.context import Context, State, World
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.forward import gather_crowd, per_lane, see
from fedjax_mm.simulation.local import sum_over
from fedjax_mm.simulation.plans import Plan
from fedjax_mm.simulation.population import federation_of

Array = jax.Array
Tree = Any
PARTS = len(EVALUATED)


class Counts(NamedTuple):
    """Sums over the evaluated samples of every lane, for the P predictors in `predictors` order.

    Attributes:
        sums: Leading axes `[L, P, 2]`; integers are int32.
        subsets: Test samples of the primary predictor by group of observed modalities and class: truly of it, predicted
            to be, and both, int32 `[L, G, 3, C]`.
        broken: Samples with a score that is not finite, int32 `[L]`; they count as wrongly predicted.
    """

    sums: Sums
    subsets: Array
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
        lead, dtype = (lanes, len(self.predictors), PARTS), self.context.settings.dtype
        return Counts(
            sums=Sums(
                confusion=jnp.zeros((*lead, classes, classes), jnp.int32),
                loss=jnp.zeros(lead, dtype),
                brier=jnp.zeros(lead, dtype),
                bins=jnp.zeros((*lead, BINS, 2), jnp.int32),
                confidence=jnp.zeros((*lead, BINS), dtype),
            ),
            subsets=jnp.zeros((lanes, group_count(len(self.context.modalities)), 3, classes), jnp.int32),
            broken=jnp.zeros(lanes, jnp.int32),
        )

    def advance(
        self, plan: Plan, world: World, state: State, counts: Counts, lanes: Array, active: Array, round_: Array
    ) -> Counts:
        """Adds a plan's lanes."""
        crowd, networks = gather_crowd(self.context, plan, world, state, lanes, active, round_)
        federation = federation_of(world.tables, crowd.member)[:, None]

        def count(batch: Batch, places: Array, keys: Array) -> Counts:
            sight, _ = see(self.context, plan, world, crowd, networks, batch, keys, train=False)
            scores = per_lane(self.context, crowd, lambda method, lane: method.predict(lane), sight, batch, keys)
            stacked = jnp.stack([scores[name] for name in self.predictors], axis=1)
            return jax.vmap(tally)(stacked, batch, world.tables.part[federation, batch.index])

        rows, n = world.tables.evaluated[crowd.member], world.tables.evaluated_n[crowd.member]
        new = sum_over(world, crowd, rows, n, count)
        return jax.tree.map(lambda table, values: table.at[lanes].set(values), counts, new)


def tally(scores: Array, batch: Batch, part: Array) -> Counts:
    """Counts one batch of one lane.

    Args:
        scores: Of the P predictors, `[P, B, C]`.
        batch: The batch.
        part: Position of each sample's part in `EVALUATED`, int32 `[B]`.

    Returns:
        The counts, without the axis of lanes. Samples that are not valid count nowhere, whatever their scores.
    """
    sound = jnp.all(jnp.isfinite(scores), axis=2)
    prediction = jnp.where(sound, jnp.argmax(scores, axis=2), (batch.y + 1) % scores.shape[2])
    safe = jnp.where(batch.valid[:, None], scores, 0)
    picked = jnp.take_along_axis(safe, batch.y[None, :, None], axis=2)[..., 0]
    nats = jnp.where(batch.valid, jax.nn.logsumexp(safe, axis=2) - picked, 0)
    brier, bins, confidence = _calibration(scores, sound, prediction, batch, part)
    return Counts(
        sums=Sums(_confusion(prediction, batch, part, scores.shape[2]), _by_part(nats, part), brier, bins, confidence),
        subsets=_subsets(prediction[0], batch, part, scores.shape[2]),
        broken=jnp.sum(jnp.any(~sound, axis=0) & batch.valid, dtype=jnp.int32),
    )


def _confusion(prediction: Array, batch: Batch, part: Array, classes: int) -> Array:
    """Samples by truth and prediction, int32 `[P, 2, C, C]`."""
    cells = PARTS * classes * classes
    cell = jnp.where(batch.valid, (part * classes + batch.y) * classes + prediction, cells)
    counts = jax.vmap(lambda c: jnp.zeros(cells + 1, jnp.int32).at[c].add(1))(cell)[:, :-1]
    return counts.reshape(-1, PARTS, classes, classes)


def _calibration(
    scores: Array, sound: Array, prediction: Array, batch: Batch, part: Array
) -> tuple[Array, Array, Array]:
    """Brier scores `[P, 2]`, samples `[P, 2, 15, 2]` and confidences `[P, 2, 15]`, as in `Sums`."""
    known = sound & batch.valid
    probabilities = jax.nn.softmax(jnp.where(known[..., None], scores, 0), axis=2)
    gaps = jnp.sum(jnp.square(probabilities - jax.nn.one_hot(batch.y, scores.shape[2], dtype=scores.dtype)), axis=2)
    brier = jnp.where(batch.valid, jnp.where(sound, gaps, 2), 0)
    confidence = jnp.where(sound, jnp.max(probabilities, axis=2), 1)
    position = jnp.clip(jnp.ceil(confidence * BINS).astype(jnp.int32) - 1, 0, BINS - 1)
    # Dense, not scattered: the order of a scattered sum of floats is not fixed on accelerators.
    inside = (position[..., None] == jnp.arange(BINS)) & batch.valid[:, None]
    right = (prediction == batch.y)[..., None]
    answers = jnp.stack([inside & ~right, inside & right], axis=-1).astype(jnp.int32)
    confidences = jnp.where(inside, confidence[..., None], 0)
    return _by_part(brier, part), _by_part(answers, part), _by_part(confidences, part)


def _by_part(values: Array, part: Array) -> Array:
    """Sums of `[P, B, ...]` over the samples of each part, `[P, 2, ...]`."""
    of_part = [
        jnp.where((part == position).reshape((-1,) + (1,) * (values.ndim - 2)), values, 0) for position in range(PARTS)
    ]
    return jnp.stack([jnp.sum(chosen, axis=1, dtype=values.dtype) for chosen in of_part], axis=1)


def _subsets(prediction: Array, batch: Batch, part: Array, classes: int) -> Array:
    """Test samples by group of observed modalities, int32 `[G, 3, C]`, from the predictions `[B]` of one predictor."""
    modalities = batch.observed.shape[0]
    weights = 2 ** np.arange(modalities) if by_pattern(modalities) else np.ones(modalities)
    group = jnp.sum(jnp.where(batch.observed, jnp.asarray(weights, jnp.int32)[:, None], 0), axis=0)
    tested = (batch.valid & (part == EVALUATED.index("test"))).astype(jnp.int32)
    counts = jnp.zeros((group_count(modalities), 3, classes), jnp.int32)
    counts = counts.at[group, 0, batch.y].add(tested).at[group, 1, prediction].add(tested)
    return counts.at[group, 2, batch.y].add(tested * (prediction == batch.y))
