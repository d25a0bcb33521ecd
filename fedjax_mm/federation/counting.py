"""What was left out, moved, repaired or torn apart on the way to a federation, and how much is missing."""

from collections.abc import Sequence

import numpy as np

from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.federation.missingness import Masks
from fedjax_mm.federation.patterns import NOBODY
from fedjax_mm.federation.split import TEST, TRAIN, Parts

Rates = dict[str, dict[str, float]]


def count_split(
    data: MultimodalDataset, owner: np.ndarray, unseen: np.ndarray, parts: Sequence[Parts]
) -> dict[str, int]:
    """Counts what the split left out or tore apart.

    Args:
        data: The data set.
        owner: Client id of each sample, int `[n]`, `NOBODY` where it has none.
        unseen: Bool `[n]`, True for samples of a client that were left out for want of a modality.
        parts: The three parts of each client.

    Returns:
        Name -> how many.
    """
    side = np.full(data.size, NOBODY)
    for client in parts:
        for number, samples in enumerate(client):
            side[samples] = number
    counts = {
        "samples without a modality": int((owner == NOBODY).sum()),
        "samples in gaps": int(((side == NOBODY) & (owner != NOBODY) & ~unseen).sum()),
    }
    if data.group is not None:
        used = side != NOBODY
        unit = np.unique(data.group[used], return_inverse=True)[1]
        pairs = np.unique(np.stack([unit, side[used]], 1), axis=0)
        counts["groups on several sides"] = int((np.bincount(pairs[:, 0]) > 1).sum())
    return counts | count_untrained(data, parts)


def count_untrained(data: MultimodalDataset, parts: Sequence[Parts]) -> dict[str, int]:
    """Counts the test samples of classes that their client, or nobody, has a training sample of."""
    trained = np.zeros((len(parts), len(data.classes)), bool)
    tested = np.zeros((len(parts), len(data.classes)), np.int64)
    for client, part in enumerate(parts):
        trained[client, data.labels[part[TRAIN]]] = True
        np.add.at(tested[client], data.labels[part[TEST]], 1)
    return {
        "test samples of classes their client does not train": int(tested[~trained].sum()),
        "test samples of classes nobody trains": int(tested[:, ~trained.any(0)].sum()),
    }


def count_repairs(masks: Masks, samples: np.ndarray) -> dict[str, int]:
    """Counts what was given back, and what could not be.

    Args:
        masks: The masks.
        samples: The samples that have an owner and were asked about, integers `[s]`.
    """
    before, after = masks.drawn[samples].any(1), masks.observed[samples].any(1)
    return {
        "clients given a modality back": int((masks.holds != masks.drawn_holds).any(1).sum()),
        "samples given a modality back": int((after & ~before).sum()),
        "samples dropped for want of a modality": int((~after).sum()),
    }


def missing_rates(
    data: MultimodalDataset, masks: Masks, base: np.ndarray, owner: np.ndarray, samples: np.ndarray
) -> Rates:
    """The realised shares of what is missing, each in [0, 1].

    Args:
        data: The data set.
        masks: The masks.
        base: Bool `[K, M]`, what the clients would hold if nothing was missing.
        owner: Client id of each sample, int `[n]`.
        samples: The samples that have an owner and were asked about, integers `[s]`.

    Returns:
        `client axis`: of the (client, modality) pairs in `base`, as drawn (`before repair`) and in the end (`after
        repair`). `sample axis`: of the (sample, modality) pairs whose client has the modality in the end, what the data
        lack (`natural`), with what was drawn, and in the end; the last without samples that were dropped.
    """
    held = masks.holds[owner[samples]]
    kept = held & masks.observed[samples].any(1, keepdims=True)
    return {
        "client axis": {
            "before repair": _share(~masks.drawn_holds, base),
            "after repair": _share(~masks.holds, base),
        },
        "sample axis": {
            "natural": _share(~data.observed[samples], held),
            "before repair": _share(~masks.drawn[samples], held),
            "after repair": _share(~masks.observed[samples], kept),
        },
    }


def _share(missing: np.ndarray, among: np.ndarray) -> float:
    return float(missing[among].mean()) if among.any() else 0.0
