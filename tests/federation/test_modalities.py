"""Which client holds which modality."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_mm import seeding
from fedjax_mm.federation.modalities import hold_modalities

PARTITIONS = ["m1", "m2", "m1+", "all"]
SEEDS = st.integers(0, 10**6)


def test_worked_example():
    pi = seeding.generator(3, seeding.PERMUTATION).permutation(4).tolist()
    assert sorted(pi) == [0, 1, 2, 3]
    m1 = hold_modalities("m1", 6, 4, seed=3)
    assert [np.flatnonzero(row).tolist() for row in m1] == [[pi[i % 4]] for i in range(6)]
    m2 = hold_modalities("m2", 6, 4, seed=3)
    assert [set(np.flatnonzero(row)) for row in m2[:4]] == [{pi[i], pi[(i + 1) % 4]} for i in range(4)]
    assert hold_modalities("all", 3, 4, seed=3).all()


@given(st.sampled_from(PARTITIONS), st.integers(1, 12), st.integers(2, 6), SEEDS)
def test_every_client_holds_something_and_every_modality_is_held(partition, clients, modalities, seed):
    holds = hold_modalities(partition, clients, modalities, seed=seed)
    assert holds.shape == (clients, modalities) and holds.any(1).all() and holds.any(0).all()
    if clients >= modalities and partition in ("m1", "m2"):
        assert (holds.sum(1) == int(partition[1])).all()


@given(st.sampled_from(PARTITIONS), st.integers(2, 6), st.integers(0, 4), st.integers(1, 8), SEEDS)
def test_further_clients_change_nothing_for_the_first(partition, modalities, beyond, more, seed):
    few = hold_modalities(partition, modalities + beyond, modalities, seed=seed)
    many = hold_modalities(partition, modalities + beyond + more, modalities, seed=seed)
    assert np.array_equal(few, many[: len(few)])


@pytest.mark.parametrize(
    ("clients", "expected"), [(2, [[0, 2, 4], [1, 3]]), (3, [[0, 3], [1, 4], [2]]), (1, [[0, 1, 2, 3, 4]])]
)
def test_fewer_clients_than_modalities_get_the_rest_in_turn(clients, expected):
    pi = seeding.generator(7, seeding.PERMUTATION).permutation(5)
    holds = hold_modalities("m1", clients, 5, seed=7)
    assert [sorted(np.flatnonzero(row)) for row in holds] == [sorted(pi[entries]) for entries in expected]


def test_m1_plus_beyond_the_first_clients_is_uniform_over_the_non_empty_subsets():
    holds = hold_modalities("m1+", 7003, 3, seed=0)[3:]
    counts = collections.Counter(map(bytes, holds))
    assert len(counts) == 7
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_m2_beyond_the_first_clients_is_uniform_over_the_pairs():
    counts = collections.Counter(map(bytes, hold_modalities("m2", 6004, 4, seed=0)[4:]))
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_the_first_clients_of_m1_plus_hold_each_other_modality_half_of_the_time():
    extra, own = np.zeros((4, 4)), np.zeros((4, 4))
    for seed in range(1000):
        pi = seeding.generator(seed, seeding.PERMUTATION).permutation(4)
        holds = hold_modalities("m1+", 4, 4, seed=seed)[:, pi]
        assert holds.diagonal().all()
        extra += holds
        own += np.eye(4)
    rates = (extra / 1000)[~np.eye(4, dtype=bool)]
    assert np.abs(rates - 0.5).max() < 4 * 0.5 / np.sqrt(1000)


def test_another_seed_draws_other_sets():
    assert len({hold_modalities("m1+", 8, 5, seed=seed).tobytes() for seed in range(20)}) == 20
