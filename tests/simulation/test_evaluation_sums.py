"""The sums of an evaluation, and what follows from them, against scikit-learn and NumPy."""

import itertools

import jax
import numpy as np
import pytest
from sklearn import metrics as oracle

from fedjax_mm.methods.method import Batch
from fedjax_mm.metrics.classification import classification
from fedjax_mm.metrics.subsets import group_name, pooled, sparse
from fedjax_mm.metrics.weighting import populations
from fedjax_mm.simulation.evaluate import tally

CLASSES, CLIENTS, SIZE, NAMES = 5, 4, 40, ("a", "b", "c")
count = jax.jit(jax.vmap(tally))

pytestmark = pytest.mark.usefixtures("x64")


def draw(modalities=3):
    """Four clients with 40 slots each, two predictors: class 4 is in no label, client 2 has no sample."""
    rng = np.random.default_rng(0)
    observed = rng.random((CLIENTS, modalities, SIZE)) < 0.5
    observed[2] = False
    valid = observed.any(axis=1)
    y = np.where(valid, rng.integers(0, CLASSES - 1, (CLIENTS, SIZE)), 0)
    scores = 3 * rng.normal(size=(CLIENTS, 2, SIZE, CLASSES)) + 2 * np.eye(CLASSES)[y][:, None]
    batch = Batch(y.astype(np.int32), valid, observed, np.zeros_like(y, np.int32))
    return scores, batch, rng.integers(0, 2, (CLIENTS, SIZE)).astype(np.int32)


def counted(scores, batch, part):
    return jax.tree.map(np.asarray, count(scores, batch, part))


def part_of(scores, batch, part, client, predictor, which):
    """Labels and probabilities of the samples of one client's part."""
    mine = batch.valid[client] & (part[client] == which)
    raised = np.exp(scores[client, predictor, mine])
    return batch.y[client, mine], raised / raised.sum(axis=1, keepdims=True)


def calibration_error(y, p):
    """By its definition, bin after bin."""
    top, right = p.max(axis=1), p.argmax(axis=1) == y
    edges, total = np.arange(16) / 15, 0.0
    for low, high in itertools.pairwise(edges):
        inside = (low < top) & (top <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    return total


def expected(y, p):
    labels = np.arange(CLASSES)
    return {
        "accuracy": oracle.accuracy_score(y, p.argmax(axis=1)),
        "macro_f1": oracle.f1_score(y, p.argmax(axis=1), average="macro", zero_division=0),
        "loss": oracle.log_loss(y, p, labels=labels),
        "ece": calibration_error(y, p),
        "brier": np.mean([sum((q - (c == y[i])) ** 2 for c, q in enumerate(p[i])) for i in range(len(y))]),
    }


def test_metrics_are_those_of_scikit_learn_and_numpy():
    drawn = draw()
    sums = counted(*drawn).sums
    values, together = classification(sums), populations(sums.map(lambda leaf: np.moveaxis(leaf, 0, 2)))
    for predictor in range(2):
        for which in range(2):
            parts = {client: part_of(*drawn, client, predictor, which) for client in (0, 1, 3)}
            clients = {client: expected(*mine) for client, mine in parts.items()}
            everyone = expected(*(np.concatenate(side) for side in zip(*parts.values(), strict=True)))
            sizes = [len(y) for y, _ in parts.values()]
            for name, value in everyone.items():
                own = [mine[name] for mine in clients.values()]
                for client, wanted in zip(clients, own, strict=True):
                    assert values[name][client, predictor, which] == pytest.approx(wanted, rel=1e-10)
                assert np.isnan(values[name][2, predictor, which])
                place = (predictor, which)
                assert together[f"{name}/pooled"][place] == pytest.approx(value, rel=1e-10)
                assert together[f"{name}/client_mean"][place] == pytest.approx(np.mean(own), rel=1e-10)
                weighted = np.average(own, weights=sizes)
                assert together[f"{name}/sample_weighted"][place] == pytest.approx(weighted, rel=1e-10)


def test_sums_are_additive_over_batches():
    scores, batch, part = draw()
    whole = counted(scores, batch, part)
    halves = [
        counted(
            scores[:, :, cut],
            Batch(batch.y[:, cut], batch.valid[:, cut], batch.observed[:, :, cut], batch.index[:, cut]),
            part[:, cut],
        )
        for cut in (slice(0, 20), slice(20, 40))
    ]
    for a, b, c in zip(jax.tree.leaves(whole), *map(jax.tree.leaves, halves), strict=True):
        np.testing.assert_allclose(a, b + c, rtol=1e-12)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300])
