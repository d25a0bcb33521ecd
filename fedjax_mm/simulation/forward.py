"""From rows of the data set to what a method sees: batches, features and lanes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.method import Batch, Info, Lane, Method
from fedjax_mm.models import networks
from fedjax_mm.models.product import product
from fedjax_mm.simulation.context import Context, Slots, State, World, at, select, take
from fedjax_mm.simulation.dense import LayerSpec, Piece, inputs_of, pieces_by_level, run_layers
from fedjax_mm.simulation.picking import Part, rows_of_slots
from fedjax_mm.simulation.plans import Plan, PlanBucket
from fedjax_mm.simulation.population import read_batch, read_inputs
from fedjax_mm.simulation.span import Span, outputs_at

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
        spans: By encoder bucket of the plan, its first layers' samples where they are trained in their span, else None;
            empty where none are.
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
    spans: Sequence[Span | None] = ()


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
    view: str = "current",
    places: Array | None = None,
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
        view: Whose encoders they are.
        places: Where the batch's samples are among the lane's training samples, int32 `[n, B]`; needed in a crowd
            with `spans`.

    Returns:
        Features `[n, M, B, d]`, 0 where not observed, and the new statistics per bucket.
    """
    parts, statistics, layers = [], [], []
    for number, (bucket, values) in enumerate(zip(plan.buckets["encoders"], encoders, strict=True)):
        new = {}
        if isinstance(bucket.spec, LayerSpec):
            layers.append((number, bucket, values["params"]))
        else:
            features, new = _encode_bucket(context, world, crowd, bucket, values, batch, keys, train=train)
            parts.append((bucket.columns * plan.size + bucket.lanes, features))
        statistics.append(new)
    if layers:
        parts += _encode_layers(context, world, crowd, layers, batch, view, places)
    shape = (*batch.observed.shape, context.settings.dim)
    if not parts:
        return jnp.zeros(shape, context.settings.dtype), statistics
    # By lane, then by modality.
    slots = np.arange(len(context.modalities) * plan.size).reshape(-1, plan.size).T.reshape(-1)
    features = rows_of_slots(parts, slots).reshape(shape)
    return jnp.where(batch.observed[..., None], features, 0), statistics


def read_slots(context: Context, world: World, crowd: Crowd, batch: Batch, j: int, lanes: np.ndarray) -> Array:
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
    *,
    train: bool,
) -> tuple[Array, Tree]:
    """The features `[slots, B, d]` of a bucket's slots, and the bucket's new statistics."""
    mask = batch.observed[bucket.lanes, bucket.columns]
    inputs = [read_slots(context, world, crowd, batch, part.j, part.positions) for part in bucket.segments]

    def run(params, stats, x, m, key, column):
        key = jax.random.fold_in(key, column)
        dtype = context.settings.dtype
        return networks.apply(bucket.spec, params, stats, x, dtype=dtype, mask=m, key=key, train=train)

    inputs = jnp.concatenate(inputs)
    return jax.vmap(run)(values["params"], values["statistics"], inputs, mask, keys[bucket.lanes], bucket.columns)


def _encode_layers(
    context: Context,
    world: World,
    crowd: Crowd,
    layers: list[tuple[int, PlanBucket, Tree]],
    batch: Batch,
    view: str,
    places: Array | None,
) -> list[Part]:
    """The features of the dense encoders by slot, modality * lanes + lane; rows `[B, d]`."""
    lanes, modalities = len(crowd.lanes), len(context.modalities)
    stacks = [[(segment.j, segment.positions) for segment in bucket.segments] for _, bucket, _ in layers]

    def enter(piece: Piece, kernel: Array) -> Array:
        number = layers[piece.stack][0]
        span = crowd.spans[number] if crowd.spans else None
        if span is None:
            return product(inputs_of(piece.segments, partial(read_slots, context, world, crowd, batch)), kernel)
        # As many samples as inputs, and D would pass for a kernel.
        assert places is not None, "a crowd with spans needs the places of its batch"
        return outputs_at(span, view, kernel, places[piece.slots % lanes])

    return run_layers(
        pieces_by_level(stacks, modalities, lanes),
        [bucket.spec for _, bucket, _ in layers],  # pyright: ignore[reportArgumentType]
        [params for _, _, params in layers],
        enter,
    )


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
    places: Array | None = None,
) -> tuple[Sight, list[Tree]]:
    """Runs the networks of every view; gradients flow through `current` only, the others run in evaluation mode.

    Arguments are as for `encode`.

    Returns:
        What is seen, and the current encoders' new statistics per bucket.
    """
    features, params, quantities = {}, {}, {}
    run = partial(encode, context, plan, world, crowd, batch=batch, keys=keys, places=places)
    features["current"], statistics = run(encoders=current["encoders"], train=train)
    params["current"] = lane_params(context, plan, current)
    for view in context.layout.views:
        frozen = jax.lax.stop_gradient(crowd.views[view])
        features[view], _ = run(encoders=frozen["encoders"], train=False, view=view)
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
