"""Dealing indivisible units: against largest remainders and against maximum flow."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from fedjax_mm.federation.allotment import allot, level


def one_kind(units, receivers):
    return {"kinds": np.zeros(units, int), "allowed": np.ones((1, receivers), bool)}


def largest_remainder(total, weights):
    quotas = total * np.asarray(weights) / np.sum(weights)
    counts = np.floor(quotas).astype(int)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 6), st.integers(0, 10**6))
def test_single_samples_are_dealt_by_largest_remainder(sizes, receivers, seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(receivers), len(sizes))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    owner = allot(
        np.eye(len(sizes), dtype=int)[labels],
        (shares * np.array(sizes)[:, None]).T,
        rng=rng,
        **one_kind(len(labels), receivers),
    )
    for label, size in enumerate(sizes):
        dealt = np.bincount(owner[labels == label], minlength=receivers)
        assert dealt.tolist() == largest_remainder(size, shares[label]).tolist()


def test_equal_shares_leave_client_totals_even_too():
    labels = np.repeat(np.arange(10), 7)
    owner = allot(
        np.eye(10, dtype=int)[labels], np.full((3, 10), 7 / 3), rng=np.random.default_rng(0), **one_kind(70, 3)
    )
    assert sorted(np.bincount(owner).tolist()) == [23, 23, 24]


def test_groups_worked_example():
    # The group of four fits receiver 0 best; of the twos, one completes receiver 0 and the other two go to receiver 1.
    counts = np.array([[2, 0], [4, 0], [0, 2], [0, 2]])
    owner = allot(counts, np.array([[6.0, 0.0], [0.0, 4.0]]), rng=np.random.default_rng(0), **one_kind(4, 2))
    assert owner.tolist() == [0, 0, 1, 1]


def test_units_few_may_have_are_dealt_first():
    # Receiver 0 wants half of everything, but only it may have two of the units: so it gets those and no more.
    allowed, kinds = np.array([[True, False], [True, True]]), np.array([1, 0, 1, 0])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        owner = allot(np.ones((4, 1), int), np.array([[2.0], [2.0]]), rng=rng, kinds=kinds, allowed=allowed)
        assert owner.tolist() == [1, 0, 1, 0]


def feasible(kinds, allowed, need):
    """Whether units of these kinds can give every receiver `need`: source -> kinds -> receivers -> sink."""
    kind_count, receivers = allowed.shape
    graph = np.zeros((kind_count + receivers + 2,) * 2, np.int32)
    graph[0, 1 : kind_count + 1] = np.bincount(kinds, minlength=kind_count)
    graph[1 : kind_count + 1, kind_count + 1 : -1] = allowed * len(kinds)
    graph[kind_count + 1 : -1, -1] = need
    return maximum_flow(csr_matrix(graph), 0, len(graph) - 1).flow_value == need * receivers


@settings(max_examples=300)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_levelling_succeeds_exactly_where_it_is_possible(units, receivers, kind_count, need, seed):
    rng = np.random.default_rng(seed)
    allowed = rng.random((kind_count, receivers)) < 0.4
    allowed[np.arange(kind_count), rng.integers(receivers, size=kind_count)] = True
    kinds = rng.integers(kind_count, size=units)
    counts = np.eye(3, dtype=int)[rng.integers(3, size=units)]
    targets = rng.dirichlet(np.full(receivers, 0.2), 3).T * counts.sum(0)
    owner = allot(counts, targets, rng=rng, kinds=kinds, allowed=allowed)
    assert allowed[kinds, owner].all()
    before = owner.copy()
    levelled = level(owner, counts, targets, need=need, kinds=kinds, allowed=allowed)
    assert (levelled is not None) == feasible(kinds, allowed, need)
    assert np.array_equal(owner, before)
    if levelled is not None:
        assert allowed[kinds, levelled].all() and np.bincount(levelled, minlength=receivers).min() >= need


def test_levelling_takes_from_the_largest_what_the_receiver_wants():
    counts = np.eye(2, dtype=int)[[0, 1, 0, 1, 1, 0, 1]]
    owner = np.array([0, 0, 1, 1, 1, 1, 1])
    targets = np.array([[1.0, 1.0], [2.0, 2.0], [0.0, 1.0]])
    levelled = level(owner, counts, targets, need=1, **one_kind(7, 3))
    assert np.flatnonzero(levelled != owner).tolist() == [3] and levelled[3] == 2


def test_levelling_passes_units_on_where_the_largest_has_nothing_suitable():
    # Receiver 2 may have only kind 0, which receiver 1 holds at its minimum; receiver 0 makes that good with kind 1.
    allowed = np.array([[False, True, True], [True, True, False]])
    kinds, owner = np.array([1, 1, 1, 0]), np.array([0, 0, 0, 1])
    levelled = level(owner, np.ones((4, 1), int), np.ones((3, 1)), need=1, kinds=kinds, allowed=allowed)
    assert np.bincount(levelled).tolist() == [2, 1, 1] and levelled[3] == 2
