"""From rows of the data set to what a method sees: batches, features and lanes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.method import Batch, Info, Lane, Method
from fedjax_mm.models import networks
from fedjax_mm.simulation.context import Context, Slots, State, World, at, select, take
from fedjax_mm.simulation.dense import LayerSpec, pieces_by_level, run_layers
from fedjax_mm.simulation.plans import Plan, PlanBucket
from fedjax_mm.simulation.population import read_batch, read_inputs

Array = jax.Array
Tree = Any


class Crowd(NamedTuple):
    """The lanes of a plan, picked: all leaves have the leading axis `[plan.size]`.

    Attributes:
        lanes: Lane numbers, int32.
        active: False for a lane that only fills the plan up.
        seed: Positions of their seeds, int32.
        member: Their rows in the tables, int32.
        info: Their clients.
        method: Their method.
        keys: The keys of their seeds.
        download: What they received.
        state: Their client state.
        round: The round, int32.
        views: View -> networks by slot, for the views that are frozen.
    """

    lanes: Array
    active: Array
    seed: Array
    member: Array
    info: Info
    method: Method
    keys: Array
    download: Tree
    state: Tree
    round: Array
    views: Mapping[str, Slots]


def gather_crowd(
    context: Context, plan: Plan, world: World, state: State, lanes: Array, active: Array, round_: Array
) -> tuple[Crowd, Slots]:
    """Picks a plan's lanes.

    Args:
        context: The context.
        plan: The plan.
        world: The world.
        state: The state at the start of the round.
        lanes: Lane numbers, int32 `[plan.size]`.
        active: Bool `[plan.size]`.
        round_: The round, int32 scalar.

    Returns:
        The crowd, and its networks as the round starts with them, by slot: private ones its own, shared ones the
        server's.
    """
    seed, member = world.tables.seed[lanes], world.tables.member[lanes]
    info, method = at(world.tables.info, member), at(world.method, seed)
    start = take(world, plan, state.stores, lanes)
    views: dict[str, Slots] = {}
    if "download" in context.layout.views or context.layout.quantities:
        views["download"] = start
    if "previous" in context.layout.views:
        stored = take(world, plan, state.previous, lanes, part_of="slots")
        seen = state.participated[lanes]
        views["previous"] = {
            name: [
                select(seen[bucket.lanes], old, new)
                for bucket, old, new in zip(plan.buckets[name], stored[name], start[name], strict=True)
            ]
            for name in start
        }
    download = jax.vmap(lambda m, server, i: m.download(server, i))(method, at(state.server, seed), info)
    crowd = Crowd(
        lanes=lanes,
        active=active,
        seed=seed,
        member=member,
        info=info,
        method=method,
        keys=world.keys[seed],
        download=download,
        state=at(state.clients, lanes),
        round=jnp.broadcast_to(round_, lanes.shape),
        views=views,
    )
    return crowd, start


def read(world: World, crowd: Crowd, rows: Array) -> Batch:
    """The batch of each lane, for rows `[n, B]`."""
    return jax.vmap(lambda info, member, r: read_batch(world.tables, info, member, r))(crowd.info, crowd.member, rows)


def encode(
    context: Context,
    plan: Plan,
    world: World,
    crowd: Crowd,
    encoders: list[dict[str, Tree]],
    batch: Batch,
    keys: Array,
    *,
    train: bool,
) -> tuple[Array, list[Tree]]:
    """Runs every encoder of a plan on its part of the batch.

    Args:
        context: The context.
        plan: The plan.
        world: The world.
        crowd: The plan's lanes.
        encoders: Encoders by slot, a tree per bucket.
        batch: The batch, leaves `[n, ...]`.
        keys: A key per lane, `[n]`.
        train: Whether layers that differ in training are in training.

    Returns:
        Features `[n, M, B, d]`, 0 where not observed, and the new statistics per bucket.
    """
    shape = (plan.size, batch.y.shape[1], context.settings.dim)
    columns = [jnp.zeros(shape, context.settings.dtype)] * len(context.modalities)
    statistics, layers = [], []
    for bucket, values in zip(plan.buckets["encoders"], encoders, strict=True):
        new = {}
        if isinstance(bucket.spec, LayerSpec):
            layers.append((bucket, values["params"]))
        else:
            columns, new = _encode_bucket(context, world, crowd, bucket, values, batch, keys, columns, train=train)
        statistics.append(new)
    if layers:
        columns = _encode_layers(context, world, crowd, layers, batch, columns)
    return jnp.stack(columns, axis=1), statistics


def _read_slots(context: Context, world: World, crowd: Crowd, batch: Batch, j: int, lanes: np.ndarray) -> Array:
    """The inputs of some lanes in one modality, `[n, B, ...]`, 0 where not observed."""
    name, dtype = context.modalities[j], context.settings.dtype
    return jax.vmap(lambda member, rows, mask: read_inputs(world.tables, name, member, rows, mask, dtype))(
        crowd.member[lanes], batch.index[lanes], batch.observed[lanes, j]
    )


def _encode_bucket(
    context: Context,
    world: World,
    crowd: Crowd,
    bucket: PlanBucket,
    values: dict[str, Tree],
    batch: Batch,
    keys: Array,
    columns: list[Array],
    *,
    train: bool,
) -> tuple[list[Array], Tree]:
    """The columns `[n, B, d]` with the features of a bucket's slots in them, and the bucket's new statistics."""
    mask = batch.observed[bucket.lanes, bucket.columns]
    inputs = [_read_slots(context, world, crowd, batch, part.j, part.positions) for part in bucket.segments]

    def run(params, stats, x, m, key, column):
        key = jax.random.fold_in(key, column)
        dtype = context.settings.dtype
        return networks.apply(bucket.spec, params, stats, x, dtype=dtype, mask=m, key=key, train=train)

    features, statistics = jax.vmap(run)(
        values["params"], values["statistics"], jnp.concatenate(inputs), mask, keys[bucket.lanes], bucket.columns
    )
    features = jnp.where(mask[..., None], features, 0)
    new, offset = list(columns), 0
    for segment in bucket.segments:
        part = features[offset : offset + len(segment.positions)]
        new[segment.j] = _filled(new[segment.j], segment.positions, part)
        offset += len(segment.positions)
    return new, statistics


def _encode_layers(
    context: Context,
    world: World,
    crowd: Crowd,
    layers: list[tuple[PlanBucket, Tree]],
    batch: Batch,
    columns: list[Array],
) -> list[Array]:
    """The columns `[n, B, d]` with the features of the dense encoders in them."""
    lanes, modalities = len(crowd.lanes), len(context.modalities)
    stacks = [[(segment.j, segment.positions) for segment in bucket.segments] for bucket, _ in layers]
    slots, features = run_layers(
        pieces_by_level(stacks, modalities, lanes),
        [bucket.spec for bucket, _ in layers],  # pyright: ignore[reportArgumentType]
        [params for _, params in layers],
        functools.partial(_read_slots, context, world, crowd, batch),
    )
    new = list(columns)
    for j in np.unique(slots // lanes):
        first, end = np.searchsorted(slots, [j * lanes, (j + 1) * lanes])
        positions = slots[first:end] - j * lanes
        kept = jnp.where(batch.observed[positions, int(j), :, None], features[first:end], 0)
        new[j] = _filled(new[j], positions, kept)
    return new


def _filled(column: Array, lanes: np.ndarray, values: Array) -> Array:
    """A column with the values of some lanes in it."""
    return values if len(lanes) == len(column) else column.at[lanes].set(values)


class Sight(NamedTuple):
    """What the networks make of a batch, for every lane of a plan.

    Attributes:
        features: View -> `[n, M, B, d]`.
        params: View -> module per lane -> parameters, leaves `[n, ...]`.
        quantities: Encoder quantity -> `[n, M]`.
    """

    features: dict[str, Array]
    params: dict[str, dict[str, Tree]]
    quantities: dict[str, Array]


def see(
    context: Context,
    plan: Plan,
    world: World,
    crowd: Crowd,
    current: Slots,
    batch: Batch,
    keys: Array,
    *,
    train: bool,
) -> tuple[Sight, list[Tree]]:
    """Runs the networks of every view; gradients flow through `current` only, the others run in evaluation mode.

    Returns:
        What is seen, and the current encoders' new statistics per bucket.
    """
    features, params, quantities = {}, {}, {}
    features["current"], statistics = encode(context, plan, world, crowd, current["encoders"], batch, keys, train=train)
    params["current"] = lane_params(context, plan, current)
    for view in context.layout.views:
        frozen = jax.lax.stop_gradient(crowd.views[view])
        features[view], _ = encode(context, plan, world, crowd, frozen["encoders"], batch, keys, train=False)
        params[view] = lane_params(context, plan, frozen)
    if "proximal" in context.layout.quantities:
        reference = jax.lax.stop_gradient(crowd.views["download"])
        quantities["proximal"] = _squared_distance(context, plan, current["encoders"], reference["encoders"])
        params["download"] = lane_params(context, plan, reference)
    return Sight(features, params, quantities), statistics


def per_lane(
    context: Context,
    crowd: Crowd,
    function: Callable[[Method, Lane], Tree],
    sight: Sight,
    batch: Batch,
    keys: Array,
) -> Tree:
    """Calls `function(method, lane)` for every lane, vectorised; all leaves gain the leading axis `[n]`."""

    def call(method, info, state, download, round_, sight, batch, key):
        lane = Lane(
            features=sight.features,
            params=sight.params,
            batch=batch,
            info=info,
            state=state,
            download=download,
            key=key,
            round=round_,
            networks=context.networks,
            encoder=sight.quantities,
        )
        return function(method, lane)

    return jax.vmap(call)(crowd.method, crowd.info, crowd.state, crowd.download, crowd.round, sight, batch, keys)


def lane_params(context: Context, plan: Plan, slots: Slots) -> dict[str, Tree]:
    """The parameters of every lane's networks, the encoders apart.

    Args:
        context: The context.
        plan: The plan.
        slots: Networks by slot.

    Returns:
        Module -> leaves `[n, ...]`; of a module per modality `[n, M, ...]`, 0 where the lane does not hold it.
    """
    modules = context.layout.modules
    return {
        name: _by_modality(context, plan, name, slots[name]) if modules[name].per_modality else slots[name][0]["params"]
        for name in context.lane_modules
    }


def _by_modality(context: Context, plan: Plan, name: str, values: list[dict[str, Tree]]) -> Tree:
    shape = (plan.size, len(context.modalities))
    if not values:
        empty, _ = networks.shapes(context.stores[name].specs[0], context.settings.dtype)
        return jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), empty)
    (bucket,) = plan.buckets[name]
    if len(bucket.lanes) == shape[0] * shape[1]:
        return jax.tree.map(lambda leaf: leaf.reshape(shape[::-1] + leaf.shape[1:]).swapaxes(0, 1), values[0]["params"])

    def spread(leaf: Array) -> Array:
        table = jnp.zeros((*shape, *leaf.shape[1:]), leaf.dtype)
        return table.at[bucket.lanes, bucket.columns].set(leaf, unique_indices=True)

    return jax.tree.map(spread, values[0]["params"])


def _squared_distance(context: Context, plan: Plan, encoders: list, reference: list) -> Array:
    table = jnp.zeros((plan.size, len(context.modalities)), context.settings.dtype)
    for bucket, a, b in zip(plan.buckets["encoders"], encoders, reference, strict=True):
        gaps = jax.tree.map(
            lambda x, y: jnp.sum(jnp.square(x - y).reshape(x.shape[0], -1), axis=1), a["params"], b["params"]
        )
        modality = bucket.columns % len(context.modalities)
        table = table.at[bucket.lanes, modality].add(sum(jax.tree.leaves(gaps)))
    return table
