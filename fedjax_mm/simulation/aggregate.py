"""From outcomes to averages: streaming sums in a fixed lane order, stacked uploads, counters."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.layout import Rows
from fedjax_mm.methods.method import Terms
from fedjax_mm.objectives.masked import finish_mean, weighted_sum
from fedjax_mm.simulation.context import Context, Slots, State, World, put, slot_rows
from fedjax_mm.simulation.local import Outcome
from fedjax_mm.simulation.plans import Plan, PlanBucket
from fedjax_mm.simulation.stores import PARTS

Array = jax.Array
Tree = Any


class Progress(NamedTuple):
    """A round on its way through the lanes.

    Attributes:
        state: The state; private parts are already new for lanes that are done.
        sums: Module -> per bucket: part -> (sum of weighted values by row, sum of weights `[rows]`), shared parts only.
        samples: Training samples of the cohort members that count, `[S]`.
        extra: Name -> (sum of weighted leaves `[S, ...]`, sum of weights `[S]`), of `Upload.mean`, in the run's
            precision whatever the leaves' types: an average of counts is a number too.
        stack: `Upload.stack` by cohort member, leaves `[S * cohort, ...]`, seed by seed.
        heard: Whether the member's upload counts, bool `[S * cohort]`.
        terms: Term -> (sum, weight), each `[S]`.
        broken: Module, or `upload` -> whether it was not finite, bool `[L]`.
        sent_rows: For each `Rows` of an upload, the rows present, int32 `[S]`.
        received_rows: For each `Rows` of a download, the same.
    """

    state: State
    sums: dict[str, list[dict[str, tuple[Tree, Array]]]]
    samples: Array
    extra: dict[str, tuple[Tree, Array]]
    stack: Tree
    heard: Array
    terms: Terms
    broken: dict[str, Array]
    sent_rows: list[Array]
    received_rows: list[Array]


def empty_progress(context: Context, trained: frozenset[str], state: State, outcome: Outcome) -> Progress:
    """A round before its first lane; averages of the `trained` modules; `outcome` gives shapes, of any plan's lanes."""
    seeds = context.seeds
    upload = outcome.upload

    def zeros(leaf: Array, lead: int) -> Array:
        return jnp.zeros((lead, *leaf.shape[1:]), leaf.dtype)

    weight = context.settings.dtype
    sums = {
        name: [
            {
                part: (jax.tree.map(_accumulator, values[part]), jnp.zeros(_rows(values[part]), weight))
                for part in PARTS
                if name in trained and store.shared(part) and jax.tree.leaves(values[part])
            }
            for values in state.stores[name]
        ]
        for name, store in context.stores.items()
    }
    return Progress(
        state=state,
        sums=sums,
        samples=jnp.zeros(seeds, weight),
        extra={
            name: (
                jax.tree.map(lambda leaf: jnp.zeros((seeds, *leaf.shape[1:]), weight), value),
                jnp.zeros(seeds, weight),
            )
            for name, (value, _) in upload.mean.items()
        },
        stack=jax.tree.map(lambda leaf: zeros(leaf, seeds * context.cohort), upload.stack),
        heard=jnp.zeros(seeds * context.cohort, bool),
        terms=jax.tree.map(lambda leaf: zeros(leaf, seeds), outcome.terms),
        broken={name: jnp.zeros(context.seeds * context.clients, bool) for name in outcome.finite},
        sent_rows=[jnp.zeros(seeds, jnp.int32) for _ in all_rows(upload)],
        received_rows=[jnp.zeros(seeds, jnp.int32) for _ in all_rows(outcome.crowd.download)],
    )


def absorb(
    context: Context, plan: Plan, world: World, progress: Progress, outcome: Outcome, position: Array
) -> Progress:
    """Adds a plan's lanes to a round.

    A lane whose result is not finite counts for nothing and keeps what it had; it is marked.

    Args:
        context: The context.
        plan: The plan.
        world: The world.
        progress: The round so far.
        outcome: The plan's lanes.
        position: Lane -> position of the member in the stacked cohort, int32 `[L]`, out of range for all others.

    Returns:
        The round with these lanes.
    """
    crowd, ok = outcome.crowd, outcome.ok
    state = progress.state
    stores, sums = _add_networks(context, plan, world, progress, outcome, ok)
    slot = jnp.where(ok, position[crowd.lanes], progress.heard.shape[0])
    lane = jnp.where(crowd.active, crowd.lanes, position.shape[0])
    kept = jnp.where(ok, crowd.lanes, position.shape[0])
    new = State(
        stores=stores,
        previous=_remember(world, plan, state.previous, outcome, ok),
        participated=_write(state.participated, kept, True),
        clients=jax.tree.map(lambda table, v: _write(table, kept, v), state.clients, outcome.upload.state),
        server=state.server,
        optimisers=_keep_optimisers(world, plan, state.optimisers, outcome, ok),
    )
    return Progress(
        state=new,
        sums=sums,
        samples=_add_by_seed(plan, progress.samples, jnp.where(ok, crowd.info.n, 0), crowd.seed),
        extra=_add_extra(context, plan, progress.extra, outcome, ok),
        stack=jax.tree.map(lambda table, v: _write(table, slot, v), progress.stack, outcome.upload.stack),
        heard=_write(progress.heard, slot, ok),
        terms=jax.tree.map(
            lambda total, v: _add_by_seed(plan, total, jnp.where(ok, v, 0), crowd.seed), progress.terms, outcome.terms
        ),
        broken={name: _write(progress.broken[name], lane, ~finite) for name, finite in outcome.finite.items()},
        sent_rows=[
            _add_by_seed(plan, total, jnp.where(crowd.active, count, 0), crowd.seed)
            for total, count in zip(progress.sent_rows, _present(outcome.upload, plan.size), strict=True)
        ],
        received_rows=[
            _add_by_seed(plan, total, jnp.where(crowd.active, count, 0), crowd.seed)
            for total, count in zip(progress.received_rows, _present(crowd.download, plan.size), strict=True)
        ],
    )


