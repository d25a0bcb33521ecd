"""Samples to clients: Dirichlet and equal shares, minimums, groups, samples few clients can see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_mm.errors import UsageError
from fedjax_mm.federation import SPLITS, federate


def members(federation, client):
    return np.sort(np.concatenate([federation.table(part).of(client) for part in SPLITS]))


def histograms(federation):
    labels, classes = federation.data.labels, len(federation.data.classes)
    return np.stack([np.bincount(labels[members(federation, k)], minlength=classes) for k in range(federation.size)])


def assert_all_used_once(federation):
    everyone = np.concatenate([members(federation, client) for client in range(federation.size)])
    assert np.array_equal(np.sort(everyone), np.arange(federation.data.size))


def test_iid_on_label_sorted_data_gives_every_client_the_global_histogram(make):
    federation = federate(make(np.repeat(np.arange(10), 100)), partition="m1", clients=8, alpha="iid")
    counts = histograms(federation)
    assert counts.min() >= 12 and counts.max() <= 13
    assert sorted(counts.sum(1)) == [125] * 8
    # Within a class the draw is random, not a contiguous block.
    assert np.ptp(members(federation, 0)[:12]) > 50


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.05, 1, 1e3, 1e300])
def test_any_concentration_gives_a_whole_partition(make, alpha):
    federation = federate(make(np.repeat(np.arange(5), 40)), partition="m1+", clients=20, alpha=alpha)
    assert_all_used_once(federation)
    assert histograms(federation).sum(1).min() >= 4


def test_small_concentrations_leave_a_class_with_one_client_and_large_ones_spread_it(make):
    data = make(np.repeat(np.arange(4), 100))
    lumped = histograms(federate(data, partition="m1", clients=3, alpha=1e-3, split_seed=1))
    assert lumped.max(0).min() >= 100 - 2 * 4
    spread = histograms(federate(data, partition="m1", clients=4, alpha=1e6))
    assert (spread == 25).all()


def test_partition_sizes_that_use_up_all_data(make):
    # Every client ends with exactly the minimum: each class is exhausted on the way.
    federation = federate(make(np.arange(80) % 4), partition="m1+", clients=20, alpha=0.1)
    assert_all_used_once(federation)
    assert (histograms(federation).sum(1) == 4).all()


def test_no_sample_is_dropped_where_sizes_do_not_divide(make):
    federation = federate(make(np.arange(1000) % 7), partition="m1", clients=33, alpha="iid")
    assert_all_used_once(federation)
    assert np.ptp(histograms(federation).sum(1)) <= 1
    assert set(federation.counts.values()) == {0}


def test_hundred_clients_with_ten_samples_each_end_soon_at_a_small_concentration(make):
    federation = federate(make(np.arange(1000) % 10), partition="m1+", clients=100, alpha=0.1, minimum=(6, 1, 3))
    assert_all_used_once(federation)
    assert [federation.table(part).sizes.tolist() for part in SPLITS] == [[6] * 100, [1] * 100, [3] * 100]


def test_thousand_clients_on_real_data_end_soon(real):
    data = real("cremad_votes")
    federation = federate(data, partition="m1+", clients=1000, alpha=0.05)
    # 1092 groups do not suffice for 1000 clients: the default takes every sample on its own, and says what it tore.
    assert federation.settings["split"] == "random"
    assert federation.counts["groups on several sides"] > 1000
    assert federate(data, partition="m1+", clients=100, alpha=0.05).counts["groups on several sides"] == 0
    assert_all_used_once(federation)
    assert all(federation.table(part).sizes.min() >= least for part, least in zip(SPLITS, (2, 1, 1), strict=True))


def test_shares_of_a_class_are_dirichlet(make):
    # One share of Dirichlet(a, ..., a) over K is Beta(a, (K - 1) a); independent seeds, large classes, no repair.
    clients, alpha = 5, 0.8
    data = make(np.repeat([0, 1], 600))
    shares = np.array(
        [
            histograms(federate(data, partition="m1", clients=clients, alpha=alpha, split_seed=seed))[seed % clients]
            for seed in range(120)
        ]
    )
    for share in shares.T / 600:
        assert stats.kstest(share, stats.beta(alpha, (clients - 1) * alpha).cdf).pvalue > 1e-3
    assert abs(stats.spearmanr(*shares.T).statistic) < 0.3


def test_no_client_and_no_class_is_favoured(make):
    # Mean histogram over seeds: equal for all clients, and the last class gets what the others get.
    data = make(np.repeat(np.arange(5), 60))
    total = (
        sum(histograms(federate(data, partition="m1", clients=4, alpha=1.0, split_seed=seed)) for seed in range(200))
        / 200
    )
    # A share of Dirichlet(1, 1, 1, 1) has standard deviation sqrt(3/80).
    assert np.abs(total - 15).max() < 4.5 * 60 * np.sqrt(3 / 80) / np.sqrt(200)


def test_labels_that_are_not_contiguous(make):
    federation = federate(make(np.repeat([3, 7], 30), classes=9), partition="m1", clients=3)
    assert_all_used_once(federation)


def test_samples_go_only_to_clients_that_can_see_them(make):
    observed = np.zeros((120, 3), bool)
    observed[np.arange(120), np.arange(120) % 3] = True
    federation = federate(make(np.arange(120) // 60, observed=observed), partition="m1", clients=3)
    for client in range(3):
        assert observed[members(federation, client)][:, federation.holds[client]].any(1).all()
    assert (histograms(federation).sum(1) == 40).all()


@given(st.integers(0, 10**6), st.sampled_from(["m1", "m2", "m1+"]), st.integers(1, 6))
def test_what_is_dealt_is_seen_and_what_is_not_is_counted(make, seed, partition, clients):
    rng = np.random.default_rng(seed)
    observed = rng.random((150, 3)) < 0.5
    data = make(rng.integers(3, size=150), observed=observed)
    federation = federate(data, partition=partition, clients=clients, split_seed=seed)
    used = [members(federation, client) for client in range(clients)]
    for client, samples in enumerate(used):
        assert (observed[samples] & federation.holds[client]).any(1).all()
    dropped = np.setdiff1d(np.arange(150), np.concatenate(used))
    assert len(dropped) == federation.counts["samples without a modality"] == (~observed.any(1)).sum()


def test_a_minimum_that_visibility_forbids_is_an_error(make):
    observed = np.ones((60, 2), bool)
    observed[3:, 0] = False
    with pytest.raises(
        UsageError, match=r"no way to give each of 2 clients .*'m1'.* alpha 0\.5.* 4 samples .*60 samples"
    ):
        federate(make(np.arange(60) % 2, observed=observed), partition="m1", clients=2)


def test_samples_without_any_modality_are_left_out_of_natural_clients(make):
    observed = np.ones((20, 2), bool)
    observed[[3, 15]] = False
    observed[10:, 1] = False
    data = make(np.arange(20) % 2, observed=observed, client=np.repeat(["b", "a"], 10))
    federation = federate(data)
    assert federation.clients == ("a", "b")
    assert federation.holds.tolist() == [[True, False], [True, True]]
    assert members(federation, 0).tolist() == [10, 11, 12, 13, 14, 16, 17, 18, 19]
    assert federation.counts["samples without a modality"] == 2


def test_a_natural_client_without_any_modality_is_told_so(make):
    observed = np.ones((20, 2), bool)
    observed[:10] = False
    data = make(np.arange(20) % 2, observed=observed, client=np.repeat(["b", "a"], 10))
    with pytest.raises(UsageError, match="client 'b' has 0 samples, 10 more lack every modality"):
        federate(data)


def test_whole_groups_are_dealt(make):
    rng = np.random.default_rng(0)
    group = rng.integers(60, size=900)
    data = make(group % 4, group=group)
    federation = federate(data, partition="m1+", clients=5, alpha=0.5)
    assert_all_used_once(federation)
    owner = np.full(900, -1)
    for client in range(5):
        owner[members(federation, client)] = client
    assert all(len(set(owner[group == one])) == 1 for one in range(60))
    assert federation.counts["groups on several sides"] == 0


def test_groups_dealt_evenly_keep_class_proportions_near(make):
    group = np.arange(1200) // 5
    counts = histograms(federate(make(group % 4, group=group), partition="m1", clients=6, alpha="iid"))
    assert (counts == 50).all()


@pytest.mark.parametrize(
    ("clients", "extra", "message"),
    [
        (
            26,
            {},
            r"26 clients .* 100 samples: .*4 samples \(2 train, 1 validation and 1 test.*at most 25 clients.*0\.5",
        ),
        (21, {"minimum": (3, 1, 1)}, r"at most 20 clients"),
        (7, {"group": np.arange(100) // 5}, r"7 clients .* 20 groups .*at most 6 clients"),
    ],
)
def test_more_clients_than_the_samples_allow(make, clients, extra, message):
    extra = dict(extra)
    limits = {"minimum": extra.pop("minimum", (2, 1, 1)), "split": "grouped" if "group" in extra else None}
    data = make(np.arange(100) % 5, **extra)
    with pytest.raises(UsageError, match=message):
        federate(data, partition="m1+", clients=clients, **limits)
    assert federate(data, partition="m1+", clients=clients - 1, alpha=0.1, **limits).size == clients - 1
