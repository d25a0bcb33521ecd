"""Where each row of a state lies once lanes are divided, or some of them picked, and back."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_mm.simulation.context import Context, State
from fedjax_mm.simulation.division import Division
from fedjax_mm.simulation.stores import PARTS, ROWS, Store

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


class Picked(NamedTuple):
    """Some rows of an array.

    Attributes:
        source: The row that each is a copy of, int `[r]`.
        real: False for padding, bool `[r]`.
    """

    source: np.ndarray
    real: np.ndarray


def row_maps(context: Context, stores: Mapping[str, Store], division: Division) -> State:
    """The row maps of a state, a prefix of its tree.

    Args:
        context: The context of all lanes.
        stores: Module name -> its storage on a device.
        division: Who has which lanes.

    Returns:
        A `RowMap` for every part of the state.
    """
    device, row = np.empty((2, division.lanes.max() + 1), int)
    where = np.nonzero(division.real)
    device[division.lanes[where]], row[division.lanes[where]] = where
    by_lane = RowMap(division.lanes, device, row)
    holder, place = np.empty((2, division.seeds.max() + 1), int)
    # Backwards: of what several hold, padding among it, the first counts.
    for d in reversed(range(division.devices)):
        for position in reversed(range(division.seeds.shape[1])):
            holder[division.seeds[d, position]], place[division.seeds[d, position]] = d, position
    of_part = functools.partial(_row_map, division)
    return _prefix(context.stores, stores, of_part, by_lane, RowMap(division.seeds, holder, place))


def pick_rows(context: Context, stores: Mapping[str, Store], lanes: np.ndarray, real: np.ndarray) -> State:
    """The rows of some lanes of every seed, a prefix of the state's tree.

    Args:
        context: The context of all lanes.
        stores: Module name -> the storage of these lanes alone.
        lanes: The lanes, seed by seed, int `[l]`; padding repeats a lane of the same shape.
        real: False for padding, bool `[l]`.

    Returns:
        A `Picked` for every part of the state.
    """
    seeds = np.arange(context.seeds)
    of_part = functools.partial(_picked, lanes, real)
    return _prefix(context.stores, stores, of_part, Picked(lanes, real), Picked(seeds, seeds >= 0))


def _prefix(
    whole: Mapping[str, Store], mine: Mapping[str, Store], of_part: Callable[..., Any], by_lane: Any, by_seed: Any
) -> State:
    """A prefix of a state's tree, from `of_part(whole store, store, part, bucket)`."""
    by_part = {
        name: [
            {part: of_part(whole[name], store, part, position) for part in ROWS} for position in range(len(store.specs))
        ]
        for name, store in mine.items()
    }
    slots: Any = {name: [dict.fromkeys(PARTS, maps["slots"]) for maps in buckets] for name, buckets in by_part.items()}
    return State(
        stores={name: [{part: maps[part] for part in PARTS} for maps in buckets] for name, buckets in by_part.items()},
        previous=slots,
        participated=by_lane,
        clients=by_lane,
        server=by_seed,
        optimisers={name: [maps["slots"] for maps in buckets] for name, buckets in by_part.items()},
    )


def _picked(lanes: np.ndarray, real: np.ndarray, whole: Store, mine: Store, part: str, position: int) -> Picked:
    held = mine.bucket == position
    source = np.zeros(len(mine.owners[part][position]), int)
    source[mine.rows[part][held]] = whole.rows[part][lanes][held]
    kept = np.zeros(source.shape, bool)
    kept[mine.rows[part][held & real[:, None]]] = True
    return Picked(source, kept)


def _row_map(division: Division, whole: Store, mine: Store, part: str, position: int) -> RowMap:
    held = mine.bucket == position
    source = np.zeros((division.devices, len(mine.owners[part][position])), int)
    device, row = np.zeros((2, len(whole.owners[part][position])), int)
    for d in reversed(range(division.devices)):
        rows = whole.rows[part][division.lanes[d]]
        source[d, mine.rows[part][held]] = rows[held]
        real = held & division.real[d][:, None]
        device[rows[real]], row[rows[real]] = d, mine.rows[part][real]
    return RowMap(source, device, row)


def map_rows(function: Callable[..., Any], maps: State, *states: State) -> State:
    """`function(leaf, ..., row map)` for every leaf of a state, or of several of one structure."""

    def below(rows: Any, *trees: Tree) -> Tree:
        return jax.tree.map(lambda *leaves: function(*leaves, rows), *trees)

    def prefixed(prefix: Tree, *trees: Tree) -> Tree:
        return jax.tree.map(below, prefix, *trees, is_leaf=lambda node: isinstance(node, RowMap | Picked))

    previous = {name: maps.previous[name] for name in states[0].previous}
    optimisers = [
        prefixed({name: maps.optimisers[name] for name in phases[0]}, *phases)
        for phases in zip(*(state.optimisers for state in states), strict=True)
    ]
    rest = maps._replace(previous=previous, optimisers=[])
    return prefixed(rest, *(state._replace(optimisers=[]) for state in states))._replace(optimisers=optimisers)