def combine(progress: Progress, axis: str | None) -> Progress:
    """Adds up what the devices of a mesh axis have each summed over their lanes; state and marks stay as they are."""
    if axis is None:
        return progress

    def total(leaf: Array) -> Array:
        if leaf.dtype == jnp.bool_:
            return jax.lax.psum(leaf.astype(jnp.int32), axis) > 0
        return jax.lax.psum(leaf, axis)

    theirs = ("sums", "samples", "extra", "stack", "heard", "terms", "sent_rows", "received_rows")
    return progress._replace(**{name: jax.tree.map(total, getattr(progress, name)) for name in theirs})


def finish(context: Context, progress: Progress) -> Slots:
    """The averages of the shared parts; where nothing was added, what was there before."""
    stores: Slots = {}
    for name, entries in progress.state.stores.items():
        everyone = context.layout.modules[name].weight == "everyone"
        finish_part = partial(_finish_with_copies, progress.samples) if everyone else jax.vmap(finish_mean)
        stores[name] = [
            dict(values)
            | {
                part: jax.tree.map(lambda s, old, f=finish_part, w=weights: f(s, w, old), summed, values[part])
                for part, (summed, weights) in sums.items()
            }
            for values, sums in zip(entries, progress.sums[name], strict=True)
        ]
    return stores


