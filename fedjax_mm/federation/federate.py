"""From a data set to a federation."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedjax_mm import seeding
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.modalities import hold_modalities
from fedjax_mm.federation.options import Options, resolve
from fedjax_mm.federation.partition import NOBODY, Dealt, deal_samples, enough_groups, natural_clients
from fedjax_mm.federation.split import Parts, split_by_class, split_by_group
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
) -> Federation:
    """Divides a data set among clients, and each client's samples into train, validation and test.

    Every sample is used exactly once, except those counted in `Federation.counts`: samples none of whose modalities
    their client could have, and samples in the gaps of a chronological split. The result depends on the arguments
    alone.

    Args:
        data: The data set.
        partition: A name of `PARTITIONS`: `natural`, `m1`, `m2`, `m1+` or `all`. Default: `natural` if the data has
            clients, else `m1+`.
        clients: Number of clients K. Default: the natural clients, else the number of modalities.
        alpha: Concentration of the Dirichlet distribution of each class over the clients, or `"iid"` for equal shares.
            Natural clients keep what is theirs and do not use it.
        split: A name of `SPLIT_RULES`: `random`, `chronological` (within each class of a client) or `grouped`. Default:
            `chronological` if the data has an order, `grouped` if it has groups and enough of them to deal whole ones
            to so many clients, else `random`; groups that a random split tears apart are counted.
        split_seed: Seed of the partition and the split, at least 0.
        fractions: Shares of train, validation and test, positive, summing to 1.
        minimum: Least number of train, validation and test samples of a client.
        gap: Samples left out between two parts of a (client, class) cell, chronological split only. Default: 0.

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
    )
    if split is None and options.split == "grouped" and not enough_groups(data, options):
        options = dataclasses.replace(options, split="random")
    if options.partition == "natural":
        names, owner, holds = natural_clients(data)
        dealt = Dealt(owner=owner, moved=0)
    else:
        names = tuple(str(client) for client in range(options.clients))
        holds = hold_modalities(options.partition, options.clients, len(data.modalities), seed=options.split_seed)
        dealt = deal_samples(data, holds, options)
    parts = [
        _split_client(data, client, name, np.flatnonzero(dealt.owner == client), options)
        for client, name in enumerate(names)
    ]
    train, validation, test = (index_table(side, data.size) for side in zip(*parts, strict=True))
    return Federation(
        data=data,
        clients=names,
        holds=holds,
        observed=data.observed,
        train=train,
        validation=validation,
        test=test,
        split_seed=options.split_seed,
        settings=options.settings(),
        counts=_counts(data, dealt, parts),
    )


def _split_client(data: MultimodalDataset, client: int, name: str, samples: np.ndarray, options: Options) -> Parts:
    """The three parts of one client."""
    rng = seeding.generator(options.split_seed, seeding.SPLITTING, client)
    labels, limits = data.labels[samples], {"fractions": options.fractions, "minimum": options.minimum}
    parts = None
    if len(samples) >= sum(options.minimum):
        if options.split == "grouped":
            parts = split_by_group(samples, labels, np.asarray(data.group)[samples], rng=rng, **limits)
        else:
            order = np.asarray(data.order)[samples] if options.split == "chronological" else None
            position = rng.permutation(len(samples)) if order is None else order
            parts = split_by_class(samples, labels, position, gap=options.gap, rng=rng, **limits)
    if parts is None:
        train, validation, test = options.minimum
        gap = f" with gaps of {options.gap}" if options.gap else ""
        groups = f" in {len(np.unique(np.asarray(data.group)[samples]))} groups" if options.split == "grouped" else ""
        raise UsageError(
            f"client {name!r} has {len(samples)} samples{groups}; a {options.split} split{gap} cannot give it "
            f"{train} for training, {validation} for validation and {test} for testing; leave the client out, "
            "or choose another minimum, split or partition"
        )
    return parts


def _counts(data: MultimodalDataset, dealt: Dealt, parts: Sequence[Parts]) -> dict[str, int]:
    """What was left out, moved or torn apart on the way."""
    side = np.full(data.size, NOBODY)
    for client in parts:
        for number, samples in enumerate(client):
            side[samples] = number
    unseen = int((dealt.owner == NOBODY).sum())
    counts = {
        "samples without a modality": unseen,
        "samples in gaps": int((side == NOBODY).sum()) - unseen,
        "samples moved to meet the minimum": dealt.moved,
    }
    if data.group is not None:
        used = side != NOBODY
        unit = np.unique(data.group[used], return_inverse=True)[1]
        pairs = np.unique(np.stack([unit, side[used]], 1), axis=0)
        counts["groups on several sides"] = int((np.bincount(pairs[:, 0]) > 1).sum())
    return counts
