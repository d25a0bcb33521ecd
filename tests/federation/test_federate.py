"""Whole federations: settings, defaults, errors, real data."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.errors import UsageError
from fedjax_mm.federation import PARTITIONS, SPLIT_RULES, SPLITS, federate, overview

CREATED = [name for name in PARTITIONS if name not in ("natural", "masks")]


def same(one, other):
    tables = all(np.array_equal(one.table(part).rows, other.table(part).rows) for part in SPLITS)
    return tables and one.clients == other.clients and np.array_equal(one.holds, other.holds)


def used(federation):
    return np.concatenate([federation.table(part).of(client) for part in SPLITS for client in range(federation.size)])


@st.composite
def problems(draw):
    size = draw(st.integers(30, 120))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    more = {}
    if draw(st.booleans()):
        more["order"] = rng.permutation(size)
    if draw(st.booleans()):
        # At least 30 groups: enough for 5 clients, whatever the sizes.
        more["group"] = rng.permutation(size) % 40
    options = {
        "partition": draw(st.sampled_from(CREATED)),
        "clients": draw(st.integers(1, 5)),
        "alpha": draw(st.sampled_from(["iid", 1e-3, 0.1, 0.5, 10.0, 1e3])),
        "split_seed": draw(st.integers(0, 10**6)),
    }
    return {"labels": rng.integers(draw(st.integers(1, 6)), size=size), **more}, options


@settings(max_examples=100, deadline=None)
@given(problems())
def test_every_federation(make, problem):
    content, options = problem
    data, before = make(**content), copy.deepcopy(options)
    federation = federate(data, **options)
    assert options == before
    assert sorted(used(federation)) == list(range(data.size))
    assert federation.clients == tuple(str(client) for client in range(options["clients"]))
    for part, least in zip(SPLITS, (2, 1, 1), strict=True):
        table = federation.table(part)
        assert table.rows.dtype == table.sizes.dtype == np.int32 and table.sizes.min() >= least
        beyond = np.arange(table.rows.shape[1]) >= table.sizes[:, None]
        assert (table.rows[beyond] == data.size).all() and (table.rows[~beyond] < data.size).all()
        assert all((np.diff(table.of(client)) > 0).all() for client in range(federation.size))
    again = json.loads(json.dumps(federation.settings))
    assert same(federation, federate(data, **again)) and federate(data, **again).settings == federation.settings
    if "group" in content and federation.settings["split"] == "grouped":
        sides = [
            set(data.group[np.concatenate([federation.table(part).of(k) for k in range(federation.size)])])
            for part in SPLITS
        ]
        assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])


def test_another_split_seed_gives_another_federation_and_no_global_state_is_touched(make):
    data = make(np.arange(200) % 5)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    federations = [federate(data, partition="m1+", clients=4, split_seed=seed) for seed in range(6)]
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    assert not any(same(federations[0], other) for other in federations[1:])
    natural = make(np.arange(200) % 5, client=np.repeat(list("abcd"), 50))
    assert not same(federate(natural), federate(natural, split_seed=1))


def test_every_option_reaches_the_settings(make):
    data = make(np.arange(300) % 5, order=np.arange(300))
    given_options = {
        "partition": "m2",
        "clients": 5,
        "alpha": 0.3,
        "split": "chronological",
        "split_seed": 9,
        "fractions": [0.5, 0.2, 0.3],
        "minimum": [3, 2, 2],
        "gap": 1,
        "missing": "mod,none",
        "test_missing": "hom,high",
        "missing_protocol": "adni",
        "empty": "repair",
    }
    federation = federate(data, **given_options)
    assert federation.settings == given_options and federation.split_seed == 9
    assert federation.counts["samples in gaps"] == 300 - len(used(federation)) > 0


def test_defaults(make):
    labels = np.arange(120) % 3
    bare = federate(make(labels)).settings
    assert (bare["partition"], bare["clients"], bare["split"], bare["alpha"]) == ("m1+", 3, "random", 0.5)
    natural = federate(make(labels, client=np.repeat(["z", "a"], 60), group=np.arange(120) // 4)).settings
    assert (natural["partition"], natural["clients"], natural["split"]) == ("natural", 2, "grouped")
    assert federate(make(labels, order=np.arange(120), group=np.arange(120) // 4)).settings["split"] == "chronological"


def test_further_clients_change_no_modality_set_of_the_first(make):
    data = make(np.arange(400) % 5, modalities=6)
    six, eight = (federate(data, partition="m1+", clients=clients) for clients in (6, 8))
    assert np.array_equal(six.holds, eight.holds[:6])


def test_a_random_split_of_grouped_data_is_possible_and_counted(make):
    federation = federate(
        make(np.arange(100) % 2, group=np.arange(100) // 10), partition="all", clients=2, split="random"
    )
    assert federation.counts["groups on several sides"] > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "m1++"}, r"unknown partition 'm1\+\+'; did you mean m1\+"),
        ({"partition": "masks"}, "a client of each natural mask with at least 8 samples, and 'tiny' has 1 such mask"),
        ({"partition": "natural"}, "'natural' needs data with clients"),
        ({"split": "randon"}, "unknown split 'randon'; did you mean random"),
        ({"split": "chronological"}, "needs data with an order"),
        ({"split": "grouped"}, "needs data with groups"),
        ({"clients": 0}, "clients must be an integer of at least 1, not 0"),
        ({"clients": 2.5}, "clients must be an integer of at least 1, not 2.5"),
        ({"alpha": 0}, "alpha must be a positive finite number or 'iid', not 0"),
        ({"alpha": float("nan")}, "alpha must be .* not nan"),
        ({"alpha": float("inf")}, "alpha must be .* not inf"),
        ({"alpha": "IDD"}, "alpha must be .* not 'IDD'"),
        ({"split_seed": -1}, "split_seed must be an integer of at least 0, not -1"),
        ({"fractions": (0.5, 0.5, 0.5)}, "must be positive and sum to 1"),
        ({"fractions": (1.0, 0.0, 0.0)}, "must be positive and sum to 1"),
        ({"fractions": (0.5, 0.5)}, "fractions must be three numbers"),
        ({"minimum": (2, 1)}, "minimum must be three counts"),
        ({"minimum": (0, 1, 1)}, "minimum must be an integer of at least 1, not 0"),
        ({"minimum": 4}, "minimum must be three counts"),
        ({"gap": 1}, "a gap of 1 needs split 'chronological', not 'random'"),
        ({"gap": -1}, "gap must be an integer of at least 0"),
    ],
)
def test_bad_options_get_one_clear_error(make, options, message):
    with pytest.raises(UsageError, match=message):
        federate(make(np.arange(40) % 2), **options)


def test_options_that_do_not_fit_the_data(make):
    natural = make(np.arange(40) % 2, client=np.repeat(["a", "b"], 20))
    with pytest.raises(UsageError, match="has 2 natural clients, not 3"):
        federate(natural, clients=3)
    assert federate(natural, clients=2).size == 2
    with pytest.raises(UsageError, match="'m2' gives each client two modalities"):
        federate(make(np.arange(40) % 2, modalities=1), partition="m2")
    with pytest.raises(UsageError, match="at most 0 clients"):
        federate(make(np.arange(4) % 2, observed=np.zeros((4, 2))))


def test_overview(make):
    observed = np.ones((40, 2), bool)
    observed[20:, 1] = False
    labels = np.concatenate([np.arange(20) % 2, np.arange(20) % 4])
    table = overview(federate(make(labels, observed=observed, client=np.repeat(["x", "y"], 20))))
    assert table.columns.tolist() == ["client", "modalities", "train", "validation", "test", "classes"]
    assert table[["client", "modalities", "classes"]].values.tolist() == [["x", "m0+m1", 2], ["y", "m0", 4]]
    assert (table[["train", "validation", "test"]].sum(axis=1) == 20).all()


@pytest.mark.parametrize(
    ("name", "clients", "split"),
    [
        ("wisdm8", 8, "chronological"),
        ("umafall", 19, "chronological"),
        ("spar", 10, "chronological"),
        ("heart4", 4, "random"),
        ("cremad_votes", 91, "grouped"),
    ],
)
def test_natural_clients_of_real_data(real, name, clients, split):
    data = real(name)
    federation = federate(data)
    assert (federation.size, federation.settings["split"]) == (clients, split)
    assert sorted(used(federation)) == list(range(data.size))
    assert list(federation.clients) == sorted(set(data.client))
    shares = np.array([federation.table(part).sizes.sum() for part in SPLITS]) / data.size
    assert np.abs(shares - (0.64, 0.11, 0.25)).max() < (0.04 if split == "grouped" else 0.01)
    for client, who in enumerate(federation.clients):
        mine = np.concatenate([federation.table(part).of(client) for part in SPLITS])
        assert set(data.client[mine]) == {who}
        assert np.array_equal(federation.holds[client], data.observed[data.client == who].any(0))
        # Nothing the client is tested on was never trained, whatever the recording looks like.
        if split == "chronological":
            assert set(data.labels[mine]) == set(data.labels[federation.train.of(client)])


def test_subject_without_streams(real):
    federation = federate(real("umafall"))
    assert federation.holds.sum(1).tolist() == [5 if name == "subject13" else 9 for name in federation.clients]


@pytest.mark.parametrize("name", ["spar", "cremad_votes"])
def test_groups_of_real_data_stay_on_one_side_and_with_one_client(real, name):
    data = real(name)
    for options in ({"partition": "natural"}, {"partition": "m1+", "clients": 12, "alpha": 0.3}):
        federation = federate(data, split="grouped", **options)
        assert sorted(used(federation)) == list(range(data.size))
        place = np.full((data.size, 2), -1)
        for side, part in enumerate(SPLITS):
            for client in range(federation.size):
                place[federation.table(part).of(client)] = side, client
        assert len(np.unique(place, axis=0)) == 3 * federation.size
        assert all(len(np.unique(place[data.group == one], axis=0)) == 1 for one in np.unique(data.group))


def test_gap_of_one_window(real):
    federation = federate(real("wisdm8"), gap=1)
    assert federation.counts["samples in gaps"] == 8 * 12 * 2


def test_names_that_are_listed_can_be_used(make):
    observed = np.ones((90, 3), bool)
    observed[:30, 0] = False
    data = make(
        np.arange(90) % 3,
        observed=observed,
        client=np.repeat(list("abc"), 30),
        order=np.arange(90),
        group=np.arange(90) // 3,
    )
    for partition in PARTITIONS:
        for split in SPLIT_RULES:
            assert federate(data, partition=partition, split=split).settings["partition"] == partition
