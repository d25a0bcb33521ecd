"""How lanes are divided among devices: whole seeds each, or some of every seed's clients each."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fedjax_mm.simulation.stores import Store

WORTH = 1.25
"""Division is left alone where the devices together would do less than so many times the work of one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Division:
    """The lanes of each of D devices. All devices hold the same sequence of client shapes, so one program serves all.

    Attributes:
        by: `seeds`: each device has whole seeds, and they never speak. `clients`: each has some clients of every seed,
            and sums over a cohort are combined.
        seeds: Positions of each device's seeds, int `[D, s]`; padding repeats one.
        lanes: Each device's lanes, seed by seed, int `[D, l]`; padding repeats a lane of the same shape.
        real: False for padding, bool `[D, l]`.
    """

    by: str
    seeds: np.ndarray
    lanes: np.ndarray
    real: np.ndarray

    @property
    def devices(self) -> int:
        """The number of devices D."""
        return len(self.lanes)

    @property
    def gain(self) -> float:
        """Lanes that one device would have, by lanes that each of these has."""
        return float(self.real.sum() / self.lanes.shape[1])


def divide(stores: Mapping[str, Store], sizes: np.ndarray, devices: int, *, multiple: int = 1) -> Division | None:
    """The division that spreads lanes most evenly over at most so many devices.

    Args:
        stores: Module name -> its storage.
        sizes: Training samples of each lane, int `[S, K]`; long and short clients are dealt evenly.
        devices: The most devices, at least 1.
        multiple: What their number must be a multiple of: the number of processes.

    Returns:
        The division, by seeds where both are as good; None where none is worth it.
    """
    signature = np.concatenate([store.network for store in stores.values()], axis=1)
    shape = np.unique(signature, axis=0, return_inverse=True)[1].reshape(sizes.shape)
    counts = [count for count in range(2, devices + 1) if count % multiple == 0]
    found = [_by_seeds(shape, count) for count in counts] + [_by_clients(shape, sizes, count) for count in counts]
    candidates = [division for division in found if division is not None and division.gain >= WORTH]
    return max(candidates, key=lambda division: (division.gain, division.by == "seeds"), default=None)


def _by_seeds(shape: np.ndarray, devices: int) -> Division | None:
    seeds, clients = shape.shape
    each = -(-seeds // devices)
    # Where they do not come out even, the last seed is run again and what comes of it is dropped.
    order = np.arange(devices * each)
    mine = np.minimum(order, seeds - 1).reshape(devices, each)
    if (shape[mine] != shape[mine[0]]).any():
        return None
    lanes = (mine[:, :, None] * clients + np.arange(clients)).reshape(devices, -1)
    return Division("seeds", mine, lanes, np.repeat(order < seeds, clients).reshape(lanes.shape))


def _by_clients(shape: np.ndarray, sizes: np.ndarray, devices: int) -> Division | None:
    seeds, clients = shape.shape
    if (shape != shape[0]).any() or devices > clients:
        return None
    dealt, real = [], []
    for label in np.unique(shape[0]):
        group = np.flatnonzero(shape[0] == label)
        group = group[np.argsort(-sizes.sum(axis=0)[group], kind="stable")]
        rounds = -(-len(group) // devices)
        hand = np.full(rounds * devices, group[0])
        hand[: len(group)] = group
        held = (np.arange(rounds * devices) < len(group)).reshape(rounds, devices)
        hand = hand.reshape(rounds, devices)
        # To and fro, so that nobody always gets the longer one.
        hand[1::2], held[1::2] = hand[1::2, ::-1], held[1::2, ::-1]
        dealt.append(hand)
        real.append(held)
    mine, kept = np.concatenate(dealt).T, np.concatenate(real).T
    lanes = (np.arange(seeds)[None, :, None] * clients + mine[:, None]).reshape(devices, -1)
    return Division("clients", np.tile(np.arange(seeds), (devices, 1)), lanes, np.tile(kept, (1, seeds)))
