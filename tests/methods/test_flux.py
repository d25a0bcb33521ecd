"""Flux on single lanes: every stop-gradient, every ablation, hand numbers, and masks with anything behind them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Info, Mean, Server, Spec, find
from fedjax_mm.methods.flux import ABLATIONS, temperatures
from fedjax_mm.models import HeadSpec

Flux = find("flux")
SMALL = {"hidden": 5, "epsilon": 0.05}
SHARED = ("fusion", "head")
LOSSES = ("ce", "uni", "private")


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def nothing(tree):
    return all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def flux():
    return Flux(**SMALL)


@pytest.fixture
def seen(flux, bench):
    """Flux as it is, on a lane of five samples."""
    return bench.probe(flux, bench.lane(flux), *LOSSES)


# --- Eq. 1 to 6 against NumPy


def run(lane, name, x, j=None):
    """A multilayer perceptron of one hidden layer, in NumPy."""
    layers = lane.params["current"][name]["layers"]
    first, last = (jax.tree.map(lambda v: np.asarray(v if j is None else v[j]), layers[i]) for i in (0, 1))
    return np.maximum(x @ first["kernel"] + first["bias"], 0) @ last["kernel"] + last["bias"]


def numbers(lane, epsilon):
    """tau_f, L_uni, z_G and z_P of every valid sample, one after the other."""
    h, y, observed = (np.asarray(a) for a in (lane.features["current"], lane.batch.y, lane.batch.observed))
    attention, rows = lane.params["current"]["fusion"], []
    for b in np.flatnonzero(observed.any(axis=0)):
        held = np.flatnonzero(observed[:, b])
        out = [run(lane, "confidence", h[m, b], m) for m in held]
        tau = np.array([np.exp(o[-1] / 2) for o in out])
        uni = np.mean([-log_softmax(o[:-1] / t)[y[b]] for o, t in zip(out, tau, strict=True)])
        scores = np.array(
            [
                np.tanh(h[m, b] @ attention["hidden"]["kernel"] + attention["hidden"]["bias"])
                @ np.asarray(attention["score"]["kernel"])[:, 0]
                for m in held
            ]
        )
        shares = np.exp(scores) / np.exp(scores).sum()
        fused = sum(share * h[m, b] for share, m in zip(shares, held, strict=True))
        tau_f = (np.sum(1 / (tau**2 + epsilon)) + epsilon) ** -0.5
        rows.append((tau_f, uni, run(lane, "head", fused), run(lane, "private", fused)))
    return [np.array(column) for column in zip(*rows, strict=True)]


def test_the_losses_and_the_prediction_are_those_of_the_paper(bench, flux, seen):
    lane = bench.lane(flux)
    tau, uni, z_g, z_p = numbers(lane, flux.epsilon)
    y, n = np.asarray(lane.batch.y)[:4], 4

    def ce(logits):
        return -log_softmax(logits, axis=1)[np.arange(n), y].mean()

    terms = seen.terms
    np.testing.assert_allclose(seen.loss, ce(z_g) + uni.mean() + ce(z_p / tau[:, None]), rtol=1e-12)
    expected = {
        "ce": ce(z_g) * n,
        "uni": uni.sum(),
        "private": ce(z_p / tau[:, None]) * n,
        "tau": tau.sum(),
        "tau_of_1": tau[[1, 2]].sum(),
        "tau_of_2": tau[[0, 3]].sum(),
        "logit_ratio": np.linalg.norm(z_p, axis=1).sum(),
    }
    weights = dict.fromkeys(expected, n) | {"tau_of_1": 2, "tau_of_2": 2}
    weights["logit_ratio"] = np.linalg.norm(z_g, axis=1).sum()
    assert set(terms) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], (value, weights[name]), rtol=1e-12, err_msg=name)
    scores = {name: np.asarray(value)[:4] for name, value in seen.scores.items()}
    np.testing.assert_allclose(scores["sum"], z_g + z_p, rtol=1e-12)
    np.testing.assert_allclose(scores["generic"], z_g, rtol=1e-12)
    np.testing.assert_allclose(scores["private"], z_p, rtol=1e-12)
    np.testing.assert_allclose(scores["tempered"], z_g + z_p / tau[:, None], rtol=1e-12)


def test_temperatures_are_read_off_the_scores(bench, flux, seen):
    tau = numbers(bench.lane(flux), flux.epsilon)[0]
    scores = {name: np.asarray(value)[:4] for name, value in seen.scores.items()}
    np.testing.assert_allclose(temperatures(scores), tau, rtol=1e-9)
    # As single precision gives them; and nothing can be said of samples about which the private head says nothing.
    single = {name: value.astype(np.float32) for name, value in scores.items()}
    np.testing.assert_allclose(temperatures(single), tau, rtol=1e-5)
    silent = {**scores, "private": 0 * scores["private"], "tempered": scores["generic"]}
    assert np.isnan(temperatures(silent)).all()
    with pytest.raises(UsageError, match="with a private head; there is no 'generic'"):
        temperatures({"sum": scores["sum"]})


# --- stop-gradients


@pytest.fixture
def unstopped(flux, bench):
    """Flux without a stop: not even the temperature's, for there is no tempering."""
    flux = Flux(**SMALL, stop_fused=False, stop_unimodal=False, temper="none")
    return bench.probe(flux, bench.lane(flux), "uni", "private")


