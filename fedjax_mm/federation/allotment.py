"""Indivisible units to receivers whose class totals are to come near real-valued targets.

Samples and whole groups are dealt to clients by it, and whole groups to the parts of a client's split.
"""

import itertools

import numpy as np


def allot(
    counts: np.ndarray,
    targets: np.ndarray,
    *,
    rng: np.random.Generator,
    kinds: np.ndarray,
    allowed: np.ndarray,
) -> np.ndarray:
    """Gives every unit, one after another, to the receiver that lacks most of what the unit is made of.

    The lack of receiver r for a unit with class counts g is g · (target_r - received_r): the unit then lessens the
    squared distance to the targets most. For units that are single samples every receiver may have, this is the
    largest-remainder method, class by class. Units with the fewest allowed receivers go first, then the largest, class
    by class, in random order; ties go to the receiver with the fewest samples so far, then at random.

    Args:
        counts: Samples by class in each unit, integers `[U, C]`.
        targets: Samples by class wanted by each receiver, floats `[R, C]`.
        rng: Orders what is otherwise alike.
        kinds: The row of `allowed` that holds for each unit, integers `[U]`.
        allowed: Bool `[kinds, R]`, every row in use with at least one True.

    Returns:
        The receiver of each unit, integers `[U]`.
    """
    sizes = counts.sum(1)
    order = np.lexsort((rng.permutation(len(counts)), counts.argmax(1), -sizes, allowed.sum(1)[kinds]))
    rank = rng.permutation(len(targets))
    load = np.zeros(len(targets), np.int64)
    lack = np.array(targets, float)
    owner = np.empty(len(counts), np.int64)
    for unit in order:
        fit = np.where(allowed[kinds[unit]], lack @ counts[unit], -np.inf)
        best = np.flatnonzero(fit == fit.max())
        receiver = best[np.lexsort((rank[best], load[best]))[0]]
        owner[unit] = receiver
        lack[receiver] -= counts[unit]
        load[receiver] += sizes[unit]
    return owner


def level(
    owner: np.ndarray,
    counts: np.ndarray,
    targets: np.ndarray,
    *,
    need: int,
    kinds: np.ndarray,
    allowed: np.ndarray,
) -> np.ndarray | None:
    """Moves units until every receiver has at least `need` of them.

    The receiver with the fewest units gets one from the largest receiver that can spare one it is allowed to have;
    where nobody can, the unit comes through a shortest chain of receivers that each pass one on. Of the units that may
    move, the one moves that brings both ends nearest to their targets. Nothing is drawn: the result depends on the
    arguments alone.

    Args:
        owner: The receiver of each unit, integers `[U]`.
        counts: Samples by class in each unit, integers `[U, C]`.
        targets: Samples by class wanted by each receiver, floats `[R, C]`.
        need: Units every receiver must have.
        kinds: The row of `allowed` that holds for each unit, integers `[U]`.
        allowed: Bool `[kinds, R]`.

    Returns:
        The new receiver of each unit, integers `[U]`, or None where no assignment gives every receiver `need` units.
    """
    owner = owner.copy()
    held = np.zeros((len(targets), len(allowed)), np.int64)
    np.add.at(held, (owner, kinds), 1)
    lack = np.array(targets, float)
    np.subtract.at(lack, owner, counts)
    while (units := held.sum(1)).min() < need:
        chain = _chain(int(units.argmin()), held, allowed, need)
        if chain is None:
            return None
        for receiver, giver in itertools.pairwise(chain):
            movable = np.flatnonzero((owner == giver) & allowed[kinds, receiver])
            unit = movable[np.argmax(counts[movable] @ (lack[receiver] - lack[giver]))]
            owner[unit] = receiver
            held[[receiver, giver], kinds[unit]] += (1, -1)
            lack[receiver] -= counts[unit]
            lack[giver] += counts[unit]
    return owner


def _chain(receiver: int, held: np.ndarray, allowed: np.ndarray, need: int) -> list[int] | None:
    """The shortest chain `[receiver, giver, ..., the largest with units to spare]`, or None.

    Where there is none, everybody reached holds at most `need` units, and together they hold every unit that any of
    them is allowed to have: the receivers reached cannot all have `need`, however units are dealt.
    """
    units = held.sum(1)
    taker = np.full(len(units), -1)
    taker[receiver] = receiver
    frontier = np.array([receiver])
    while len(frontier):
        reached = []
        for current in frontier:
            givers = np.flatnonzero((held[:, allowed[:, current]].sum(1) > 0) & (taker < 0))
            taker[givers] = current
            reached.append(givers)
        frontier = np.concatenate(reached)
        spare = frontier[units[frontier] > need]
        if len(spare):
            chain = [int(spare[np.argmax(units[spare])])]
            while chain[-1] != receiver:
                chain.append(int(taker[chain[-1]]))
            return chain[::-1]
    return None
