"""One client's samples into train, validation and test."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.errors import UsageError
from fedjax_mm.federation import SPLITS, federate
from fedjax_mm.federation.split import split_by_class, split_by_group

FRACTIONS = (0.64, 0.11, 0.25)


def by_class(labels, position=None, *, fractions=FRACTIONS, minimum=(2, 1, 1), gap=0, seed=0):
    labels = np.asarray(labels)
    position = np.arange(len(labels)) if position is None else np.asarray(position)
    samples = 100 + np.arange(len(labels))
    parts = split_by_class(
        samples, labels, position, fractions=fractions, minimum=minimum, gap=gap, rng=np.random.default_rng(seed)
    )
    return None if parts is None else [part - 100 for part in parts]


def sizes(parts):
    return [len(part) for part in parts]


@pytest.mark.parametrize(
    ("class_sizes", "fractions", "expected"),
    [
        ([40], (0.6, 0.2, 0.2), [24, 8, 8]),
        ([10, 10, 10, 10], (0.6, 0.2, 0.2), [24, 8, 8]),
        ([7, 13, 20], (0.6, 0.2, 0.2), [24, 8, 8]),
        ([100], FRACTIONS, [64, 11, 25]),
        ([17] * 12, FRACTIONS, [131, 22, 51]),
        ([3] * 6, FRACTIONS, [12, 2, 4]),
        ([3] * 100, FRACTIONS, [192, 33, 75]),
        ([1, 1, 1, 1], FRACTIONS, [2, 1, 1]),
        ([2, 2], FRACTIONS, [2, 1, 1]),
    ],
)
def test_sizes_worked_by_hand(class_sizes, fractions, expected):
    parts = by_class(np.repeat(np.arange(len(class_sizes)), class_sizes), fractions=fractions)
    assert sizes(parts) == pytest.approx(expected, abs=1 if len(class_sizes) > 4 else 0)
    assert sorted(np.concatenate(parts)) == list(range(sum(class_sizes)))


def test_classes_too_small_for_three_parts_fill_train_then_test():
    labels = np.repeat([0, 1, 2], [50, 1, 2])
    train, validation, test = by_class(labels)
    assert (labels[train] == 1).sum() == 1
    assert (labels[train] == 2).sum() == 1 and (labels[test] == 2).sum() == 1
    assert (labels[validation] == 0).all()


@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=15), st.integers(0, 1000))
def test_parts_are_disjoint_near_the_fractions_and_meet_the_minimum(class_sizes, seed):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    parts = by_class(labels, seed=seed)
    if len(labels) < 4:
        assert parts is None
        return
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert (np.array(sizes(parts)) >= (2, 1, 1)).all()
    cells = np.stack([np.bincount(labels[part], minlength=len(class_sizes)) for part in parts], 1)
    large = np.array(class_sizes) >= 3
    quotas = np.outer(class_sizes, FRACTIONS)
    # A rounding of its quota, and one more or less where the minimum had to be met.
    assert np.abs(cells - quotas)[large].max(initial=0) < 2
    if large.all():
        assert np.abs(np.array(sizes(parts)) - quotas.sum(0)).max() < 2


@given(st.integers(0, 1000), st.integers(0, 3), st.lists(st.integers(1, 25), min_size=1, max_size=6))
def test_chronological_parts_follow_each_other_with_the_gap(seed, gap, class_sizes):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))
    order = rng.permutation(len(labels))
    parts = by_class(labels, order, gap=gap, seed=seed)
    if parts is None:
        assert len(labels) < 4 or gap
        return
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert (np.array(sizes(parts)) >= (2, 1, 1)).all()
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        rank = dict(zip(mine[np.argsort(order[mine])], range(len(mine)), strict=True))
        ranks = [sorted(rank[sample] for sample in part if labels[sample] == label) for part in parts]
        present = [part for part in ranks if part]
        assert all(later[0] - earlier[-1] > gap for earlier, later in itertools.pairwise(present))
        if len(present) == 1 and gap == 0:
            assert len(present[0]) == len(mine)


def test_gap_worked_example():
    train, validation, test = by_class([0] * 17, gap=1)
    # 15 samples are left for the parts: 9.6, 1.65 and 3.75.
    assert train.tolist() == list(range(9)) and validation.tolist() == [10, 11] and test.tolist() == [13, 14, 15, 16]


def test_a_gap_is_kept_when_the_minimum_must_be_met():
    # Neither class can give a validation sample and keep the gap, so the class of two goes over as a whole.
    train, validation, test = by_class([0, 0, 0, 0, 1, 1], gap=1, minimum=(2, 1, 1))
    assert [part.tolist() for part in (train, validation, test)] == [[0, 1], [4, 5], [3]]


def test_meeting_the_minimum_leaves_no_class_untrained_where_another_sample_can_go():
    labels = np.array([0, 1, 1, 2, 3, 3, 4, 4])
    parts = by_class(labels)
    assert sizes(parts) == [5, 1, 2] and set(labels[parts[0]]) == {0, 1, 2, 3, 4}


def test_a_minimum_no_split_can_give_is_none():
    assert by_class([0, 0, 0]) is None
    assert by_class([0] * 5, gap=1) is None
    assert by_class([0] * 6, gap=1) is not None


def by_group(labels, group, *, minimum=(2, 1, 1), seed=0):
    parts = split_by_group(
        np.arange(len(labels)),
        np.asarray(labels),
        np.asarray(group),
        fractions=FRACTIONS,
        minimum=minimum,
        rng=np.random.default_rng(seed),
    )
    return parts


@settings(max_examples=200)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=14), st.integers(0, 1000))
def test_groups_stay_on_one_side_and_the_minimum_is_met_where_it_can_be(group_sizes, seed):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    parts = by_group(rng.integers(3, size=len(group)), group, seed=seed)
    if len(group_sizes) < 3 or len(group) < 4:
        assert parts is None
        return
    assert sorted(np.concatenate(parts)) == list(range(len(group)))
    assert (np.array(sizes(parts)) >= (2, 1, 1)).all()
    sides = [set(group[part]) for part in parts]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def test_many_small_groups_come_near_the_fractions_in_every_class():
    group = np.arange(600) // 3
    parts = by_group(group % 2, group)
    assert sizes(parts) == pytest.approx([384, 66, 150], abs=3)
    assert [(part // 3 % 2).mean() for part in parts] == pytest.approx([0.5] * 3, abs=0.03)


def test_validation_is_not_the_same_classes_at_every_client(make):
    # Classes of three: about one class in three is in validation, and every class must be somewhere.
    labels = np.tile(np.repeat(np.arange(10), 3), 30)
    federation = federate(make(labels, client=np.repeat(np.arange(30).astype(str), 30)))
    validated = np.bincount(
        labels[np.concatenate([federation.validation.of(client) for client in range(30)])], minlength=10
    )
    assert validated.min() >= 2


def test_a_natural_client_with_too_few_samples_is_named(make):
    data = make(np.arange(13) % 2, client=["big"] * 10 + ["small"] * 3)
    with pytest.raises(
        UsageError, match=r"client 'small' has 3 samples; .* 2 for training, 1 for validation and 1 for testing"
    ):
        federate(data)
    grouped = make(np.arange(20) % 2, client=["a"] * 10 + ["b"] * 10, group=[0, 0, 0, 1, 1, 2, 2, 3, 3, 3, *[4] * 10])
    with pytest.raises(UsageError, match=r"client 'b' has 10 samples in 1 groups"):
        federate(grouped)


def test_chronological_split_of_a_recording_in_blocks(make):
    # Activity after activity: cut within each class, so no class is left untrained.
    data = make(np.repeat(np.arange(4), 25), client=["s"] * 100, order=np.arange(100))
    federation = federate(data)
    assert federation.settings["split"] == "chronological"
    for part, size in zip(SPLITS, (16, 3, 6), strict=True):
        counts = np.bincount(data.labels[federation.table(part).of(0)])
        assert len(counts) == 4 and np.abs(counts - size).max() <= 1
    for label in range(4):
        last = max(sample for sample in federation.train.of(0) if data.labels[sample] == label)
        first = min(sample for sample in federation.test.of(0) if data.labels[sample] == label)
        assert last < first
