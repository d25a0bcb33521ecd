"""What the compiled program knows (static) and what it is given (arrays)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_mm.methods.layout import Layout, Spec
from fedjax_mm.methods.method import Method
from fedjax_mm.simulation.optimise import Optimiser
from fedjax_mm.simulation.plans import Plan, PlanBucket
from fedjax_mm.simulation.population import Tables
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import PARTS, Store, at

Array = jax.Array
Tree = Any
Slots = dict[str, list[dict[str, Tree]]]
"""Module -> per bucket of a plan (or of a store) `{"params": tree, "statistics": tree}`, leaves `[slots, ...]`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """The static side of a simulation.

    Attributes:
        method: The method; only its structure is used, its numbers come with the `World`.
        spec: Static facts for the method.
        layout: The method's layout.
        settings: Resolved settings.
        stores: Module name -> its storage.
        networks: Module name -> pure function `(params, *inputs) -> output`, for modules that are not encoders; and
            `fusion`.
        modalities: The M modality names.
        seeds: The number of seeds S.
        clients: The number of clients per seed, padding included, that are lanes here.
        everyone: The number of clients K of the federation; padding has this id.
        cohort: The number of clients in a round.
        axis: Name of the mesh axis over which a seed's clients are divided among devices; None if they are all here.
    """

    method: Method
    spec: Spec
    layout: Layout
    settings: Settings
    stores: Mapping[str, Store]
    networks: Mapping[str, Callable[..., Array]]
    modalities: tuple[str, ...]
    seeds: int
    clients: int
    everyone: int
    cohort: int
    axis: str | None = None

    @property
    def lane_modules(self) -> tuple[str, ...]:
        """Names of the modules that are not encoders."""
        return tuple(name for name, module in self.layout.modules.items() if module.network is not None)


class World(NamedTuple):
    """Arrays that no round changes.

    Attributes:
        tables: Data and index tables.
        rows: Module -> part -> row of each slot in its bucket, int32 `[L, J]`.
        keys: One key per seed, `[S]`.
        method: The method with its numbers as arrays `[S]`.
        optimisers: Optimiser group -> optimiser with its numbers as arrays `[S]`.
    """

    tables: Tables
    rows: Mapping[str, Mapping[str, Array]]
    keys: Array
    method: Method
    optimisers: Mapping[str, Optimiser]


class State(NamedTuple):
    """All that a round changes, and all that a checkpoint holds.

    Attributes:
        stores: The networks of all clients and of the server.
        previous: The networks each client last finished with, if the layout has that view.
        participated: Whether a lane ever did, bool `[L]`.
        clients: The method's client state, leaves `[L, ...]`.
        server: The method's server state, leaves `[S, ...]`.
        optimisers: Kept optimiser states by phase, if they are kept.
    """

    stores: Slots
    previous: Slots
    participated: Array
    clients: Tree
    server: Tree
    optimisers: Tree


def select(mask: Array, new: Tree, old: Tree) -> Tree:
    """Per leaf and entry of the leading axis: `new` where `mask` `[n]`, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape((-1,) + (1,) * (a.ndim - 1)), a, b), new, old)


def slot_rows(world: World, module: str, part: str, bucket: PlanBucket, lanes: Array) -> Array:
    """The rows of a plan bucket's slots, int32 `[slots]`, for lanes `[plan.size]` picked at run time."""
    if part in bucket.rows:
        return jnp.asarray(bucket.rows[part])
    return world.rows[module][part][lanes[bucket.lanes], bucket.columns]


def take(world: World, plan: Plan, stores: Slots, lanes: Array, *, part_of: str | None = None) -> Slots:
    """The networks of a plan's lanes.

    Args:
        world: The world.
        plan: The plan.
        stores: Networks by row.
        lanes: The lanes, int32 `[plan.size]`.
        part_of: Rows to follow for every part (`slots`); by default each part's own.

    Returns:
        The networks by slot.
    """
    taken: Slots = {}
    for module, buckets in plan.buckets.items():
        taken[module] = []
        for bucket in buckets:
            values = {}
            for part in PARTS:
                rows_of = part_of or part
                kept = stores[module][bucket.position][part]
                whole = rows_of in bucket.whole
                values[part] = kept if whole else at(kept, slot_rows(world, module, rows_of, bucket, lanes))
            taken[module].append(values)
    return taken


def put(
    world: World, module: str, part: str, bucket: PlanBucket, lanes: Array, ok: Array, new: Tree, old: Tree
) -> Tree:
    """Writes a plan bucket's slots into rows that are theirs alone.

    Args:
        world: The world.
        module: Module name.
        part: Whose rows.
        bucket: The plan bucket.
        lanes: The lanes, int32 `[plan.size]`.
        ok: Bool `[plan.size]`; the slots of other lanes keep what they have.
        new: By slot, leaves `[slots, ...]`.
        old: By row, leaves `[rows, ...]`.

    Returns:
        By row.
    """
    ok = ok[bucket.lanes]
    if part in bucket.whole:
        return select(ok, new, old)
    rows = slot_rows(world, module, part, bucket, lanes)

    def write(values: Array, table: Array) -> Array:
        return table.at[jnp.where(ok, rows, table.shape[0])].set(values, mode="drop")

    return jax.tree.map(write, new, old)
