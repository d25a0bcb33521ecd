"""Answers by the modalities a sample has: who was right where something is missing."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_mm.metrics.classification import macro_f1_of, ratio

MOST_PATTERNS = 64
"""With more patterns of observed modalities than this, that is, with more than six modalities, samples are grouped by
the number observed."""


class Subsets(NamedTuple):
    """Answers on test samples, by seed, client and group of samples that have the same modalities.

    Samples are grouped by pattern, group sum_m 2^m over the observed modalities m, or by the number observed. Kept per
    client, since clients of a personal method are reported at rounds of their own; only cells with samples are kept,
    and of each confusion matrix only what accuracy and F1 need, so that all of it is at most a few numbers per sample.

    Attributes:
        cells: Position of the seed, client and group, int64 `[N, 3]`, ascending.
        counts: Samples per class: truly of it, predicted to be, and both, int64 `[N, 3, C]`.
    """

    cells: np.ndarray
    counts: np.ndarray


def by_pattern(modalities: int) -> bool:
    """Whether samples of so many modalities are grouped by pattern, not by the number observed."""
    return 2**modalities <= MOST_PATTERNS


def group_count(modalities: int) -> int:
    """The number of groups of samples of so many modalities."""
    return 2**modalities if by_pattern(modalities) else modalities + 1


def group_name(group: int, modalities: Sequence[str]) -> str:
    """A group's name: `a+b` of the modalities a, b and c, or `2 of 7`."""
    if by_pattern(len(modalities)):
        return "+".join(name for m, name in enumerate(modalities) if group >> m & 1)
    return f"{group} of {len(modalities)}"


def group_size(group: int, modalities: int) -> int:
    """The number of observed modalities in a group."""
    return group.bit_count() if by_pattern(modalities) else group


def sparse(dense: np.ndarray) -> Subsets:
    """Keeps the cells that have samples.

    Args:
        dense: Samples per class, integers `[S, K, G, 3, C]` as in `Subsets.counts`.

    Returns:
        The subsets.
    """
    cells = np.argwhere(dense[..., 0, :].any(-1))
    return Subsets(cells, dense[tuple(cells.T)].astype(np.int64))


def of_seeds(subsets: Subsets, first: int, end: int) -> Subsets:
    """The cells of the seeds at positions `first` to `end - 1`, which become the seeds 0, 1 and so on."""
    mine = (subsets.cells[:, 0] >= first) & (subsets.cells[:, 0] < end)
    return Subsets(subsets.cells[mine] - np.array([first, 0, 0]), subsets.counts[mine])


def at_rounds(subsets: Sequence[Subsets], index: np.ndarray) -> Subsets:
    """The cells of every client in the evaluation chosen for it.

    Args:
        subsets: Of E evaluations.
        index: Which of them, 0..E-1, integers `[S, K]`.

    Returns:
        The subsets, ordered by evaluation first.
    """
    keep = [index[tuple(each.cells[:, :2].T)] == position for position, each in enumerate(subsets)]
    return Subsets(
        np.concatenate([each.cells[mine] for each, mine in zip(subsets, keep, strict=True)]),
        np.concatenate([each.counts[mine] for each, mine in zip(subsets, keep, strict=True)]),
    )


def pooled(subsets: Subsets, modalities: int) -> Iterator[tuple[int, int, int, float, float]]:
    """Results over all clients of a seed together.

    Args:
        subsets: The cells; the order does not matter.
        modalities: The number of modalities M.

    Yields:
        Position of the seed, group, samples, accuracy, and macro-F1 over the classes that are present in truth or
        prediction; ascending, groups by the number of modalities first.
    """
    keys, inverse = np.unique(subsets.cells[:, [0, 2]], axis=0, return_inverse=True)
    sums = np.zeros((len(keys), *subsets.counts.shape[1:]), np.int64)
    np.add.at(sums, inverse.reshape(-1), subsets.counts)
    true, predicted, right = sums[:, 0], sums[:, 1], sums[:, 2]
    n = true.sum(-1)
    accuracy, f1 = ratio(right.sum(-1), n), macro_f1_of(right, true + predicted)
    order = sorted(range(len(keys)), key=lambda row: (keys[row, 0], group_size(int(keys[row, 1]), modalities)))
    for row in order:
        yield int(keys[row, 0]), int(keys[row, 1]), int(n[row]), float(accuracy[row]), float(f1[row])
