"""One client per natural mask: the extreme setting of Flux's ADNI experiments (Appendix B)."""

import dataclasses

import numpy as np

from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError

NOBODY = -1
LEAST = 8
"""Groups with fewer samples are merged."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grouped:
    """Who got what.

    Attributes:
        names: The mask of each client, a digit per modality, 1 where observed; in descending order.
        owner: Client id of each sample, int `[n]`, `NOBODY` for samples without any modality.
        holds: Bool `[K, M]`, True where a client has the modality in at least one sample.
        merged: Masks too rare for a client of their own.
        moved: Samples with such a mask.
    """

    names: tuple[str, ...]
    owner: np.ndarray
    holds: np.ndarray
    merged: int
    moved: int


def group_by_mask(data: MultimodalDataset) -> Grouped:
    """Makes a client of all samples with the same modalities.

    A mask of fewer than 8 samples joins the nearest of the others, that is the one which differs in the fewest
    modalities; of equally near ones the most frequent, then the first in descending order. Its samples keep what they
    have. Nothing is drawn.

    Args:
        data: A data set with natural gaps.

    Returns:
        The clients.

    Raises:
        UsageError: Fewer than two masks have 8 samples.
    """
    masks, mask, counts = np.unique(~data.observed, axis=0, return_inverse=True, return_counts=True)
    masks, mask = ~masks, mask.reshape(-1)
    some = masks.any(1)
    large = np.flatnonzero(some & (counts >= LEAST))
    if len(large) < 2:
        raise UsageError(
            f"partition 'masks' makes a client of each natural mask with at least {LEAST} samples, and {data.name!r} "
            f"has {len(large)} such mask{'' if len(large) == 1 else 's'}; use 'silos'"
        )
    distance = (masks[:, None] != masks[large]).sum(2)
    # argmin takes the first: large ones are sorted by frequency here, by mask among equally frequent ones.
    by_frequency = np.argsort(-counts[large], kind="stable")
    nearest = by_frequency[distance[:, by_frequency].argmin(1)]
    nearest[large] = np.arange(len(large))
    owner = np.where(some, nearest, NOBODY)[mask]
    holds = np.zeros((len(large), masks.shape[1]), bool)
    np.logical_or.at(holds, owner[owner >= 0], data.observed[owner >= 0])
    rare = some & (counts < LEAST)
    return Grouped(
        names=tuple("".join(str(int(digit)) for digit in masks[one]) for one in large),
        owner=owner,
        holds=holds,
        merged=int(rare.sum()),
        moved=int(counts[rare].sum()),
    )