def test_each_loss_reaches_its_own_networks_and_no_other(seen):
    owners = {"ce": {"features", "fusion", "head"}, "uni": {"confidence"}, "private": {"private"}}
    for name, owned in owners.items():
        features, params = seen.slopes[name]
        reached = {"features": features, **params}
        assert set(reached) == {"features", "fusion", "head", "confidence", "private"}
        for part, slope in reached.items():
            assert nothing(slope) == (part not in owned), (name, part)


def test_without_its_stop_each_gradient_comes_through(seen, unstopped):
    beyond = {"uni": lambda slopes: [slopes[0]], "private": lambda slopes: [slopes[0], slopes[1]["fusion"]]}
    for name, parts in beyond.items():
        assert nothing(parts(seen.slopes[name]))
        for part in parts(unstopped.slopes[name]):
            assert largest(part) > 1e-3
    for name in ("ce", "uni"):
        np.testing.assert_allclose(unstopped.terms[name], seen.terms[name], rtol=1e-14)


def test_the_gradient_of_the_sum_is_each_networks_own_gradient(seen):
    features, params = seen.slopes["total"]
    np.testing.assert_allclose(features, seen.slopes["ce"][0] / 4, rtol=1e-12, atol=1e-15)
    for name, source in (("fusion", "ce"), ("head", "ce"), ("confidence", "uni"), ("private", "private")):
        for a, b in zip(jax.tree.leaves(params[name]), jax.tree.leaves(seen.slopes[source][1][name]), strict=True):
            np.testing.assert_allclose(a, b / 4, rtol=1e-12, atol=1e-15)


def test_the_temperature_scales_the_paths_it_is_placed_on(bench, flux, seen, unstopped):
    lane = bench.lane(flux)
    tau, _, z_g, z_p = numbers(lane, flux.epsilon)
    both = bench.probe(Flux(**SMALL, temper="both"), lane)
    for found, divisor in ((both, tau), (unstopped, np.ones(4))):
        for name, logits in (("ce", z_g), ("private", z_p)):
            scaled = log_softmax(logits / divisor[:, None], axis=1)[np.arange(4), np.asarray(lane.batch.y)[:4]]
            np.testing.assert_allclose(found.terms[name][0], -scaled.sum(), rtol=1e-12)
    # Wherever it is placed, what it divides teaches the confidence heads nothing.
    for a, b in zip(*(jax.tree.leaves(p.slopes["total"][1]["confidence"]) for p in (both, seen)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_gradients_equal_finite_differences(bench, unstopped):
    flux = Flux(**SMALL, stop_fused=False, stop_unimodal=False, temper="none")
    lane = bench.lane(flux)
    now = lane.features["current"], lane.params["current"]
    slopes, rng = unstopped.slopes["total"], np.random.default_rng(0)
    for _ in range(8):
        way = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), now)
        moved = [jax.tree.map(lambda x, d, s=s: x + s * 1e-6 * d, now, way) for s in (1, -1)]
        ends = [bench.probe(flux, bench.with_inputs(lane, *inputs), "uni", "private").loss for inputs in moved]
        slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(g * d), slopes, way)))
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


# --- masks


