"""The clients of Flux's ADNI experiments: stratified silos, and a client for each natural mask."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.data import load_data
from fedjax_mm.errors import UsageError
from fedjax_mm.federation import SPLITS, federate


def owners(federation):
    owner = np.full(federation.data.size, -1)
    for client in range(federation.size):
        for part in SPLITS:
            owner[federation.table(part).of(client)] = client
    return owner


def spread(kinds, owner, clients):
    """The largest difference between two clients in samples of one kind."""
    counts = np.stack([np.bincount(kinds[owner == client], minlength=kinds.max() + 1) for client in range(clients)])
    return np.ptp(counts, axis=0).max()


@settings(max_examples=60, deadline=None)
@given(st.integers(60, 200), st.integers(2, 6), st.integers(2, 4), st.integers(0, 1000))
def test_silos_are_alike_in_labels_and_masks(make, size, clients, modalities, seed):
    rng = np.random.default_rng(seed)
    observed = rng.random((size, modalities)) < 0.8
    observed[~observed.any(1), 0] = True
    data = make(rng.integers(3, size=size), observed=observed)
    federation = federate(data, partition="silos", clients=clients, split_seed=seed)
    owner = owners(federation)
    assert (owner >= 0).all() and federation.holds.all()
    mask = np.unique(observed, axis=0, return_inverse=True)[1].reshape(-1)
    cell = np.unique(np.stack([data.labels, mask], 1), axis=0, return_inverse=True)[1].reshape(-1)
    assert spread(cell, owner, clients) <= 1
    assert spread(data.labels, owner, clients) <= 2
    assert spread(np.zeros(size, int), owner, clients) <= 1


def test_silos_by_default_and_what_they_ignore():
    data = load_data("alzheimer333")
    federation = federate(data, partition="silos")
    assert federation.size == 5 and federation.settings["missing_protocol"] == "adni"
    assert np.array_equal(owners(federation), owners(federate(data, partition="silos", alpha=0.01)))
    owner = owners(federation)
    assert not np.array_equal(owner, owners(federate(data, partition="silos", split_seed=1)))
    # The same silos in every regime.
    for missing in ("mod", "high"):
        other = federate(data, partition="silos", missing=missing)
        assert np.array_equal(owners(other), owner) and other.counts["samples dropped for want of a modality"] == 0


def test_dropped_patients_are_counted_and_the_others_keep_their_silos():
    data = load_data("omics92")
    plain, high = (federate(data, partition="silos", missing=missing) for missing in ("hom", "high"))
    dropped = high.counts["samples dropped for want of a modality"]
    assert dropped > 0 and (owners(high) == -1).sum() == dropped
    kept = owners(high) >= 0
    assert np.array_equal(owners(high)[kept], owners(plain)[kept])
    lacking = ~(data.observed & high.holds[owners(plain)]).any(1)
    assert np.array_equal(lacking, ~kept)


def test_silos_of_grouped_data_take_whole_groups(make):
    group = np.arange(240) // 3
    data = make(group % 2, group=group)
    owner = owners(federate(data, partition="silos", clients=4))
    assert all(len(set(owner[group == one])) == 1 for one in range(80))


def pattern(text, times):
    return [[digit == "1" for digit in text]] * times


def test_masks_merged_with_the_nearest(make):
    # 1101 differs from 1111 in one modality; 0010 from 0011 in one and from 1111 in three; 1001 from 1111 and from 0011
    # in two: the more frequent gets it. Two samples have nothing at all.
    masks = pattern("1111", 20) + pattern("0011", 12) + pattern("1101", 7) + pattern("0010", 3)
    masks += pattern("1001", 1) + pattern("0000", 2)
    data = make(np.arange(45) % 2, observed=np.array(masks))
    federation = federate(data, partition="masks")
    assert federation.clients == ("1111", "0011")
    assert np.bincount(owners(federation)[owners(federation) >= 0]).tolist() == [28, 15]
    assert federation.holds.tolist() == [[True] * 4, [False, False, True, True]]
    assert federation.counts["masks merged"] == 3 and federation.counts["samples of merged masks"] == 11
    assert federation.counts["samples without a modality"] == 2
    assert np.array_equal(federation.observed, data.observed)


def test_masks_of_eight_stay(make):
    data = make(np.arange(16) // 2 % 2, observed=np.array(pattern("10", 8) + pattern("01", 8)))
    federation = federate(data, partition="masks")
    assert federation.clients == ("10", "01") and federation.counts["masks merged"] == 0
    with pytest.raises(UsageError, match="has 2 natural masks that make a client, not 3"):
        federate(data, partition="masks", clients=3)
    with pytest.raises(UsageError, match="has 1 such mask"):
        federate(
            make(np.arange(15) // 2 % 2, observed=np.array(pattern("10", 8) + pattern("01", 7))), partition="masks"
        )


def test_masks_of_real_data():
    omics = federate(load_data("omics92"), partition="masks")
    assert omics.clients == ("11111", "11011") and omics.counts["masks merged"] == 4
    with pytest.raises(UsageError, match="'alzheimer333' has 1 such mask; use 'silos'"):
        federate(load_data("alzheimer333"), partition="masks")


def test_masks_of_the_hospitals(shared_data):
    federation = federate(load_data(shared_data("heart4")), partition="masks")
    assert federation.clients == ("11111", "11110", "11100", "10111", "10110")
    assert (federation.counts["masks merged"], federation.counts["samples of merged masks"]) == (3, 4)


def test_too_many_silos_are_not_blamed_on_alpha(make):
    with pytest.raises(UsageError, match=r"at most 10 clients$"):
        federate(make(np.arange(40) % 2), partition="silos", clients=11)