def _finish_with_copies(samples: Array, summed: Array, weights: Array, old: Array) -> Array:
    """The averages `[rows, ...]` with the untrained copies of those who added nothing.

    Args:
        samples: What all of a seed's members weigh, `[S]`.
        summed: Sums of weighted values, `[rows, ...]`, as many rows for each seed.
        weights: What those who added to a row weigh, `[rows]`.
        old: What the copies are of, `[rows, ...]`.

    Returns:
        As `old`.
    """
    total = jnp.repeat(samples, len(weights) // len(samples))
    rest = (total - weights).astype(summed.dtype).reshape((-1,) + (1,) * (summed.ndim - 1))
    return jax.vmap(finish_mean)(summed + jnp.where(rest > 0, rest * old, 0), total, old)


def all_rows(tree: Tree) -> list[Rows]:
    """Every `Rows` in a tree."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Rows))
    return [node for node in nodes if isinstance(node, Rows)]


def _present(tree: Tree, lanes: int) -> list[Array]:
    """The rows present in each `Rows` of a tree with a leading lane axis, int32 `[lanes]`."""
    return [jnp.sum(rows.present.reshape(lanes, -1), axis=1, dtype=jnp.int32) for rows in all_rows(tree)]


def _rows(tree: Tree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]


def _accumulator(leaf: Array) -> Array:
    dtype = jnp.promote_types(leaf.dtype, jnp.float32)
    return jnp.zeros(leaf.shape, dtype if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.dtype)


def _add_networks(
    context: Context, plan: Plan, world: World, progress: Progress, outcome: Outcome, ok: Array
) -> tuple[Slots, dict[str, list[dict[str, tuple[Tree, Array]]]]]:
    """Private parts into their rows, shared ones onto the sums of theirs."""
    lanes, state = outcome.crowd.lanes, progress.state
    stores: Slots = {}
    sums = {}
    for name, store in context.stores.items():
        sums[name] = [dict(entry) for entry in progress.sums[name]]
        stores[name] = [dict(entry) for entry in state.stores[name]]
        for bucket, values in zip(plan.buckets[name], outcome.networks[name], strict=True):
            kept, added = stores[name][bucket.position], sums[name][bucket.position]
            weights = jnp.where(ok[bucket.lanes], _weights(context, name, bucket, outcome), 0)
            for part in PARTS:
                if not store.shared(part):
                    # Of lanes that do not count these are the old ones already.
                    all_of_it = part in bucket.whole
                    old, new = kept[part], values[part]
                    kept[part] = new if all_of_it else put(world, name, part, bucket, lanes, ok, new, old)
                elif part in added:
                    rows = slot_rows(world, name, part, bucket, lanes) if plan.seeds is None else bucket.rows[part]
                    added[part] = _add_by_row(added[part], values[part], weights, rows)
    return stores, sums


def _weights(context: Context, name: str, bucket: PlanBucket, outcome: Outcome) -> Array:
    """Weight of each slot in its average: the samples that trained it, all of the client's, or 1 for every holder."""
    info, module = outcome.crowd.info, context.layout.modules[name]
    n = info.n[bucket.lanes]
    if module.by_modality and module.weight == "samples":
        n = info.n_m[bucket.lanes, bucket.columns % len(context.modalities)]
    weights = jnp.ones_like(n) if module.weight == "uniform" else n
    return weights.astype(context.settings.dtype)


def _add_by_row(sums: tuple[Tree, Array], values: Tree, weights: Array, rows: Array | np.ndarray) -> tuple[Tree, Array]:
    """Adds weighted slots to their rows, in slot order.

    Rows known in advance are reduced over a table of each row's slots: unlike a scatter this is deterministic on every
    backend. Rows picked at run time are scattered; they are all different unless several lanes step at once.
    """
    total, weight = sums
    if isinstance(rows, np.ndarray):
        table, used = _members(rows, weight.shape[0])
        picked = jnp.where(used, weights[table], 0)
        new_weight = weight + jnp.sum(picked, axis=1, dtype=weight.dtype)

        def add(t: Array, v: Array) -> Array:
            return t + jax.vmap(weighted_sum)(v[table], picked)[0].astype(t.dtype)

    else:
        new_weight = weight.at[rows].add(weights.astype(weight.dtype))

        def add(t: Array, v: Array) -> Array:
            spread = weights.astype(t.dtype).reshape((-1,) + (1,) * (v.ndim - 1))
            return t.at[rows].add((jnp.where(spread > 0, v, 0) * spread).astype(t.dtype))

    return jax.tree.map(
        lambda t, v: add(t, v) if jnp.issubdtype(v.dtype, jnp.inexact) else t, total, values
    ), new_weight


def _members(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Per row its slots in ascending order, int32 `[rows, most]`, and which entries are in use."""
    order = np.argsort(rows, kind="stable")
    sizes = np.bincount(rows, minlength=count)
    starts = np.cumsum(sizes) - sizes
    offsets = np.arange(max(sizes.max(), 1))
    used = offsets < sizes[:, None]
    return order[np.where(used, starts[:, None] + offsets, 0)].astype(np.int32), used


def _add_by_seed(plan: Plan, total: Array, values: Array, seed: Array) -> Array:
    """Adds lanes `[n, ...]` to their seeds `[S, ...]`."""
    if plan.seeds is None:
        return total.at[seed].add(values.astype(total.dtype))
    return total + jnp.sum(values.reshape(total.shape[0], -1, *total.shape[1:]), axis=1, dtype=total.dtype)


def _add_extra(context: Context, plan: Plan, extra: dict, outcome: Outcome, ok: Array) -> dict:
    added = {}
    for name, (value, weight) in outcome.upload.mean.items():
        total, weights = extra[name]
        counted = jnp.where(ok, weight, 0).astype(weights.dtype)

        def add(t: Array, v: Array, counted: Array = counted) -> Array:
            spread = counted.reshape((-1,) + (1,) * (v.ndim - 1))
            return _add_by_seed(plan, t, jnp.where(spread > 0, v, 0) * spread, outcome.crowd.seed)

        added[name] = (
            jax.tree.map(add, total, value),
            _add_by_seed(plan, weights, counted, outcome.crowd.seed),
        )
    return added


def _remember(world: World, plan: Plan, previous: Slots, outcome: Outcome, ok: Array) -> Slots:
    stored = {name: [dict(entry) for entry in entries] for name, entries in previous.items()}
    for name in stored:
        for bucket, values in zip(plan.buckets[name], outcome.networks[name], strict=True):
            for part in PARTS:
                stored[name][bucket.position][part] = put(
                    world,
                    name,
                    "slots",
                    bucket,
                    outcome.crowd.lanes,
                    ok,
                    values[part],
                    stored[name][bucket.position][part],
                )
    return stored


def _keep_optimisers(world: World, plan: Plan, kept: list, outcome: Outcome, ok: Array) -> list:
    new = [{name: list(buckets) for name, buckets in phase.items()} for phase in kept]
    for phase, states in zip(new, outcome.optimisers, strict=False):
        for name in phase:
            for bucket, values in zip(plan.buckets[name], states[name], strict=True):
                phase[name][bucket.position] = put(
                    world, name, "slots", bucket, outcome.crowd.lanes, ok, values, phase[name][bucket.position]
                )
    return new


def _write(table: Array, rows: Array, values: Array | bool) -> Array:
    return table.at[rows].set(values, mode="drop")