def test_scores_of_samples_that_are_not_valid_change_nothing(poison):
    scores, batch, part = draw()
    whole = counted(scores, batch, part)
    other = np.where(batch.valid[:, None, :, None], scores, poison)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(counted(other, batch, part)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.sums.confusion[2].sum() == whole.sums.bins[2].sum() == whole.subsets[2].sum() == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_counts_at_its_worst(bad):
    scores, batch, part = draw()
    before = counted(scores, batch, part)
    slot = int(np.flatnonzero(batch.valid[0] & (part[0] == 1))[0])
    broken = scores.copy()
    broken[0, 0, slot, 1] = bad
    after = counted(broken, batch, part)
    # The same sample with another predictor, and all other samples, are as they were.
    alone = [np.zeros_like(leaf) for leaf in (before.sums.brier, before.sums.confidence)]
    y, p = batch.y[0, slot], np.exp(scores[0, 0, slot]) / np.exp(scores[0, 0, slot]).sum()
    alone[0][0, 0, 1] = 2 - np.sum((p - np.eye(CLASSES)[y]) ** 2)
    alone[1][0, 0, 1, int(np.ceil(p.max() * 15)) - 1] -= p.max()
    alone[1][0, 0, 1, 14] += 1
    np.testing.assert_allclose(after.sums.brier - before.sums.brier, alone[0], atol=1e-12)
    np.testing.assert_allclose(after.sums.confidence - before.sums.confidence, alone[1], atol=1e-12)
    assert after.broken.tolist() == [1, 0, 0, 0]
    assert np.trace(after.sums.confusion[0, 0, 1]) == after.sums.bins[0, 0, 1, :, 1].sum()
    assert np.trace(before.sums.confusion[0, 0, 1]) - np.trace(after.sums.confusion[0, 0, 1]) == (p.argmax() == y)
    assert after.sums.bins[0, 0, 1, 14, 0] == before.sums.bins[0, 0, 1, 14, 0] + (
        not (p.max() > 14 / 15 and p.argmax() != y)
    )


def test_confidences_at_the_edges_of_bins():
    # Two classes: confidences of 1 and of exactly 1/2; 15 / 2 lies inside bin 7.
    scores = np.array([[[[0.0, 0.0], [800.0, 0.0], [0.0, 800.0]]]])
    batch = Batch(np.zeros((1, 3), np.int32), np.ones((1, 3), bool), np.ones((1, 1, 3), bool), np.zeros((1, 3), int))
    sums = counted(scores, batch, np.zeros((1, 3), np.int32)).sums
    expected = np.zeros((15, 2), int)
    expected[7, 1], expected[14] = 1, 1
    np.testing.assert_array_equal(sums.bins[0, 0, 0], expected)
    np.testing.assert_array_equal(sums.confidence[0, 0, 0, [7, 14]], [0.5, 2.0])
    assert sums.brier[0, 0, 0] == 0.5 + 0 + 2


@pytest.mark.parametrize("names", [NAMES, tuple("abcdefg")])
def test_subsets_are_those_of_scikit_learn(names):
    scores, batch, part = draw(len(names))
    dense = counted(scores, batch, part).subsets
    # Two seeds of two clients; the second seed's clients are 2, without samples, and 3.
    found = {
        (seed, group_name(group, names)): values
        for seed, group, *values in pooled(sparse(dense.reshape(2, 2, *dense.shape[1:])), len(names))
    }
    wanted = {}
    for seed in range(2):
        lanes, slots = np.nonzero(batch.valid & (part == 1) & (np.arange(CLIENTS)[:, None] // 2 == seed))
        held = batch.observed[lanes, :, slots]
        y, answer = batch.y[lanes, slots], scores[lanes, 0, slots].argmax(axis=1)
        text = np.array(["+".join(np.array(names)[row]) if len(names) < 7 else f"{row.sum()} of 7" for row in held])
        for name in np.unique(text):
            truth, said = y[text == name], answer[text == name]
            f1 = oracle.f1_score(truth, said, average="macro", zero_division=0)
            wanted[seed, str(name)] = [len(truth), oracle.accuracy_score(truth, said), f1]
    assert found.keys() == wanted.keys() and len(found) > 6
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, rel=1e-12)
    sizes = [name.count("+") if len(names) < 7 else int(name[0]) for seed, name in found if seed == 0]
    assert sizes == sorted(sizes), "fewer modalities first"
