"""Plans: which lanes step together, and where their slots lie in the buckets."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.models.networks import NetworkSpec
from fedjax_mm.simulation.stores import ROWS, Store

MOST_HALVES = 2
MOST_CLASSES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """The slots of one modality inside a bucket.

    Attributes:
        j: Column of the store's tables (0 for modules that exist once a lane).
        positions: Positions of their lanes in the plan, ascending, int32 `[c]`.
    """

    j: int
    positions: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class PlanBucket:
    """The slots of a plan that share an architecture: its segments one after another.

    Attributes:
        position: The bucket's position in the store; -1 for one that only training has (see `narrow`).
        spec: The architecture.
        segments: The segments, by modality.
        rows: Part -> the row of each slot, where it does not depend on the lanes picked at run time.
        whole: Parts whose rows are, in order, exactly the plan's slots: no gather, no scatter.
    """

    position: int
    spec: NetworkSpec
    segments: tuple[Segment, ...]
    rows: Mapping[str, np.ndarray]
    whole: frozenset[str]

    @functools.cached_property
    def lanes(self) -> np.ndarray:
        """Position in the plan of each slot's lane."""
        return np.concatenate([segment.positions for segment in self.segments])

    @functools.cached_property
    def columns(self) -> np.ndarray:
        """Column of each slot in the store's tables: its modality, or level * M + modality."""
        return np.concatenate([np.full(len(segment.positions), segment.j) for segment in self.segments])


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Lanes that step together.

    Attributes:
        size: The number of lanes.
        members: The lanes it is made for, int32: all of them (`size` of them, in this order), or the group from which
            `size` are picked at run time.
        seeds: Position of each lane's seed, int32 `[size]`; None where it depends on the lane picked.
        buckets: Module name -> its buckets.
        longest: Training samples of the member that has most.
        mean: Training samples that a member goes through in an epoch, on average; where lanes step together, `longest`.
        turns: How many times it steps in a round, each time with the lanes of other seeds; only in lockstep.
    """

    size: int
    members: np.ndarray
    seeds: np.ndarray | None
    buckets: Mapping[str, tuple[PlanBucket, ...]]
    longest: int
    mean: float
    turns: int = 1


def by_slot(buckets: Sequence[PlanBucket], values: Any) -> list[Any]:
    """Values of lanes, `[plan.size]` each, for the slots of every bucket: a list of trees with leaves `[slots]`.

    One gather for all of them: each would be compiled as a kernel of its own.
    """
    if not buckets:
        return []
    lanes = np.concatenate([bucket.lanes for bucket in buckets])
    borders = np.cumsum([len(bucket.lanes) for bucket in buckets])[:-1]
    parts = jax.tree.map(lambda leaf: jnp.split(leaf[lanes], borders), values)
    return [jax.tree.map(lambda _, p, b=b: p[b], values, parts) for b in range(len(buckets))]


def shape_groups(stores: Mapping[str, Store]) -> list[np.ndarray]:
    """The lanes of equal client shape, groups and lanes in ascending order."""
    signature = np.concatenate([store.network for store in stores.values()], axis=1)
    _, first, group = np.unique(signature, axis=0, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group.reshape(-1)]
    order = np.argsort(group, kind="stable")
    return np.split(order.astype(np.int32), np.flatnonzero(np.diff(group[order])) + 1)


def lockstep_plans(
    stores: Mapping[str, Store], sizes: np.ndarray, cohort: int, *, batch: int, split: bool, at_once: int | None = None
) -> tuple[Plan, ...]:
    """Plans of lanes that step together.

    Lanes of one shape and a cohort that is not everybody: one plan, of the cohort's lanes by seed and client. Else all
    lanes, together or (`split`) in classes of clients of like size, since all lanes of a plan step as long as its
    longest. Splitting pays where clients hold architectures of their own; where they share them, it would compile the
    same encoders again for each class.

    Args:
        stores: Module name -> its storage.
        sizes: Training samples of each lane, `[S, K]`.
        cohort: Clients in a round.
        batch: Local batch size.
        split: Whether lanes may be split into classes.
        at_once: How many seeds step together, a divisor of their number; None for all. Where seeds differ in shape they
            all do.

    Returns:
        The plans; each has as many lanes of every seed, in ascending order.
    """
    groups, (seeds, everyone) = shape_groups(stores), sizes.shape
    turns = seeds // at_once if at_once is not None and _seeds_alike(stores, seeds) else 1
    some = seeds // turns
    if len(groups) == 1 and cohort < everyone:
        first = np.repeat(np.arange(some) * everyone, cohort)
        buckets = {name: _buckets(store, first, picked=True if turns == 1 else None) for name, store in stores.items()}
        seed = np.repeat(np.arange(seeds), cohort) if turns == 1 else None
        longest = int(sizes.max())
        return (Plan(some * cohort, groups[0], seed, buckets, longest, longest, turns),)
    classes = size_classes(stores, sizes, batch) if split else np.zeros(everyone, int)
    plans = []
    for label in np.unique(classes):
        clients = np.flatnonzero(classes == label)
        lanes = (np.arange(seeds)[:, None] * everyone + clients).reshape(-1).astype(np.int32)
        first = lanes[: some * len(clients)]
        buckets = {name: _buckets(store, first, picked=False if turns == 1 else None) for name, store in stores.items()}
        seed = np.repeat(np.arange(seeds), len(clients)) if turns == 1 else None
        longest = int(sizes[:, clients].max())
        plans.append(Plan(len(first), lanes, seed, buckets, longest, longest, turns))
    return tuple(plans)


def _seeds_alike(stores: Mapping[str, Store], seeds: int) -> bool:
    """Whether every seed's clients have the networks of the first one's."""
    by_seed = [store.network.reshape(seeds, -1) for store in stores.values()]
    return all((tables == tables[0]).all() for tables in by_seed)


def size_classes(stores: Mapping[str, Store], sizes: np.ndarray, batch: int) -> np.ndarray:
    """Classes of clients of like size, int `[K]`, 0 for the longest; `sizes` as in `lockstep_plans`.

    Of one class, classes by halves of the longest, and a class for each number of steps, the one is taken for which
    (layer steps computed) times the square root of (layers compiled) is least: compiling is paid once, steps in every
    round, and the root weighs them about as a hundred rounds do.
    """
    seeds, clients = sizes.shape
    steps = np.maximum(-(-sizes // batch).max(axis=0), 1)
    distinct, rank = np.unique(-steps, return_inverse=True)
    candidates = [np.zeros(clients, int), np.minimum(np.log2(steps.max() / steps).astype(int), MOST_HALVES)]
    if len(distinct) <= MOST_CLASSES:
        candidates.append(rank.reshape(-1))
    piece = stores["encoders"].bucket.reshape(seeds, clients, -1)

    def price(classes: np.ndarray) -> float:
        work, compiled = 0, 0
        for label in np.unique(classes):
            held = piece[:, classes == label]
            work += int(steps[classes == label].max()) * int((held >= 0).sum())
            compiled += len(np.unique(held[held >= 0]))
        return work * math.sqrt(compiled)

    return min(candidates, key=price)


def single_plans(stores: Mapping[str, Store], sizes: np.ndarray, size: int = 1) -> list[Plan]:
    """One plan a client shape, for `size` lanes at a time, or fewer where the shape has no more.

    `sizes` are the training samples of each lane, `[S, K]`.
    """
    plans, sizes = [], sizes.reshape(-1)
    for members in shape_groups(stores):
        some = members[:size]
        buckets = {name: _buckets(store, some, picked=None) for name, store in stores.items()}
        longest, mean = int(sizes[members].max()), float(sizes[members].mean())
        plans.append(Plan(len(some), members, None, buckets, longest, mean if size == 1 else longest))
    return plans


def _buckets(store: Store, lanes: np.ndarray, *, picked: bool | None) -> tuple[PlanBucket, ...]:
    """The buckets of a plan over `lanes`.

    Args:
        store: The module's storage.
        lanes: The plan's lanes, or lanes like them.
        picked: False if they are the lanes themselves; True if lanes of the same seeds will be picked at run time, so
            that only rows that belong to seeds are known; None if nothing is known of them but their shape.

    Returns:
        The buckets.
    """
    found = []
    for position, spec in enumerate(store.specs):
        columns = [np.flatnonzero(column[lanes] == position).astype(np.int32) for column in store.bucket.T]
        segments = tuple(Segment(j, positions) for j, positions in enumerate(columns) if len(positions))
        if not segments:
            continue
        rows, whole = {}, set()
        for part in ROWS if picked is not None else ():
            if picked and not store.shared(part):
                continue
            rows[part] = np.concatenate([store.rows[part][lanes[s.positions], s.j] for s in segments])
            if not picked and np.array_equal(rows[part], np.arange(len(store.owners[part][position]))):
                whole.add(part)
        found.append(PlanBucket(position, spec, segments, rows, frozenset(whole)))
    return tuple(found)
