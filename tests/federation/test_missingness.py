"""Masks: realised rates, run lengths, repair, natural gaps, one table for everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.data import load_data
from fedjax_mm.errors import UsageError
from fedjax_mm.federation import SPLITS, federate
from fedjax_mm.federation.missingness import available, draw_masks, operate
from fedjax_mm.federation.regimes import CHAINS, PROTOCOLS, Regime


def run_lengths(states, value):
    """Lengths of the maximal runs of a value that neither start nor end the recording."""
    runs = [(key, len(list(group))) for key, group in itertools.groupby(states.tolist())][1:-1]
    return np.array([length for key, length in runs if key == value])


def starts(length, every=None):
    return np.arange(length) % (every or length) == 0


@pytest.mark.parametrize("chain", [*CHAINS.values(), (0.2, 0.3), (0.0, 0.0), (0.5, 0.5), (0.3, 1.0)])
def test_realised_rate_of_the_chain_is_within_four_standard_errors(chain):
    # The mean of N states has variance pi (1 - pi) / N * (1 + 2 sum_t (1 - t / N) lambda^t), lambda = p00 + p11 - 1.
    p00, p11 = chain
    length, copies = 500, 200
    states = operate(chain, starts(length * copies, length), np.random.default_rng(0))
    share, correlation = (1 - p00) / (2 - p00 - p11), p00 + p11 - 1
    lag = np.arange(1, length)
    variance = share * (1 - share) / length * (1 + 2 * np.sum((1 - lag / length) * correlation**lag)) / copies
    assert abs(states.mean() - share) <= 4 * np.sqrt(max(variance, 0)) + 1e-12
    # Stationary from the first sample on.
    first = states[::length].mean()
    assert abs(first - share) <= 4 * np.sqrt(share * (1 - share) / copies)


def test_missing_shares_of_the_regimes():
    shares = {name: (1 - p11) / (2 - p00 - p11) for name, (p00, p11) in CHAINS.items()}
    assert shares == {"mod": pytest.approx(0.2), "high": pytest.approx(0.5)}


@pytest.mark.parametrize("chain", [(0.8, 0.95), (0.9, 0.9), (0.3, 0.2)])
def test_run_lengths_are_geometric(chain):
    # A run of state s lasts k with probability (1 - p) p^(k - 1).
    states = operate(chain, starts(60_000), np.random.default_rng(1))
    for value, stay in zip((False, True), chain, strict=True):
        lengths = run_lengths(states, value)
        error = np.sqrt(stay / (1 - stay) ** 2 / len(lengths))
        assert abs(lengths.mean() - 1 / (1 - stay)) <= 4 * error
        for k in (1, 2, 3):
            expected = (1 - stay) * stay ** (k - 1)
            assert abs((lengths == k).mean() - expected) <= 4 * np.sqrt(expected * (1 - expected) / len(lengths))


@given(st.floats(0, 1), st.floats(0, 0.99), st.integers(1, 40), st.integers(1, 10), st.integers(0, 1000))
def test_the_chain_equals_a_loop_over_its_transitions(p00, p11, length, every, seed):
    begins = starts(length, every)
    uniform = np.random.default_rng(seed).random(length)
    expected, state = [], False
    for begin, u in zip(begins, uniform, strict=True):
        one = (1 - p00) / (2 - p00 - p11) if begin else p11 if state else 1 - p00
        state = bool(u < one)
        expected.append(state)
    assert operate((p00, p11), begins, np.random.default_rng(seed)).tolist() == expected


@pytest.mark.parametrize("beta", [pair for protocol in PROTOCOLS.values() for pair in protocol.beta.values()])
def test_realised_availability_is_within_four_standard_errors(beta):
    # Var(mean of M Bernoulli(q)) = mu (1 - mu) / M + Var(q) (1 - 1 / M).
    a, b = beta
    clients, modalities = 3000, 6
    held = np.stack([available(beta, modalities, client, 0) for client in range(clients)])
    mean = a / (a + b)
    spread = a * b / ((a + b) ** 2 * (a + b + 1))
    variance = (mean * (1 - mean) / modalities + spread * (1 - 1 / modalities)) / clients
    assert abs(held.mean() - mean) <= 4 * np.sqrt(variance)
    # Modalities of a client share q: their covariance is Var(q) = spread.
    covariance = np.cov(held.T.astype(float))[~np.eye(modalities, dtype=bool)].mean()
    assert covariance == pytest.approx(spread, abs=4 * mean * (1 - mean) / np.sqrt(clients * modalities))


def test_streams_of_clients_modalities_and_seeds_are_independent(make):
    # T115b: a flag of one modality, client or seed says nothing about another's.
    data = make(np.arange(8000) % 2, modalities=3, client=np.repeat(list("ab"), 4000), order=np.arange(8000))
    tables = [federate(data, missing="hom,0.5:0.5", split_seed=seed).observed for seed in (0, 1)]
    series = np.concatenate([part.T for table in tables for part in (table[:4000], table[4000:])])
    # Repair touches samples where all three are missing; there they would all be alike.
    series = series[:, ~(~np.stack([t[:4000] for t in tables]).any(2)).any(0)].astype(float)
    off = np.corrcoef(series)[~np.eye(12, dtype=bool)]
    apart = np.abs(off.reshape(12, 11))
    same_sample = np.kron(np.eye(4), np.ones((3, 3)))[~np.eye(12, dtype=bool)].reshape(12, 11).astype(bool)
    assert apart[~same_sample].max() < 4.5 / np.sqrt(series.shape[1])


@st.composite
def problems(draw):
    size, clients = draw(st.integers(40, 90)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    modalities = draw(st.integers(2, 4))
    content = {
        "labels": np.arange(size) % 2,
        "observed": rng.random((size, modalities)) < draw(st.sampled_from([1.0, 0.8, 0.5])),
        "client": np.sort(rng.integers(clients, size=size)).astype(str),
        "order": rng.permutation(size),
    }
    options = {
        "partition": draw(st.sampled_from(["natural", "all", "silos"])),
        "missing": draw(st.sampled_from(["mod,high", "high,none", "hom,high", "0.1:5,0.9:0.1", "1:9,0:0"])),
        "test_missing": draw(st.sampled_from([None, "hom,none", "high,high"])),
        "empty": draw(st.sampled_from(["repair", "drop"])),
        "split_seed": draw(st.integers(0, 1000)),
        "minimum": (1, 0, 0),
    }
    if options["partition"] != "natural":
        options["clients"] = clients
    return content, options


@settings(max_examples=150, deadline=None)
@given(problems())
def test_every_mask(make, problem):
    content, options = problem
    data = make(**content)
    try:
        federation = federate(data, **options)
    except UsageError as error:
        assert "samples" in str(error) and "client" in str(error)
        return
    counts = federation.counts
    # Never observed where naturally missing; no client and no sample without a modality.
    assert not (federation.observed & ~data.observed).any()
    assert federation.holds.any(1).all()
    used = []
    for client, part in itertools.product(range(federation.size), SPLITS):
        rows = federation.table(part).of(client)
        assert (federation.observed[rows] & federation.holds[client]).any(1).all()
        # Before any part was drawn: nothing the client does not hold.
        assert not (federation.observed[rows] & ~federation.holds[client]).any()
        used += rows.tolist()
    assert len(set(used)) == len(used)
    lost = counts["samples without a modality"] + counts["samples dropped for want of a modality"]
    lost += counts["samples in gaps"] + counts.get("test: samples dropped for want of a modality", 0)
    assert len(used) + lost == data.size
    if options["empty"] == "drop":
        assert counts["samples given a modality back"] == 0
    assert all(0 <= share <= 1 for axis in federation.missing_rates.values() for share in axis.values())
    again = federate(data, **federation.settings)
    assert np.array_equal(again.observed, federation.observed) and again.counts == federation.counts


def test_repair_changes_only_what_was_empty(make):
    size = 400
    data = make(np.arange(size) % 2, modalities=3, order=np.arange(size))
    owner, holds = np.zeros(size, int), np.ones((1, 3), bool)
    drop, repair = (
        draw_masks(data, owner, holds, regime=Regime(None, (0.9, 0.9)), empty=empty, seed=3)
        for empty in ("drop", "repair")
    )
    assert np.array_equal(drop.drawn, repair.drawn) and np.array_equal(drop.observed, drop.drawn)
    empty = ~drop.drawn.any(1)
    assert 20 < empty.sum() < 100
    assert np.array_equal(repair.observed[~empty], drop.drawn[~empty])
    assert (repair.observed[empty].sum(1) == 1).all()
    # Each modality is as likely as another to be the one.
    share = repair.observed[empty].mean(0)
    assert np.abs(share - 1 / 3).max() < 4 * np.sqrt(2 / 9 / empty.sum())


def test_repair_gives_back_only_what_the_data_have(make):
    observed = np.ones((200, 3), bool)
    observed[:, 0] = False
    data = make(np.arange(200) % 2, observed=observed, order=np.arange(200))
    federation = federate(data, partition="all", clients=1, missing="hom,0.99:0.1", empty="repair")
    assert federation.counts["samples given a modality back"] > 100
    assert not federation.observed[:, 0].any() and federation.observed.any(1).all()


def test_a_client_left_without_a_modality_gets_one_back(make):
    data = make(np.arange(200) % 2, modalities=3)
    federation = federate(data, partition="all", clients=8, missing="1:200", minimum=(1, 0, 0))
    lost = federation.counts["clients given a modality back"]
    assert lost >= 6
    assert federation.holds.any(1).all() and (federation.holds.sum(1) == 1).sum() >= lost
    rates = federation.missing_rates["client axis"]
    assert rates["before repair"] == pytest.approx(1 - (federation.holds.sum() - lost) / 24)
    assert rates["after repair"] == pytest.approx(1 - federation.holds.sum() / 24)


def test_a_client_gets_back_a_modality_that_its_samples_have(make):
    observed = np.tile([[False, True, False]], (60, 1))
    observed[30:] = [True, False, False]
    data = make(np.arange(60) % 2, observed=observed, client=np.repeat(["a", "b"], 30))
    for seed in range(5):
        federation = federate(data, missing="1:500", split_seed=seed)
        assert federation.holds.tolist() == [[False, True, False], [True, False, False]]


def test_natural_masks_are_combined(make):
    rng = np.random.default_rng(0)
    observed = rng.random((600, 3)) < 0.7
    observed[~observed.any(1), 0] = True
    content = {"labels": np.arange(600) % 3, "client": np.repeat(list("abc"), 200), "order": np.arange(600)}
    whole = federate(make(**content), missing="mod,mod", empty="drop")
    gaps = federate(make(observed=observed, **content), missing="mod,mod", empty="drop")
    assert np.array_equal(whole.holds, gaps.holds)
    assert np.array_equal(gaps.observed, whole.observed & observed)
    assert 0 < gaps.observed.sum() < whole.observed.sum()


def test_rates_worked_by_hand(make):
    # One client of two modalities; the second is naturally missing in a quarter of the samples.
    observed = np.ones((40, 2), bool)
    observed[::4, 1] = False
    data = make(np.arange(40) // 2 % 2, observed=observed, order=np.arange(40))
    plain = federate(data, partition="all", clients=1)
    assert plain.missing_rates["sample axis"] == {"natural": 0.125, "before repair": 0.125, "after repair": 0.125}
    federation = federate(data, partition="all", clients=1, missing="hom,1:0.0", empty="repair")
    # Stationary and never left: everything is missing, and one modality of each sample comes back.
    assert federation.missing_rates["sample axis"] == {"natural": 0.125, "before repair": 1.0, "after repair": 0.5}
    assert federation.counts["samples given a modality back"] == 40


def test_dropping_everything_of_a_client_is_an_error(make):
    data = make(np.arange(40) // 2 % 2, order=np.arange(40))
    with pytest.raises(UsageError, match=r"client '0' has 0 samples, 40 more lack every modality; .* 2 for training"):
        federate(data, partition="all", clients=1, missing="hom,1:0", empty="drop")
    with pytest.raises(UsageError, match=r"client '0' has 0 of its 10 test samples left, test_missing 'hom,1:0'"):
        federate(data, partition="all", clients=1, test_missing="hom,1:0", empty="drop")


def test_missingness_changes_neither_owners_nor_parts(make):
    data = make(np.arange(300) % 3, client=np.repeat(list("abc"), 100), order=np.arange(300))
    plain = federate(data)
    for missing in ("high,high", "mod,mod", "hom,high"):
        federation = federate(data, missing=missing)
        assert all(np.array_equal(plain.table(part).rows, federation.table(part).rows) for part in SPLITS)


def test_the_test_part_alone_has_the_other_missingness(make):
    data = make(np.arange(900) % 3, client=np.repeat(list("abc"), 300), order=np.arange(900), modalities=5)
    mod, high = federate(data, missing="mod,mod"), federate(data, missing="mod,high")
    mixed = federate(data, missing="mod,mod", test_missing="mod,high")
    same = federate(data, missing="mod,mod", test_missing="mod,mod")
    test = np.concatenate([mixed.test.of(client) for client in range(3)])
    rest = np.setdiff1d(np.arange(900), test)
    assert np.array_equal(mixed.observed[rest], mod.observed[rest])
    # Derived as for training: where the client axis is the same, the very table that training would have.
    assert np.array_equal(mixed.observed[test], high.observed[test])
    assert np.array_equal(same.observed, mod.observed) and same.missing_rates == mod.missing_rates
    complete = federate(data, missing="high,high", test_missing="hom,none")
    for client in range(3):
        assert (complete.observed[complete.test.of(client)] == complete.holds[client]).all()
    assert complete.missing_rates["test sample axis"]["after repair"] == 0


def test_other_clients_change_nothing(make):
    content = {"labels": np.arange(300) % 3, "client": np.repeat(list("abc"), 100), "order": np.arange(300)}
    three = federate(make(**content), missing="mod,high")
    two = federate(make(**{key: value[:200] for key, value in content.items()}), missing="mod,high")
    assert np.array_equal(three.holds[:2], two.holds) and np.array_equal(three.observed[:200], two.observed)


def test_the_chain_runs_along_the_order_and_starts_anew_with_each_recording(make):
    # Within a recording the state never changes; between two of them it is drawn anew.
    rng = np.random.default_rng(0)
    client = np.repeat([f"{number:02}" for number in range(50)], 8)
    data = make(np.arange(400) % 2, client=client, order=rng.permutation(400))
    masks = draw_masks(
        data,
        np.zeros(400, int),
        np.ones((1, 3), bool),
        regime=Regime(None, (1 - 1e-9, 1 - 1e-9)),
        empty="drop",
        seed=0,
    )
    by_recording = masks.drawn.reshape(50, 8, 3)
    assert (by_recording == by_recording[:, :1]).all()
    assert 0.3 < by_recording[:, 0].mean() < 0.7
    # And shuffled rows are the same masks: position in the file says nothing.
    shuffle = rng.permutation(400)
    rows = {"client": client, "order": data.order}
    shuffled = make((np.arange(400) % 2)[shuffle], **{key: np.asarray(value)[shuffle] for key, value in rows.items()})
    regime = Regime(None, (0.9, 0.9))
    one, other = (
        draw_masks(d, np.zeros(400, int), np.ones((1, 3), bool), regime=regime, empty="repair", seed=1)
        for d in (data, shuffled)
    )
    assert np.array_equal(one.observed[shuffle], other.observed)


def test_classes_that_are_tested_but_never_trained_are_counted(make):
    # Each class has one group, so a grouped split tests what it does not train.
    group = np.arange(60) // 10
    data = make(group, client=["a"] * 60, group=group)
    counts = federate(data).counts
    assert (
        counts["test samples of classes nobody trains"] == counts["test samples of classes their client does not train"]
    )
    assert counts["test samples of classes nobody trains"] > 0
    assert federate(data, split="random").counts["test samples of classes nobody trains"] == 0


def test_windows_of_one_recording_get_a_gap():
    spar = load_data("spar")
    federation = federate(spar)
    assert federation.settings["gap"] == 1 and federation.counts["samples in gaps"] == 10 * 7 * 2
    assert federate(spar, gap=0).counts["samples in gaps"] == 0
    assert federate(spar, split="grouped").settings["gap"] == federate(spar, partition="all").settings["gap"] == 0


def test_spar_is_missing_what_the_regime_says():
    spar = load_data("spar")
    for name, (p00, p11) in CHAINS.items():
        rates = [federate(spar, missing=f"hom,{name}", split_seed=seed).missing_rates for seed in range(5)]
        rate = np.mean([one["sample axis"]["before repair"] for one in rates])
        share, correlation = (1 - p11) / (2 - p00 - p11), p00 + p11 - 1
        error = np.sqrt(share * (1 - share) * (1 + correlation) / (1 - correlation) / (5 * 2 * spar.size))
        assert abs(rate - share) <= 4 * error
        assert all(one["sample axis"]["after repair"] < one["sample axis"]["before repair"] for one in rates)
