"""From a data set to a federation."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedjax_mm import seeding
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError
from fedjax_mm.federation.counting import count_repairs, count_split, missing_rates
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.missingness import Masks, draw_masks
from fedjax_mm.federation.modalities import hold_modalities
from fedjax_mm.federation.options import Options, resolve
from fedjax_mm.federation.partition import NOBODY, Dealt, deal_samples, enough_groups, natural_clients
from fedjax_mm.federation.patterns import group_by_mask
from fedjax_mm.federation.regimes import NOTHING
from fedjax_mm.federation.split import TEST, Parts, split_by_class, split_by_group
from fedjax_mm.federation.tables import index_table


def federate(
    data: MultimodalDataset,
    *,
    partition: str | None = None,
    clients: int | None = None,
    alpha: float | str = 0.5,
    split: str | None = None,
    split_seed: int = 0,
    fractions: Sequence[float] = (0.64, 0.11, 0.25),
    minimum: Sequence[int] = (2, 1, 1),
    gap: int | None = None,
    missing: str | None = None,
    test_missing: str | None = None,
    missing_protocol: str | None = None,
    empty: str | None = None,
) -> Federation:
    """Divides a data set among clients, and each client's samples into train, validation and test.

    Every sample is used exactly once, except those counted in `Federation.counts`: samples none of whose modalities
    their client could have, samples dropped for want of a modality, and samples in the gaps of a chronological split.
    The result depends on the arguments alone.

    Who owns a sample does not depend on what is missing. There is one mask for each sample, drawn before the split.

    Args:
        data: The data set.
        partition: A name of `PARTITIONS`: `natural`, `m1`, `m2`, `m1+`, `all`, `silos` or `masks`. Default: `natural`
            if the data has clients, else `m1+`.
        clients: Number of clients K. Default: the natural clients or masks, 5 silos, else the number of modalities.
        alpha: Concentration of the Dirichlet distribution of each class over the clients, or `"iid"` for equal shares.
            Partitions `natural`, `masks` and `silos` do not use it.
        split: A name of `SPLIT_RULES`: `random`, `chronological` (within each class of a client) or `grouped`. Default:
            `chronological` if the data has an order, `grouped` if it has groups and enough of them to deal whole ones
            to so many clients, else `random`; groups that a random split tears apart are counted.
        split_seed: Seed of the partition and the split, at least 0.
        fractions: Shares of train, validation and test, positive, summing to 1.
        minimum: Least number of train, validation and test samples of a client.
        gap: Samples left out between two parts of a (client, class) cell, chronological split only. Default: 1 for
            natural clients of spar and wisdm8, whose samples are windows of one recording, else 0.
        missing: `CLIENT,SAMPLE`: which modalities clients lack (`hom`, `mod`, `high`, or `a:b` of a Beta distribution)
            and how they fail from sample to sample (`none`, `mod`, `high`, or `p00:p11` of a Markov chain along the
            order). One word is the client axis alone. Default: `hom,none`.
        test_missing: The same for the test part, where it differs: of the modalities that a client then still has.
            Default: as `missing`.
        missing_protocol: What mod and high mean on the client axis: `sensing` (45:20 and 45:45) or `adni` (17:3 and
            6:14). Default: `sensing` if the data has an order, else `adni`.
        empty: What happens to a sample that its missingness leaves without any modality: `repair` gives one of its
            client's back, `drop` leaves the sample out. Default: `repair` under `sensing`, `drop` under `adni`.

    Returns:
        The federation. Natural clients are sorted by name; others are named "0" to "K-1".

    Raises:
        UsageError: An option is unknown, out of range or does not fit the data, or the samples do not suffice.

    Example:
        >>> federation = federate(data, partition="m1+", clients=6, alpha=0.5)  # doctest: +SKIP
        >>> again = federate(data, **federation.settings)  # doctest: +SKIP
    """
    options = resolve(
        data,
        partition=partition,
        clients=clients,
        alpha=alpha,
        split=split,
        split_seed=split_seed,
        fractions=fractions,
        minimum=minimum,
        gap=gap,
        missing=missing,
        test_missing=test_missing,
        missing_protocol=missing_protocol,
        empty=empty,
    )
    if split is None and options.split == "grouped" and not enough_groups(data, options):
        options = dataclasses.replace(options, split="random")
    names, base, dealt, merged = _clients(data, options)
    owner = dealt.owner
    owned = np.flatnonzero(owner != NOBODY)
    masks = _masks(data, owner, base, options, "missing")
    seen = np.any(masks.observed, axis=1)
    parts = [
        _split_client(data, client, name, np.flatnonzero(owner == client), seen, options)
        for client, name in enumerate(names)
    ]
    counts = {**merged, "samples moved to meet the minimum": dealt.moved, **count_repairs(masks, owned)}
    rates = missing_rates(data, masks, base, owner, owned)
    observed = data.observed if options.missing == NOTHING else masks.observed
    if options.test_missing != options.missing:
        tested = np.concatenate([part[TEST] for part in parts])
        test_masks = _masks(data, owner, masks.holds, options, "test_missing")
        observed = observed.copy()
        observed[tested] = test_masks.observed[tested]
        parts = [_testable(name, part, observed, options) for name, part in zip(names, parts, strict=True)]
        counts |= {f"test: {name}": count for name, count in count_repairs(test_masks, tested).items()}
        test_rates = missing_rates(data, test_masks, masks.holds, owner, tested)
        rates |= {f"test {axis}": values for axis, values in test_rates.items()}
    counts |= count_split(data, owner, ~np.any(observed, axis=1), parts)
    train, validation, test = (index_table(side, data.size) for side in zip(*parts, strict=True))
    return Federation(
        data=data,
        clients=names,
        holds=masks.holds,
        observed=observed,
        train=train,
        validation=validation,
        test=test,
        split_seed=options.split_seed,
        settings=options.settings(),
        counts=counts,
        missing_rates=rates,
    )


def _clients(data: MultimodalDataset, options: Options) -> tuple[tuple[str, ...], np.ndarray, Dealt, dict[str, int]]:
    """The names, what they hold, bool `[K, M]`, who owns which sample, and counts of what was merged."""
    if options.partition == "natural":
        names, owner, holds = natural_clients(data)
        return names, holds, Dealt(owner=owner, moved=0), {}
    if options.partition == "masks":
        grouped = group_by_mask(data)
        counts = {"masks merged": grouped.merged, "samples of merged masks": grouped.moved}
        return grouped.names, grouped.holds, Dealt(owner=grouped.owner, moved=0), counts
    names = tuple(str(client) for client in range(options.clients))
    holds = hold_modalities(options.partition, options.clients, len(data.modalities), seed=options.split_seed)
    return names, holds, deal_samples(data, holds, options), {}


def _masks(data: MultimodalDataset, owner: np.ndarray, base: np.ndarray, options: Options, option: str) -> Masks:
    seed = options.split_seed
    return draw_masks(data, owner, base, regime=options.regime(option), empty=options.empty, seed=seed)


def _split_client(
    data: MultimodalDataset, client: int, name: str, mine: np.ndarray, seen: np.ndarray, options: Options
) -> Parts:
    """The three parts of one client, of those of its samples that have a modality."""
    rng = seeding.generator(options.split_seed, seeding.SPLITTING, client)
    keep = seen[mine]
    samples = mine[keep]
    labels, limits = data.labels[samples], {"fractions": options.fractions, "minimum": options.minimum}
    parts = None
    if len(samples) >= sum(options.minimum):
        if options.split == "grouped":
            parts = split_by_group(samples, labels, np.asarray(data.group)[samples], rng=rng, **limits)
        else:
            order = np.asarray(data.order)[samples] if options.split == "chronological" else None
            # Drawn for dropped samples too: the others then keep their places.
            position = rng.permutation(len(mine))[keep] if order is None else order
            parts = split_by_class(samples, labels, position, gap=options.gap, rng=rng, **limits)
    if parts is None:
        train, validation, test = options.minimum
        gap = f" with gaps of {options.gap}" if options.gap else ""
        groups = f" in {len(np.unique(np.asarray(data.group)[samples]))} groups" if options.split == "grouped" else ""
        empty = len(mine) - len(samples)
        if options.partition == "natural":
            # Samples of which the data have no modality are nobody's.
            empty += int(((np.asarray(data.client).astype(str) == name) & ~np.any(data.observed, axis=1)).sum())
        dropped = f", {empty} more lack every modality" if empty else ""
        raise UsageError(
            f"client {name!r} has {len(samples)} samples{groups}{dropped}; a {options.split} split{gap} cannot give it "
            f"{train} for training, {validation} for validation and {test} for testing; leave the client out, "
            "or choose another minimum, split or partition"
        )
    return parts


def _testable(name: str, parts: Parts, observed: np.ndarray, options: Options) -> Parts:
    """The parts, without test samples that have no modality left."""
    train, validation, test = parts
    kept = test[observed[test].any(1)]
    if len(kept) < options.minimum[TEST]:
        raise UsageError(
            f"client {name!r} has {len(kept)} of its {len(test)} test samples left, test_missing "
            f"{options.test_missing!r} leaves the others without any modality; it needs {options.minimum[TEST]}; "
            "choose another test_missing or split_seed, or empty='repair'"
        )
    return train, validation, kept