@pytest.mark.parametrize("garbage", [0.0, 1e6, np.nan])
def test_what_was_not_observed_changes_no_logit_no_loss_and_no_gradient(garbage, bench, flux, seen):
    lane = bench.lane(flux)
    soiled = jnp.where(bench.observed[..., None], lane.features["current"], garbage)
    again = bench.probe(flux, bench.with_inputs(lane, soiled, lane.params["current"]), *LOSSES)
    for a, b in zip(jax.tree.leaves(vars(seen)), jax.tree.leaves(vars(again)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(b).all()


def test_what_was_observed_does_count(bench, flux, seen):
    """The other way round: the comparison above can fail."""
    lane, others = bench.lane(flux), np.array([0, 1, 3, 4])
    other = bench.with_inputs(lane, lane.features["current"].at[1, 2].add(1.0), lane.params["current"])
    before, after = (np.asarray(p.scores["sum"]) for p in (seen, bench.probe(flux, other, *LOSSES)))
    np.testing.assert_array_equal(before[others], after[others])
    assert np.abs(before[2] - after[2]).max() > 1e-3


def test_a_batch_of_padding_has_no_loss_and_no_gradient(bench, flux):
    empty = bench.probe(flux, bench.lane(flux, observed=np.zeros_like(bench.observed)), *LOSSES)
    assert empty.loss == 0
    assert nothing((empty.terms, empty.slopes))


# --- ablations and options


def test_the_ablations_are_those_of_table_6(bench):
    assert len(ABLATIONS) == 5
    for name, options in ABLATIONS.items():
        flux = Flux(**SMALL, **options)
        lane = bench.lane(flux)
        terms = jax.eval_shape(lambda flux=flux, lane=lane: flux.loss(lane)[1])
        fused = options.get("confidence") == "fused"
        rows = lane.params["current"]["confidence"]["layers"][0]["kernel"].shape
        assert rows == ((4, 5) if fused else (2, 4, 5)), name
        assert ("private" in terms) == (name != "single_path") == ("private" in lane.params["current"])


def test_one_path_is_predicted_by_the_shared_head_alone(bench):
    flux = Flux(**SMALL, **ABLATIONS["single_path"])
    lane = bench.lane(flux)
    alone = bench.probe(flux, lane, "uni")
    assert list(alone.scores) == ["sum"]
    np.testing.assert_allclose(alone.scores["sum"][:4], numbers(bench.lane(Flux(**SMALL)), 1)[2], rtol=1e-12)
    # Its temperature divides z_G: exp(nu / 2) of the head on h_f.
    out = run(lane, "confidence", np.asarray(lane.fuse())[:4])
    scaled = np.asarray(alone.scores["sum"])[:4] / np.exp(out[:, -1:] / 2)
    expected = -log_softmax(scaled, axis=1)[np.arange(4), np.asarray(lane.batch.y)[:4]].sum()
    np.testing.assert_allclose(alone.terms["ce"][0], expected, rtol=1e-12)
    features, params = alone.slopes["uni"]
    assert nothing((features, params["fusion"], params["head"]))


SPEC = Spec(("a", "b"), 3, 2, 4, "attention", "shared", HeadSpec(4, (4,), 3), 5, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"hidden": 0}, "hidden is 0"),
        ({"confidence": "modalities"}, "did you mean modality"),
        ({"temper": "sharde"}, "did you mean shared"),
        ({"private": False}, "temper=shared or none"),
        ({"blocks": "part"}, "did you mean partial"),
    ],
)
def test_an_option_out_of_range_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Flux(**options).check(SPEC)


@pytest.mark.parametrize("hidden", [512, 128])
def test_the_heads_are_of_the_papers_shapes(hidden):
    modules = Flux(hidden=hidden).layout(SPEC).modules
    assert modules["confidence"].network == HeadSpec(4, (hidden,), 4)
    assert modules["confidence"].per_modality
    assert modules["private"].network == modules["head"].network == SPEC.head
    shares = {name: module.share for name, module in modules.items()}
    assert shares == {"encoders": "mean", "fusion": "mean", "head": "mean", "confidence": "mean", "private": "private"}


# --- diagnostics


def test_gradient_norms_are_those_of_the_step_and_change_nothing(bench, flux, seen):
    more = bench.probe(Flux(**SMALL, diagnostics=True), bench.lane(flux))
    np.testing.assert_allclose(more.loss, seen.loss, rtol=1e-14)
    for name in SHARED:
        norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(seen.slopes["total"][1][name])))
        np.testing.assert_allclose(more.terms[f"gradient_{name}"], (norm, 1), rtol=1e-12)
    for a, b in zip(*(jax.tree.leaves(p.slopes["total"]) for p in (more, seen)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("moves", "expected"), [((1.0, 1.0), 0.0), ((0.0, 2.0), 1.0), ((2.0, -1.0), 3.0)])
def test_drift_by_hand(moves, expected):
    """Two clients of equal weight, one number each: moves 0 and 2 have the mean 1, from which both are 1 away."""
    flux = Flux(**SMALL, diagnostics=True, confidence="fused")
    info = Info(*map(jnp.asarray, (0, 0, [True], [5], 5, [5])))
    uploads = [
        flux.upload(
            {"head": jnp.zeros(())}, {"head": jnp.asarray(move)}, {"moved": jnp.zeros(1), "batches": 3.0}, info, {}
        )
        for move in moves
    ]
    extra = {
        name: (np.average([u.mean[name][0] for u in uploads], weights=[u.mean[name][1] for u in uploads]), 10)
        for name in uploads[0].mean
    }
    old = Server({"head": jnp.zeros(())}, {})
    _, terms = flux.server(old, Mean({"head": jnp.mean(jnp.asarray(moves))}, extra), {}, jnp.ones(2, bool), None)
    np.testing.assert_allclose(terms["drift"], (expected, 1), rtol=1e-12)


def test_a_model_that_did_not_move_has_no_drift_and_without_diagnostics_nothing_is_sent():
    flux = Flux(**SMALL, diagnostics=True)
    still = Server({"head": jnp.ones(2)}, {})
    extra = {"head": (jnp.zeros(()), jnp.ones(()))}
    _, terms = flux.server(still, Mean(still.modules, extra), {}, jnp.ones(2, bool), jax.random.key(0))
    assert terms["drift"] == (0, 0)
    plain = dataclasses.replace(flux, diagnostics=False)
    assert plain.upload({}, {}, {}, None, {}).mean == {}
    assert plain.server(still, Mean(still.modules, {}), {}, jnp.ones(2, bool), jax.random.key(0))[1] == {}
