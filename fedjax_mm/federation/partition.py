"""Which client holds which sample."""

import dataclasses
import math

import numpy as np
from scipy.special import softmax

from fedjax_mm import seeding
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError
from fedjax_mm.federation.allotment import allot, level
from fedjax_mm.federation.modalities import EVEN, GIVEN
from fedjax_mm.federation.options import Options
from fedjax_mm.federation.patterns import NOBODY


@dataclasses.dataclass(frozen=True, eq=False)
class Dealt:
    """Who got what.

    Attributes:
        owner: Client id of each sample, int `[n]`, `NOBODY` where no client can see the sample.
        moved: Samples that another client got so that every client meets the minimum.
    """

    owner: np.ndarray
    moved: int


def natural_clients(data: MultimodalDataset) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The clients the data come with, in sorted order: row order does not decide about ids.

    Args:
        data: A data set with `client`.

    Returns:
        The K names, the client id of each sample `[n]` (`NOBODY` for samples without any modality), and bool `[K, M]`,
        True where a client has the modality in at least one sample.
    """
    names, owner = np.unique(np.asarray(data.client), return_inverse=True)
    holds = np.zeros((len(names), len(data.modalities)), bool)
    np.logical_or.at(holds, owner, data.observed)
    return tuple(str(name) for name in names), np.where(data.observed.any(1), owner, NOBODY), holds


def deal_samples(data: MultimodalDataset, holds: np.ndarray, options: Options) -> Dealt:
    """Deals the samples to clients, class by class in drawn or equal shares.

    Partition `silos` deals each (class, natural mask) in equal shares, so that both are alike everywhere.

    A sample goes only to clients that hold one of its observed modalities; one that nobody can see goes to nobody.
    Where samples belong to groups (and the split is not `random`, which takes every sample on its own), whole groups
    are dealt, to clients that can see each of their samples. Clients are then filled up to the minimum (see
    `allotment`): the work is bounded whatever the shares are.

    Args:
        data: What is dealt.
        holds: Bool `[K, M]`, who holds which modality.
        options: The resolved options.

    Returns:
        The client of each sample.

    Raises:
        UsageError: There are too few samples or groups for so many clients.
    """
    clients, seed = len(holds), options.split_seed
    owner = np.full(data.size, NOBODY)
    seen = np.flatnonzero(data.observed.any(1))
    grouped = data.group is not None and options.split != "random"
    unit = np.unique(np.asarray(data.group)[seen], return_inverse=True)[1] if grouped else np.arange(len(seen))
    audience, allowed = _audience(unit, data.observed[seen], holds)
    strata, alpha = data.labels, options.alpha
    if options.partition == "silos":
        strata, alpha = _strata(data), "iid"
    counts = np.zeros((len(audience), max(len(data.classes), strata.max(initial=0) + 1)), np.int64)
    np.add.at(counts, (unit, strata[seen]), 1)
    dealable = np.flatnonzero(np.any(allowed, axis=1)[audience])
    counts, kinds = counts[dealable], audience[dealable]
    need = _need(counts.sum(1), grouped, options)
    if len(dealable) < need * clients:
        raise UsageError(_too_many(len(dealable), need, grouped, options))
    targets = (_shares(counts.shape[1], clients, alpha, seed) * counts.sum(0)[:, None]).T
    first = allot(counts, targets, rng=seeding.generator(seed, seeding.DEALING), kinds=kinds, allowed=allowed)
    final = level(first, counts, targets, need=need, kinds=kinds, allowed=allowed)
    if final is None:
        raise UsageError(
            f"no way to give each of {clients} clients (partition {options.partition!r}, alpha {alpha}) "
            f"{_minimum_words(need, grouped, options)}: too few of the {len(seen)} samples have a modality "
            "that the client holds; use fewer clients or another partition"
        )
    owner_of_unit = np.full(len(audience), NOBODY)
    owner_of_unit[dealable] = final
    owner[seen] = owner_of_unit[unit]
    return Dealt(owner=owner, moved=int(counts[first != final].sum()))


def _strata(data: MultimodalDataset) -> np.ndarray:
    """The (class, natural mask) of each sample, integers `[n]`, class by class."""
    pairs = np.concatenate([data.labels[:, None], data.observed], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


def enough_groups(data: MultimodalDataset, options: Options) -> bool:
    """Whether every client can be given whole groups; clients of the data have what they have."""
    if options.partition in GIVEN:
        return True
    sizes = np.unique(np.asarray(data.group)[data.observed.any(1)], return_counts=True)[1]
    return len(sizes) >= _need(sizes, True, options) * options.clients


def _audience(unit: np.ndarray, observed: np.ndarray, holds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kind per unit `[U]`, and bool `[kinds, K]`, True where the client can see every sample of such a unit."""
    patterns, pattern = np.unique(observed, axis=0, return_inverse=True)
    contains = np.zeros((unit.max(initial=-1) + 1, len(patterns)), bool)
    contains[unit, pattern.reshape(-1)] = True
    mixes, kinds = np.unique(contains, axis=0, return_inverse=True)
    blind = ~(patterns @ holds.T)
    return kinds.reshape(-1), ~(mixes @ blind)


def _need(sizes: np.ndarray, grouped: bool, options: Options) -> int:
    """Units that surely give a client its minimum, even if they are the smallest ones."""
    smallest = int(sizes.min()) if len(sizes) else 1
    gaps = 2 * options.gap
    if grouped and options.split == "grouped":
        return sum(math.ceil(part / smallest) for part in options.minimum)
    return math.ceil((sum(options.minimum) + gaps) / smallest)


def _shares(classes: int, clients: int, alpha: float | str, seed: int) -> np.ndarray:
    """The shares of each class over the clients, `[C, K]`, rows summing to 1: Dirichlet(alpha), or equal."""
    if alpha == "iid":
        return np.full((classes, clients), 1 / clients)
    # Beyond these the shares are one-hot, or equal, to the last sample.
    concentration = float(np.clip(float(alpha), 1e-9, 1e9))
    shares = np.empty((classes, clients))
    for label in range(classes):
        rng = seeding.generator(seed, seeding.SHARES, label)
        # Gamma(a) = Gamma(a + 1) U^(1/a), in logarithms: for small a every draw itself underflows to 0, and 0/0 is NaN.
        gamma, uniform = rng.standard_gamma(concentration + 1, clients), 1 - rng.random(clients)
        shares[label] = softmax(np.log(gamma) + np.log(uniform) / concentration)
    return shares


def _minimum_words(need: int, grouped: bool, options: Options) -> str:
    train, validation, test = options.minimum
    parts = f"{train} train, {validation} validation and {test} test samples"
    gap = f" with gaps of {options.gap}" if options.gap else ""
    return f"at least {need} {'groups' if grouped else 'samples'} ({parts}{gap})"


def _too_many(units: int, need: int, grouped: bool, options: Options) -> str:
    what = "groups of samples that stay together" if grouped else "samples"
    alpha = "" if options.partition in EVEN else f" (alpha {options.alpha})"
    message = (
        f"{options.clients} clients are too many for {units} {what}: each needs "
        f"{_minimum_words(need, grouped, options)}, so at most {units // need} clients{alpha}"
    )
    return message + ("; split='random' takes every sample on its own" if grouped else "")
