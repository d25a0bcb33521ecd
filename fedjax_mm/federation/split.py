"""One client's samples into train, validation and test."""

from collections.abc import Sequence

import numpy as np

from fedjax_mm.federation.allotment import allot

TRAIN, VALIDATION, TEST = range(3)
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]


def split_by_class(
    samples: np.ndarray,
    labels: np.ndarray,
    position: np.ndarray,
    *,
    fractions: Sequence[float],
    minimum: Sequence[int],
    gap: int = 0,
    rng: np.random.Generator,
) -> Parts | None:
    """Cuts each class of a client along `position`: first train, then validation, then test.

    Every class comes as near to the fractions as whole samples allow, and roundings are chosen so that the client as a
    whole does too. A class too small for three parts fills train, then test, then validation. Parts below their minimum
    then get samples from the part with most to spare.

    Args:
        samples: The client's sample indices `[s]`.
        labels: Their class ids, integers `[s]`.
        position: What each class is ordered by, `[s]`: recording order, or random numbers for a random split.
        fractions: Shares of the three parts.
        minimum: Least samples of the three parts.
        gap: Samples left out between two parts of a class.
        rng: Decides which classes are rounded up.

    Returns:
        The sample indices of the three parts, or None where the minimum cannot be met.
    """
    classes, cell = np.unique(labels, return_inverse=True)
    sizes = np.bincount(cell, minlength=len(classes))
    counts = _meet_minimum(_cell_counts(sizes, np.divide(fractions, sum(fractions)), gap, rng), sizes, minimum, gap)
    if counts is None:
        return None
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    along = np.lexsort((samples, position, cell))
    for ordered, (train, validation, test) in zip(np.split(samples[along], np.cumsum(sizes)[:-1]), counts, strict=True):
        start = train + (gap if train else 0)
        parts[TRAIN].append(ordered[:train])
        parts[VALIDATION].append(ordered[start : start + validation])
        parts[TEST].append(ordered[len(ordered) - test :])
    train, validation, test = (np.concatenate(part) for part in parts)
    return train, validation, test


def split_by_group(
    samples: np.ndarray,
    labels: np.ndarray,
    group: np.ndarray,
    *,
    fractions: Sequence[float],
    minimum: Sequence[int],
    rng: np.random.Generator,
) -> Parts | None:
    """Gives whole groups of a client to the three parts, class proportions as near to the fractions as groups allow.

    Args:
        samples: The client's sample indices `[s]`.
        labels: Their class ids, integers `[s]`.
        group: What stays together, any dtype `[s]`.
        fractions: Shares of the three parts.
        minimum: Least samples of the three parts.
        rng: Orders groups that are alike.

    Returns:
        The sample indices of the three parts, or None where groups cannot be moved so that the minimum is met.
    """
    unit = np.unique(group, return_inverse=True)[1]
    cell = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros((unit.max() + 1, cell.max() + 1), np.int64)
    np.add.at(counts, (unit, cell), 1)
    targets = np.outer(fractions, counts.sum(0))
    everyone = np.ones((1, 3), bool)
    part = allot(counts, targets, rng=rng, kinds=np.zeros(len(counts), np.int64), allowed=everyone)
    sizes = counts.sum(1)
    while (short := np.flatnonzero(np.bincount(part, sizes, 3) < minimum)).size:
        left = (np.bincount(part, sizes, 3) - minimum)[part] - sizes
        movable = np.flatnonzero((left >= 0) & (part != short[0]))
        if not movable.size:
            return None
        part[movable[np.argmin(sizes[movable])]] = short[0]
    return samples[part[unit] == TRAIN], samples[part[unit] == VALIDATION], samples[part[unit] == TEST]


def _cell_counts(sizes: np.ndarray, fractions: np.ndarray, gap: int, rng: np.random.Generator) -> np.ndarray:
    """Samples of each class in each part, integers `[classes, 3]`, gaps already left out."""
    counts = np.zeros((len(sizes), 3), np.int64)
    three = sizes >= 3 + 2 * gap
    two = ~three & (sizes >= 2 + gap)
    usable = sizes - gap * (2 * three + two)
    counts[:, TRAIN] = usable
    tested = np.rint(usable[two] * fractions[TEST] / (fractions[TRAIN] + fractions[TEST])).astype(np.int64)
    counts[two, TEST] = np.clip(tested, 1, usable[two] - 1)
    counts[two, TRAIN] -= counts[two, TEST]
    quotas = np.outer(usable, fractions)
    counts[three] = np.floor(quotas[three] + 1e-9)
    lack = quotas.sum(0) - counts.sum(0)
    # In random order: otherwise the same classes would be without validation samples at every client.
    for row in rng.permutation(np.flatnonzero(three)):
        cut_off = np.flatnonzero(quotas[row] - counts[row] > 1e-9)
        rounded_up = cut_off[np.argsort(-lack[cut_off], kind="stable")[: usable[row] - counts[row].sum()]]
        counts[row, rounded_up] += 1
        lack[rounded_up] -= 1
    return counts


def _meet_minimum(counts: np.ndarray, sizes: np.ndarray, minimum: Sequence[int], gap: int) -> np.ndarray | None:
    """Moves samples between the parts until each has its minimum, keeping the gaps; None where no move is left."""
    counts = counts.copy()
    while (short := np.flatnonzero(counts.sum(0) < minimum)).size:
        spare = counts.sum(0) - minimum
        best = None
        for giver in np.flatnonzero(spare > 0):
            for row in np.flatnonzero(counts[:, giver]):
                changed = _moved(counts[row], sizes[row], int(giver), int(short[0]), spare[giver], gap)
                if changed is None:
                    continue
                # Fewest samples lost to a gap; a class stays trained, or at least is not tested then; the part and the
                # class with most to give.
                lost = counts[row].sum() - changed.sum()
                rating = (-lost, changed[TRAIN] > 0, changed[TEST] == 0, spare[giver], counts[row, giver])
                if best is None or rating > best[0]:
                    best = rating, row, changed
        if best is None:
            return None
        counts[best[1]] = best[2]
    return counts


def _moved(cell: np.ndarray, size: int, giver: int, receiver: int, spare: int, gap: int) -> np.ndarray | None:
    """The cell after its giver gave the fewest samples that let the receiver have one more, or None."""
    for given in range(1, min(cell[giver], spare) + 1):
        changed = cell.copy()
        changed[giver] -= given
        parts = np.count_nonzero(changed) + (changed[receiver] == 0)
        gained = min(given, size - changed.sum() - gap * (parts - 1))
        if gained > 0:
            changed[receiver] += gained
            return changed
    return None
