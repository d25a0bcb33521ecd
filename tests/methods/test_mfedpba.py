"""MFedPBA: Local without its terms, the server step against NumPy, and gradients only where they belong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Info, Lane, Mean, Rows, Server, Spec, find
from fedjax_mm.methods import mfedpba as module
from fedjax_mm.methods.method import Batch
from fedjax_mm.methods.mfedpba import Knowledge, Prototypes
from fedjax_mm.models.fusion import fuse_sum
from fedjax_mm.models.heads import HeadSpec
from fedjax_mm.objectives.coupling import Sinkhorn

MFedPBA, Local = find("mfedpba"), find("local")
K, M, C, D = 3, 2, 4, 6
SERVER_TERMS = ("reconstruction", "contrast", "alignment")


@pytest.fixture(scope="module")
def split(laboratory):
    """Three clients; the second holds the first modality only, and only the last holds the third class."""
    first, second, third = (np.flatnonzero(laboratory.data.labels[:48] == c) for c in range(3))
    return laboratory.federation(
        [[*first[:5], *second[:3]], [*first[5:9], *second[3:12]], [*first[9:13], *second[12:13], *third[:14]]],
        [[True, True], [True, False], [True, True]],
    )


@pytest.fixture(scope="module")
def trial(laboratory, split):
    return laboratory.run(MFedPBA(lambda_fea=0.5), split)


# --- rounds


def test_without_its_two_weights_it_is_local(laboratory, split, close):
    local, ours = laboratory.run(Local(), split), laboratory.run(MFedPBA(lambda_fea=0.0, lambda_logit=0.0), split)
    for round_ in range(4):
        for client in range(3):
            for name in ("encoders", "head"):
                close(ours.of_client(name, client, round_), local.of_client(name, client, round_))
    for mine, theirs in zip(ours.blocks, local.blocks, strict=True):
        np.testing.assert_array_equal(mine.evaluation.confusion, theirs.evaluation.confusion)


def test_the_first_round_is_cross_entropy_alone_and_the_second_is_not(laboratory, split, trial, same):
    local = laboratory.run(Local(), split)
    for name in ("encoders", "head"):
        assert same(trial.of_client(name, 0, 1), local.of_client(name, 0, 1))
        assert not same(trial.of_client(name, 0, 2), local.of_client(name, 0, 2))
    for name in ("fea", "logit"):
        assert trial.term(name)[0] == 0
        assert (trial.term(name)[1:] > 0).all()
    assert (trial.term("gw_converged") == 1).all()


def features(trial, client, rows, round_):
    """Per held modality the feature, and the fused logits, in NumPy, from the parameters of a client."""
    tables, found = trial.engine.world.tables, []
    for encoder, name in zip(trial.of_client("encoders", client, round_), ("a", "b"), strict=False):
        x = (np.asarray(tables.inputs[name])[rows].astype(float) - tables.shift[name][0]) * tables.scale[name][0]
        for layer in (encoder["hidden"][0], encoder["hidden"][1]):
            x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
        found.append(x @ encoder["last"]["kernel"] + encoder["last"]["bias"])
    first, last = trial.of_client("head", client, round_)[0]["layers"].values()
    hidden = np.maximum(sum(found) @ first["kernel"] + first["bias"], 0)
    return found, hidden @ last["kernel"] + last["bias"]


def test_the_global_logits_are_the_clients_weighted_by_their_confidence(trial, split):
    labels = split.data.labels
    for c in range(3):
        means = []
        for client in range(3):
            rows = split.train.of(client)
            if (labels[rows] == c).any():
                means.append(features(trial, client, rows[labels[rows] == c], 2)[1].mean(axis=0))
        p = softmax(means, axis=1)
        inverse = 1 / (-(p * np.log(p)).sum(axis=1) + 1e-8)
        expected = inverse @ np.array(means) / inverse.sum()
        np.testing.assert_allclose(trial.states[2].server.prototypes.logits.value[0, c], expected, rtol=1e-9)


def test_a_modality_with_one_holder_gets_what_the_autoencoder_makes_of_its_prototypes(trial, split):
    labels, rows = split.data.labels, split.train.of(2)
    server = jax.tree.map(lambda leaf: np.asarray(leaf)[0], trial.states[2].server)
    mine = features(trial, 2, rows[labels[rows] == 2], 2)[0][1].mean(axis=0)
    encoders, decoder = server.autoencoder["encoders"], server.autoencoder["decoder"]
    hidden = np.maximum(mine @ encoders["kernel"][1] + encoders["bias"][1], 0)
    expected = hidden @ decoder["kernel"] + decoder["bias"]
    np.testing.assert_allclose(server.prototypes.features.value[1, 2], expected, rtol=1e-9)


def test_bytes_are_those_of_the_rows_present_and_of_the_masks(trial):
    # Prototypes of (modality, class) pairs held, logit prototypes of classes held, 8 bytes a number; two masks.
    pairs, classes = 2 * 2 + 1 * 2 + 2 * 3, 2 + 2 + 3
    np.testing.assert_allclose(trial.term("bytes_up"), (pairs * 4 + classes * 3) * 8 / 3 + 2, rtol=1e-12)
    # A client is sent the feature prototypes of its own modalities: 2, 1 and 2 of them.
    later = (5 * 3 * 4 + 3 * 3 * 3) * 8 / 3 + 2
    np.testing.assert_allclose(trial.term("bytes_down"), [2, later, later], rtol=1e-12)


def test_executors_agree(laboratory, split, trial):
    other = laboratory.run(MFedPBA(lambda_fea=0.5), split, executor="map")
    for a, b in zip(jax.tree.leaves(other.states[3].server), jax.tree.leaves(trial.states[3].server), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    for client in range(3):
        for a, b in zip(
            jax.tree.leaves(other.of_client("encoders", client)),
            jax.tree.leaves(trial.of_client("encoders", client)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# --- one client


def lane(**changes):
    """Six samples, the last one padding; the client holds the first of two modalities, one sample lacks it."""
    rng = np.random.default_rng(1)
    observed = np.array([[1, 1, 1, 1, 1, 0], [0] * 6], bool)
    values = {
        "features": {"current": jnp.asarray(np.where(observed[..., None], rng.normal(size=(M, 6, D)), 0))},
        "params": {"current": {"head": jnp.asarray(rng.normal(size=(D, C)))}},
        "batch": Batch(
            jnp.asarray([0, 0, 1, 2, 2, 0]), jnp.arange(6) < 5, jnp.asarray(observed), jnp.arange(6, dtype=jnp.int32)
        ),
        "info": Info(0, 0, jnp.asarray([True, False]), jnp.ones(C, jnp.int32), jnp.int32(5), jnp.asarray([5, 0])),
        "state": {},
        "download": Prototypes(
            Rows(jnp.asarray(rng.normal(size=(M, C, D))), jnp.asarray([[1, 1, 0, 1], [1, 1, 1, 1]], bool)),
            Rows(jnp.asarray(rng.normal(size=(C, C))), jnp.asarray([1, 0, 1, 1], bool)),
        ),
        "key": jax.random.key(0),
        "round": jnp.int32(2),
        "networks": {"fusion": fuse_sum, "head": lambda params, z: z @ params},
    }
    return Lane(**values | changes)


def numpy_terms(lane):
    z, head, y = (np.asarray(x) for x in (lane.features["current"][0], lane.params["current"]["head"], lane.batch.y))
    logits, (features, target) = z[:5] @ head, lane.download
    ce = np.mean(logsumexp(logits, axis=1) - logits[np.arange(5), y[:5]])
    # Classes 0, 1, 2 are in the batch; global features exist for 0, 1, 3, global logits for 0, 2, 3.
    fea = sum(np.sum((features.value[0, c] - z[:5][y[:5] == c].mean(axis=0)) ** 2) for c in (0, 1)) / C
    kl = 0
    for c in (0, 2):
        p, q = softmax(target.value[c]), softmax(logits[y[:5] == c].mean(axis=0))
        kl += np.sum(p * np.log(p / q)) / C
    return {"ce": ce, "fea": fea, "logit": kl}


def test_the_local_loss_by_hand():
    loss, terms = MFedPBA(lambda_fea=0.3, lambda_logit=2.0).loss(lane())
    expected = numpy_terms(lane())
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name][0] / terms[name][1], value, rtol=1e-12)
    np.testing.assert_allclose(loss, expected["ce"] + 0.3 * expected["fea"] + 2 * expected["logit"], rtol=1e-12)


def gradient_of_term(name):
    """Gradient of one term of the local loss with respect to features, head and what was received."""

    def term(features, head, values):
        received = lane().download
        received = Prototypes(Rows(values[0], received.features.present), Rows(values[1], received.logits.present))
        of = lane(features={"current": features}, params={"current": {"head": head}}, download=received)
        total, weight = MFedPBA().loss(of)[1][name]
        return total / weight

    received = lane().download
    return jax.grad(term, argnums=(0, 1, 2))(
        lane().features["current"], lane().params["current"]["head"], (received.features.value, received.logits.value)
    )


def test_each_local_term_reaches_what_it_should_and_nothing_else():
    y = np.asarray(lane().batch.y)
    for name, classes, reaches_head in (("ce", (0, 1, 2), True), ("fea", (0, 1), False), ("logit", (0, 2), True)):
        features, head, received = gradient_of_term(name)
        moved = np.any(np.asarray(features[0]) != 0, axis=1)
        np.testing.assert_array_equal(moved, np.isin(y, classes) & (np.arange(6) < 5), err_msg=name)
        assert bool(np.any(np.asarray(head) != 0)) == reaches_head
        for leaf in jax.tree.leaves(received):
            assert not np.any(leaf)


@pytest.mark.parametrize(("switch", "term"), [("feature", "fea"), ("logit", "logit")])
def test_a_local_term_that_is_off_is_neither_computed_nor_reported(switch, term):
    off, terms = MFedPBA(**{switch: False}).loss(lane())
    zero, _ = MFedPBA(**{{"fea": "lambda_fea", "logit": "lambda_logit"}[term]: 0.0}).loss(lane())
    assert term not in terms
    np.testing.assert_allclose(off, zero, rtol=1e-14)


# --- the server


def stack(seed=0):
    """Uploads of three members; the last class is held by the first only, the second lacks modality 1."""
    rng = np.random.default_rng(seed)
    held = np.ones((K, M, C), bool)
    held[1:, :, 3] = False
    held[1, 1] = False
    features = np.where(held[..., None], rng.normal(size=(K, M, C, D)), np.nan)
    logits = np.where(held[:, 0, :, None], 2 * rng.normal(size=(K, C, C)), np.nan)
    return Prototypes(
        Rows(jnp.asarray(features), jnp.asarray(held)), Rows(jnp.asarray(logits), jnp.asarray(held[:, 0]))
    )


def knowledge(method, present=False):
    """A fresh server with a decoder bias, so that no projection is 0, where the cosine jumps."""
    spec = Spec(("a", "b"), C, K, D, "sum", "pool", HeadSpec(D, (), C), 3, 2)
    fresh = method.init_server(jax.random.key(3), spec)
    fresh.autoencoder["decoder"]["bias"] = jnp.linspace(0.2, 0.4, D)
    return Knowledge(
        fresh.autoencoder, Prototypes(*(Rows(rows.value - 7.5, rows.present | present) for rows in fresh.prototypes))
    )


@jax.jit
def step(method, state, uploads, mask):
    """One server step; compiled once for each structure of a method, whatever its numbers are."""
    return method.server(Server({}, state), Mean({}, {}), uploads, mask, jax.random.key(0))


def serve(method, uploads=None, mask=(True,) * K, present=False):
    uploads = stack() if uploads is None else uploads
    (_, state), terms = step(method, knowledge(method, present), uploads, jnp.asarray(mask))
    return state, terms


def numpy_loss(params, uploads, temperature=0.5):
    """L_rec + L_con of Eq. 7-10 by loops, for members that are all heard."""
    held = np.asarray(uploads.features.present)
    e = np.where(held[..., None], np.asarray(uploads.features.value), 0)
    encoders, decoder = params["encoders"], params["decoder"]
    rec, sums = 0.0, np.zeros((M, C, D))
    for k, m, c in np.argwhere(held):
        hidden = np.maximum(e[k, m, c] @ encoders["kernel"][m] + encoders["bias"][m], 0)
        p = hidden @ decoder["kernel"] + decoder["bias"]
        rec += np.sum((p - e[k, m, c]) ** 2) / K
        sums[m, c] += p / held[:, m, c].sum()
    unit = sums / np.linalg.norm(sums, axis=-1, keepdims=True)
    con = 0.0
    for m, other in ((0, 1), (1, 0)):
        for c in range(C):
            scores = unit[m, c] @ unit[other].T / temperature
            con -= scores[c] - logsumexp(scores)
    return rec, con


def test_one_server_step_is_a_clipped_step_down_the_losses_as_written():
    method = MFedPBA(alignment=False, server_steps=1, server_lr=0.1, server_clip=0.5)
    before = jax.tree.map(np.asarray, knowledge(method).autoencoder)
    after, terms = serve(method)
    rec, con = numpy_loss(before, stack())
    np.testing.assert_allclose([terms["rec"][0], terms["con"][0]], [rec, con], rtol=1e-12)
    leaves, tree = jax.tree.flatten(before)
    gradients = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, gradient in zip(leaves, gradients, strict=True):
        for place in np.ndindex(leaf.shape):
            kept, values = leaf[place], []
            for shift in (1e-5, -1e-5):
                moved = [np.array(x) for x in leaves]
                moved[next(i for i, x in enumerate(leaves) if x is leaf)][place] = kept + shift
                values.append(sum(numpy_loss(jax.tree.unflatten(tree, moved), stack())))
            gradient[place] = (values[0] - values[1]) / 2e-5
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
    assert norm > 0.5
    np.testing.assert_allclose(terms["server_gradient"][0], norm, rtol=1e-6)
    for old, new, g in zip(leaves, jax.tree.leaves(after.autoencoder), gradients, strict=True):
        np.testing.assert_allclose(new, old - 0.1 * g * 0.5 / norm, atol=1e-7)


def test_more_steps_lower_the_loss_and_prototypes_are_recomputed_after_the_last():
    method = MFedPBA(server_steps=40)
    state, _ = serve(method)
    totals = [serve(dataclasses.replace(method, server_steps=steps))[1] for steps in (1, 40)]
    first, last = (sum(float(t[name][0] / t[name][1]) for name in ("rec", "con", "align")) for t in totals)
    assert last < first
    again, _ = module._Objective(
        method,
        Rows(jnp.nan_to_num(stack().features.value), stack().features.present),
        K,
        knowledge(method).prototypes.features,
        state.prototypes.logits,
    ).aggregate(state.autoencoder)[1]
    np.testing.assert_allclose(state.prototypes.features.value, again, rtol=1e-12)


def test_two_steps_are_one_step_twice(close):
    # Nothing is carried from step to step but the parameters: each solves for its couplings from both starts.
    one, uploads, mask = MFedPBA(server_steps=1, server_lr=0.1), stack(4), jnp.ones(K, bool)
    (_, state), _ = step(one, knowledge(one), uploads, mask)
    (_, state), _ = step(one, state, uploads, mask)
    (_, together), _ = step(MFedPBA(server_steps=2, server_lr=0.1), knowledge(one), uploads, mask)
    close(together, state)


def changes(method, uploads=None, **options):
    """Which parameters the server's steps change: name -> whether, encoders by modality."""
    before, (after, _) = knowledge(method).autoencoder, serve(method, uploads, **options)
    moved = jax.tree.map(lambda a, b: np.asarray(a != b), before, after.autoencoder)
    by_modality = moved["encoders"]["kernel"].any(axis=(1, 2)) | moved["encoders"]["bias"].any(axis=1)
    return [*by_modality.tolist(), bool(moved["decoder"]["kernel"].any())]


