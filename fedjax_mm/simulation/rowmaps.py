"""Where each row of a state lies once lanes are divided, and back."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_mm.simulation.context import Context, State
from fedjax_mm.simulation.division import Division
from fedjax_mm.simulation.stores import PARTS, Store

Tree = Any


class RowMap(NamedTuple):
    """Where the rows of an array lie once it is divided, and back.

    Attributes:
        source: The row that each device's row is a copy of, int `[D, r]`.
        device: A device that has the row, int `[R]`.
        row: Its row there, int `[R]`.
    """

    source: np.ndarray
    device: np.ndarray
    row: np.ndarray


def row_maps(context: Context, stores: Mapping[str, Store], division: Division) -> State:
    """The row maps of a state, a prefix of its tree.

    Args:
        context: The context of all lanes.
        stores: Module name -> its storage on a device.
        division: Who has which lanes.

    Returns:
        A `RowMap` for every part of the state.
    """
    by_part = {
        name: [
            {part: _row_map(context.stores[name], store, division, part, position) for part in (*PARTS, "slots")}
            for position in range(len(store.specs))
        ]
        for name, store in stores.items()
    }
    slots = {name: [dict.fromkeys(PARTS, maps["slots"]) for maps in buckets] for name, buckets in by_part.items()}
    device, row = np.empty((2, division.lanes.max() + 1), int)
    where = np.nonzero(division.real)
    device[division.lanes[where]], row[division.lanes[where]] = where
    by_lane = RowMap(division.lanes, device, row)
    holder, place = np.empty((2, division.seeds.max() + 1), int)
    # Backwards: of what several hold, padding among it, the first counts.
    for d in reversed(range(division.devices)):
        for position in reversed(range(division.seeds.shape[1])):
            holder[division.seeds[d, position]], place[division.seeds[d, position]] = d, position
    return State(
        stores={name: [{part: maps[part] for part in PARTS} for maps in buckets] for name, buckets in by_part.items()},
        previous=slots,  # pyright: ignore[reportArgumentType]
        participated=by_lane,  # pyright: ignore[reportArgumentType]
        clients=by_lane,
        server=RowMap(division.seeds, holder, place),
        optimisers={name: [maps["slots"] for maps in buckets] for name, buckets in by_part.items()},
    )


def _row_map(whole: Store, mine: Store, division: Division, part: str, position: int) -> RowMap:
    held = mine.bucket == position
    source = np.zeros((division.devices, len(mine.owners[part][position])), int)
    device, row = np.zeros((2, len(whole.owners[part][position])), int)
    for d in reversed(range(division.devices)):
        rows = whole.rows[part][division.lanes[d]]
        source[d, mine.rows[part][held]] = rows[held]
        real = held & division.real[d][:, None]
        device[rows[real]], row[rows[real]] = d, mine.rows[part][real]
    return RowMap(source, device, row)


def map_rows(function: Callable[[Any, RowMap], Any], maps: State, state: State) -> State:
    """`function(leaf, row map)` for every leaf of a state."""

    def below(rows: RowMap, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: function(leaf, rows), tree)

    def prefixed(prefix: Tree, tree: Tree) -> Tree:
        return jax.tree.map(below, prefix, tree, is_leaf=lambda node: isinstance(node, RowMap))

    previous = {name: maps.previous[name] for name in state.previous}
    optimisers = [prefixed({name: maps.optimisers[name] for name in phase}, phase) for phase in state.optimisers]
    rest = maps._replace(previous=previous, optimisers=[])
    return prefixed(rest, state._replace(optimisers=[]))._replace(optimisers=optimisers)
