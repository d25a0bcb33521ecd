"""FedProx, MOON, FedPer, FedRoD and Flux beside FedAvg and Local: where they are the same, and where they part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Spec, find
from fedjax_mm.models import HeadSpec

OPTIONS = {"fusion": "attention", "widths": ((),), "rounds": 2}
BASE = ("encoders", "fusion")
MODEL = (*BASE, "head")
SIZES = [8, 13, 19]
SMALL = {"flux": {"hidden": 5}}


@pytest.fixture(scope="module")
def trial(laboratory, three):
    """Runs of methods on three clients with both modalities; each method is compiled once."""

    def run(name, tables=None, **numbers):
        return laboratory.run(find(name)(**SMALL.get(name, {}), **numbers), three, tables=tables, **OPTIONS)

    return run


@pytest.fixture(scope="module")
def fedavg(trial):
    return trial("fedavg")


@pytest.fixture(scope="module")
def local(trial):
    return trial("local")


@pytest.fixture(scope="module")
def flux(trial):
    return trial("flux")


def parts(run, round_, modules=MODEL, clients=range(3)):
    return [run.of_client(module, client, round_) for client in clients for module in modules]


def assert_same_model(run, fedavg, close, rounds=range(3)):
    for round_ in rounds:
        close(parts(run, round_), parts(fedavg, round_))


def assert_same_predictions(run, fedavg, predictor):
    position = run.engine.predictors.index(predictor)
    for ours, theirs in zip(run.blocks, fedavg.blocks, strict=True):
        np.testing.assert_array_equal(ours.evaluation.confusion[position], theirs.evaluation.confusion[0])
        np.testing.assert_allclose(ours.evaluation.loss[position], theirs.evaluation.loss[0], rtol=1e-12)


# --- FedProx


def test_fedprox_without_its_weight_is_fedavg(trial, fedavg, close):
    run = trial("fedprox", mu=0.0)
    assert_same_model(run, fedavg, close)
    assert_same_predictions(run, fedavg, "head")
    np.testing.assert_array_equal(run.term("bytes_up"), fedavg.term("bytes_up"))


def test_a_larger_weight_holds_clients_nearer_to_what_they_received(trial, same):
    loose, tight = trial("fedprox", mu=0.0), trial("fedprox", mu=2.0)
    assert (tight.term("proximal") < 0.9 * loose.term("proximal")).all()
    for module in MODEL:
        assert not same(tight.of_client(module, 0, 1), loose.of_client(module, 0, 1))


def test_the_proximal_gradient_is_mu_times_the_distance_and_0_at_the_start(bench):
    fedprox, plain = find("fedprox")(mu=0.3), find("fedavg")()
    lane = bench.lane(fedprox)
    there = bench.with_inputs(lane, lane.features["current"], lane.params["download"])
    for here in (lane, there):
        pulled, free = (bench.probe(m, here).slopes["total"][1] for m in (fedprox, plain))
        for a, b, w, r in zip(
            *map(jax.tree.leaves, (pulled, free, here.params["current"], lane.params["download"])), strict=True
        ):
            np.testing.assert_allclose(a - b, 0.3 * (w - r), rtol=1e-10, atol=1e-14)
    # The encoders' part comes as a number: half their squared distances.
    loss, proximal = bench.probe(fedprox, there).loss, jnp.sum(lane.encoder["proximal"]) / 2
    np.testing.assert_allclose(loss, bench.probe(plain, there).loss + 0.3 * proximal, rtol=1e-12)


# --- MOON


def test_moon_without_its_weight_is_fedavg(trial, fedavg, close):
    run = trial("moon", mu=0.0)
    assert_same_model(run, fedavg, close)
    assert_same_predictions(run, fedavg, "head")


def test_in_its_first_round_moon_is_fedavg_and_its_contrast_log_2(trial, fedavg, close, same):
    run = trial("moon", mu=1.0)
    assert_same_model(run, fedavg, close, rounds=(0, 1))
    np.testing.assert_allclose(run.term("contrast")[0], np.log(2), rtol=1e-12)
    assert run.term("contrast")[1] != run.term("contrast")[0]
    assert not same(run.of_client("fusion", 0, 2), fedavg.of_client("fusion", 0, 2))


def test_moons_loss_is_the_contrast_of_fused_features(bench):
    moon, plain = find("moon")(mu=3.0, temperature=0.7), find("fedavg")()
    lane = bench.lane(moon)
    z, received, stored = (np.asarray(lane.fuse(view))[:4] for view in ("current", "download", "previous"))

    def cosine(a, b):
        return np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    contrast = np.log1p(np.exp((cosine(z, stored) - cosine(z, received)) / 0.7)).mean()
    seen = bench.probe(moon, lane)
    np.testing.assert_allclose(seen.loss, bench.probe(plain, lane).loss + 3 * contrast, rtol=1e-12)
    np.testing.assert_allclose(seen.terms["contrast"], (4 * contrast, 4), rtol=1e-12)


# --- FedPer


def test_after_a_round_fedper_has_fedavgs_base_and_locals_heads(trial, fedavg, local, close):
    run = trial("fedper")
    close(parts(run, 1, BASE), parts(fedavg, 1, BASE))
    close(parts(run, 1, ("head",)), parts(local, 1, ("head",)))


def test_fedper_sends_its_base_alone(trial):
    run = trial("fedper")
    numbers = sum(leaf.size for leaf in jax.tree.leaves(parts(run, 0, BASE, [0])))
    np.testing.assert_array_equal(run.term("bytes_up"), 8 * numbers)
    np.testing.assert_array_equal(run.term("bytes_down"), 8 * numbers)


# --- FedRoD


def test_with_equal_counts_fedrods_generic_model_is_fedavg(trial, fedavg, close):
    def equal(tables):
        return tables._replace(info=tables.info._replace(counts=jnp.full_like(tables.info.counts, 5)))

    run = trial("fedrod", equal)
    assert_same_model(run, fedavg, close)
    assert_same_predictions(run, fedavg, "generic")


def test_fedrods_private_head_starts_as_a_copy_and_stays_with_its_client(trial, same):
    run = trial("fedrod")
    for client in range(3):
        assert same(run.of_client("private", client, 0), run.of_client("head", client, 0))
    ends = [run.of_client("private", client) for client in range(3)]
    assert not any(same(ends[k], ends[j]) for k in range(3) for j in range(k))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(parts(run, 0, MODEL, [0])))
    np.testing.assert_array_equal(run.term("bytes_up"), 8 * numbers)


def test_fedrods_private_loss_teaches_the_private_head_alone(bench):
    fedrod = find("fedrod")()
    lane = bench.lane(fedrod)
    seen = bench.probe(fedrod, lane, "ce", "balanced")
    for name, owned in {"ce": {"private"}, "balanced": {"features", "fusion", "head"}}.items():
        features, params = seen.slopes[name]
        for part, slope in {"features": features, **params}.items():
            assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(slope)) == (part not in owned), part
    z, y, n = lane.fuse(), np.asarray(lane.batch.y)[:4], np.arange(4)
    generic, own = (np.asarray(lane.apply(name, z))[:4] for name in ("head", "private"))

    def nats(scores):
        return -np.log((np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))[n, y])

    held = np.asarray(lane.info.counts)
    weighted = np.exp(generic) * held
    np.testing.assert_allclose(seen.terms["ce"][0], nats(generic + own).sum(), rtol=1e-12)
    np.testing.assert_allclose(
        seen.terms["balanced"][0], -np.log(weighted[n, y] / weighted.sum(axis=1)).sum(), rtol=1e-12
    )
    np.testing.assert_allclose(seen.scores["sum"][:4], generic + own, rtol=1e-12)
    np.testing.assert_allclose(seen.scores["generic"][:4], generic, rtol=1e-12)


# --- Flux


def test_fluxs_shared_model_is_fedavg(flux, fedavg, close):
    """Neither temperatures nor private heads reach it."""
    assert_same_model(flux, fedavg, close)
    assert_same_predictions(flux, fedavg, "generic")
    close(flux.term("ce"), fedavg.term("ce"))


def test_fluxs_private_heads_start_on_their_own_and_stay_with_their_clients(flux, same):
    assert not same(flux.of_client("private", 0, 0), flux.of_client("head", 0, 0))
    ends = [flux.of_client("private", client) for client in range(3)]
    assert not any(same(ends[k], ends[j]) for k in range(3) for j in range(k))
    for client in (1, 2):
        assert same(flux.of_client("confidence", client), flux.of_client("confidence", 0))


def test_flux_sends_encoders_confidence_heads_fusion_and_shared_head(flux):
    numbers = sum(leaf.size for leaf in jax.tree.leaves(parts(flux, 0, (*MODEL, "confidence"), [0])))
    np.testing.assert_array_equal(flux.term("bytes_up"), 8 * numbers)
    np.testing.assert_array_equal(flux.term("bytes_down"), 8 * numbers)
    heads = flux.of_client("confidence", 0)
    assert [leaf.shape for leaf in jax.tree.leaves(heads)] == [(5,), (4, 5), (4,), (5, 4)] * 2


def hidden(client=None, alone=None):
    """Tables in which a client never sees b, and, with `alone`, only that client has samples."""

    def swap(tables):
        info, observed = tables.info, tables.observed
        if client is not None:
            observed = observed.at[:, tables.train[client], 1].set(False)
            info = info._replace(n_m=info.n_m.at[client, 1].set(0))
        if alone is not None:
            mine = jnp.arange(3) == alone
            info = info._replace(n=info.n * mine, n_m=info.n_m * mine[:, None])
        return tables._replace(info=info, observed=observed)

    return swap


def test_what_is_per_modality_is_averaged_by_the_samples_that_have_it(trial, close):
    """Client 0 holds b and never sees it: E_b and C_b are the others', F and G everyone's."""
    together = trial("flux", hidden(0))
    alone = [trial("flux", hidden(0, k)) for k in range(3)]
    for module in (*MODEL, "confidence"):
        ends = [run.of_client(module, k, 1) for k, run in enumerate(alone)]
        weights = [SIZES, [0, *SIZES[1:]]] if module in ("encoders", "confidence") else [SIZES]
        expected = [
            jax.tree.map(lambda *leaves, w=w: np.average(leaves, axis=0, weights=w), *networks)
            for w, networks in zip(weights, zip(*ends, strict=True), strict=True)
        ]
        close(together.of_client(module, 0, 1), expected)


# --- options


SPEC = Spec(("a", "b"), 3, 2, 4, "attention", "shared", HeadSpec(4, (4,), 3), 5, 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {"blocks": "all"}, "fedavg.blocks 'all'; valid: partial, naive"),
        ("fedper", {"blocks": "naiv"}, "did you mean naive"),
        ("fedrod", {"blocks": ""}, "fedrod.blocks"),
        ("fedprox", {"mu": -0.1}, "mu is -0.1"),
        ("fedprox", {"mu": float("inf")}, "mu is inf"),
        ("moon", {"mu": -1.0}, "mu is -1"),
        ("moon", {"temperature": 0.0}, "temperature is 0"),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        find(name)(**options).check(SPEC)


@pytest.mark.parametrize(
    ("name", "kind", "primary"),
    [
        ("fedprox", "global", "head"),
        ("moon", "global", "head"),
        ("fedper", "personal", "head"),
        ("fedrod", "personal", "sum"),
        ("flux", "personal", "sum"),
    ],
)
def test_how_each_is_selected(name, kind, primary):
    assert (find(name).kind, find(name).primary, find(name).averages_encoders) == (kind, primary, True)