@pytest.mark.parametrize("term", SERVER_TERMS)
def test_each_server_term_alone_moves_the_encoders_of_modalities_held_and_the_decoder(term):
    method = MFedPBA(**{name: name == term for name in SERVER_TERMS})
    assert changes(method) == [True, True, True]
    features = stack().features
    alone = features.present & jnp.asarray([True, False])[:, None]
    only = stack()._replace(features=Rows(features.value, alone))
    # Contrast needs two modalities; the others go on with the one that is held.
    assert changes(method, only) == [term != "contrast", False, term != "contrast"]


def test_without_any_server_term_nothing_is_learnt():
    assert changes(MFedPBA(**dict.fromkeys(SERVER_TERMS, False))) == [False] * 3


def test_one_class_has_no_geometry_to_align():
    held = jnp.arange(C) == 1
    uploads = Prototypes(*(Rows(rows.value, rows.present & held) for rows in stack()))
    method = MFedPBA(reconstruction=False, contrast=False)
    assert changes(method, uploads) == [False] * 3
    terms = serve(method, uploads)[1]
    assert terms["align"][0] == 0
    assert terms["gw_converged"] == (0, 0)


def test_a_class_nobody_holds_keeps_prototypes_and_validity():
    held = jnp.arange(C) != 2
    uploads = Prototypes(*(Rows(rows.value, rows.present & held) for rows in stack()))
    for present in (False, True):
        state, _ = serve(MFedPBA(), uploads, present=present)
        for rows, value in (
            (state.prototypes.features, state.prototypes.features.value[:, 2]),
            (state.prototypes.logits, state.prototypes.logits.value[2]),
        ):
            np.testing.assert_array_equal(value, -7.5)
            np.testing.assert_array_equal(rows.present[..., 2], present)
            assert np.delete(np.asarray(rows.present), 2, axis=-1).all()


def test_a_member_that_was_not_heard_counts_for_nothing():
    uploads = stack()
    without = Prototypes(*(Rows(rows.value[:2], rows.present[:2]) for rows in uploads))
    poisoned = Prototypes(*(Rows(rows.value.at[2].set(jnp.nan), rows.present) for rows in uploads))
    got, expected = serve(MFedPBA(), poisoned, (True, True, False))[0], serve(MFedPBA(), without, (True, True))[0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_with_nobody_heard_the_server_keeps_what_it_has():
    state, _ = serve(MFedPBA(), mask=(False,) * K, present=True)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(knowledge(MFedPBA(), True)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_averaging_takes_every_holder_for_one():
    state, terms = serve(MFedPBA(entropy_weights=False))
    expected = np.nanmean(np.asarray(stack().logits.value), axis=0)
    np.testing.assert_allclose(state.prototypes.logits.value, expected, rtol=1e-12)
    # A third each for three classes, all of it for the class with one holder.
    np.testing.assert_allclose(terms["largest_logit_weight"][0], 3 / 3 + 1, rtol=1e-12)


def test_averaging_the_losses_divides_each_by_its_terms(monkeypatch):
    summed, averaged = (
        serve(MFedPBA(server_steps=1, server_lr=1e-3, server_clip=None, server_reduce=r, **on))[0]
        for on in ({"contrast": False, "alignment": False},)
        for r in ("sum", "mean")
    )
    before = knowledge(MFedPBA()).autoencoder
    entries = int(stack().features.present.sum()) / K
    for a, b, old in zip(
        *(jax.tree.leaves(x) for x in (summed.autoencoder, averaged.autoencoder, before)), strict=True
    ):
        np.testing.assert_allclose((b - old) * entries, a - old, rtol=1e-6, atol=1e-12)


def test_couplings_that_did_not_converge_are_counted(monkeypatch):
    monkeypatch.setattr(module, "make_solver", lambda name: Sinkhorn(outer=1, inner=1, tolerance=1e-12))
    terms = serve(MFedPBA(server_steps=3))[1]
    assert terms["gw_converged"][1] == 3 * M
    assert terms["gw_converged"][0] < 3 * M


def test_both_solvers_lead_to_the_same_prototypes():
    ours, ott = (serve(MFedPBA(solver=name))[0].prototypes.features.value for name in ("sinkhorn", "ott"))
    np.testing.assert_allclose(ours, ott, atol=1e-4 * float(jnp.max(jnp.abs(ours))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_fea": -1.0}, "lambda_fea is -1"),
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"server_clip": 0.0}, "server_clip is 0"),
        ({"server_steps": -1}, "server_steps is -1"),
        ({"solver": "otter"}, "ott"),
        ({"cost_scale": "median"}, "mean"),
    ],
)
def test_an_option_out_of_range_is_refused(laboratory, split, options, message):
    with pytest.raises(UsageError, match=message):
        laboratory.build(MFedPBA(**options), split)


def test_its_numbers_are_arguments_of_the_program_and_its_switches_structure():
    assert len(jax.tree.leaves(MFedPBA())) == 6
    assert jax.tree.structure(MFedPBA(epsilon=0.1, server_clip=1.0)) == jax.tree.structure(MFedPBA())
    assert jax.tree.structure(MFedPBA(server_clip=None)) != jax.tree.structure(MFedPBA())
