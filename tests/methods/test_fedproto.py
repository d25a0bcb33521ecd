"""FedProto: Local without its pull, prototypes by hand, and nothing but prototypes on the way up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Info, Lane, Mean, Rows, Server, find
from fedjax_mm.methods.method import Batch
from fedjax_mm.models.fusion import fuse_sum
from fedjax_mm.simulation.local import Trainer

FedProto, Local = find("fedproto"), find("local")


@pytest.fixture(scope="module")
def trial(laboratory, three):
    return laboratory.run(FedProto(), three)


@pytest.fixture(scope="module")
def unpulled(laboratory, three):
    return laboratory.run(FedProto(lam=0.0), three)


def test_without_the_pull_it_is_local(laboratory, three, unpulled, close):
    local = laboratory.run(Local(), three)
    for round_ in range(4):
        for client in range(3):
            for module in ("encoders", "head"):
                close(unpulled.of_client(module, client, round_), local.of_client(module, client, round_))
    head = unpulled.engine.predictors.index("head")
    for ours, theirs in zip(unpulled.blocks, local.blocks, strict=True):
        np.testing.assert_array_equal(ours.evaluation.confusion[head], theirs.evaluation.confusion[0])
        np.testing.assert_allclose(ours.evaluation.loss[head], theirs.evaluation.loss[0], rtol=1e-12)
    close(unpulled.term("ce"), local.term("ce"))


def test_the_pull_moves_the_encoders_from_the_second_round_on(trial, unpulled, same):
    for client in range(3):
        assert same(trial.of_client("encoders", client, 1), unpulled.of_client("encoders", client, 1))
        for mine, unmoved in zip(
            jax.tree.leaves(trial.of_client("encoders", client, 2)),
            jax.tree.leaves(unpulled.of_client("encoders", client, 2)),
            strict=True,
        ):
            assert not same(mine, unmoved)
    assert trial.term("prototype")[0] == 0
    assert (trial.term("prototype")[1:] > 0).all()
    assert trial.term("prototype")[-1] < unpulled.term("prototype")[-1]


def features(trial, client, rows, round_):
    """The fused feature in NumPy, from the parameters of a client."""
    tables, z = trial.engine.world.tables, 0
    for encoder, name in zip(trial.of_client("encoders", client, round_), ("a", "b"), strict=True):
        x = (np.asarray(tables.inputs[name])[rows].astype(float) - tables.shift[name][0]) * tables.scale[name][0]
        for layer in (encoder["hidden"][0], encoder["hidden"][1]):
            x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
        z = z + x @ encoder["last"]["kernel"] + encoder["last"]["bias"]
    return z


def test_global_prototypes_are_class_means_over_all_samples_of_their_holders(trial, three):
    labels = three.data.labels
    for round_ in (1, 3):
        z = np.concatenate([features(trial, client, three.train.of(client), round_) for client in range(3)])
        y = np.concatenate([labels[three.train.of(client)] for client in range(3)])
        server = trial.states[round_].server
        for c in range(3):
            # Weighted by counts, the mean of the clients' means is the mean over the samples. The last class has one
            # holder: its global prototype is the local one.
            np.testing.assert_allclose(server.value[0, c], z[y == c].mean(axis=0), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(trial.term("prototypes_present"), 3)


def test_bytes_are_those_of_the_rows_present_and_of_the_masks(trial):
    held = 2 + 2 + 3
    # A row is d numbers and a count, each of 8 bytes; three classes fit into one byte of mask, and there are two masks.
    np.testing.assert_allclose(trial.term("bytes_up"), held * (4 + 1) * 8 / 3 + 2, rtol=1e-12)
    np.testing.assert_allclose(trial.term("bytes_down"), [1, 3 * 4 * 8 + 1, 3 * 4 * 8 + 1], rtol=1e-12)


def test_the_three_predictors_by_hand():
    # One sample at 0 and prototypes at 1, 2, 0.5 (absent: nan); the client has no samples of the third class.
    lane = Lane(
        features={"current": jnp.zeros((1, 1, 1))},
        params={"current": {"head": None}},
        batch=Batch(jnp.zeros(1, jnp.int32), jnp.ones(1, bool), jnp.ones((1, 1), bool), jnp.zeros(1, jnp.int32)),
        info=Info(0, 0, jnp.ones(1, bool), jnp.asarray([3, 4, 0, 5]), jnp.int32(12), jnp.asarray([12])),
        state={},
        download=Rows(jnp.asarray([[1.0], [2.0], [0.5], [jnp.nan]]), jnp.asarray([True, True, True, False])),
        key=jax.random.key(0),
        round=jnp.int32(1),
        networks={"fusion": fuse_sum, "head": lambda params, z: z + jnp.asarray([0.0, 1.0, 2.0, 3.0])},
    )
    scores = {name: np.asarray(value)[0] for name, value in FedProto().predict(lane).items()}
    assert {name: value.argmax() for name, value in scores.items()} == {
        "prototype": 2,
        "prototype_own": 0,
        "head": 3,
    }
    np.testing.assert_array_equal(scores["prototype"][:3], [-1, -4, -0.25])
    np.testing.assert_array_equal(scores["prototype_own"][:2], [-1, -4])
    assert np.isfinite(list(scores.values())).all()


def test_who_holds_every_class_has_no_other_candidates_and_who_does_not_never_predicts_it(trial):
    anywhere, own = (trial.engine.predictors.index(name) for name in ("prototype", "prototype_own"))
    assert anywhere == 0
    for block in trial.blocks:
        confusion = block.evaluation.confusion[:, 0]
        np.testing.assert_array_equal(confusion[anywhere, 2], confusion[own, 2])
        assert confusion[own, :2, :, :, 2].sum() == 0


# --- what leaves a client


def test_the_upload_does_not_change_with_the_private_head(laboratory, three, same):
    engine = laboratory.engine(FedProto(), three)
    frozen = {group: jax.tree.map(jnp.zeros_like, optimiser) for group, optimiser in engine.world.optimisers.items()}
    world = engine.world._replace(optimisers=frozen)
    trainer = Trainer(engine.context, engine.executor.plans[0], engine.stages[0].phases)
    lanes = jnp.arange(3, dtype=jnp.int32)

    @jax.jit
    def upload(state):
        return trainer(world, state, lanes, jnp.ones(3, bool), jnp.int32(1)).upload

    def tainted(module):
        stores = dict(state.stores)
        stores[module] = jax.tree.map(lambda leaf: leaf + 1, stores[module])
        return state._replace(stores=stores)

    state = laboratory.run(FedProto(), three).states[0]
    sent = upload(state)
    assert same(upload(tainted("head")), sent)
    assert not same(upload(tainted("encoders")), sent)
    assert {leaf.shape for leaf in jax.tree.leaves(sent)} == {(3, 3, 4), (3, 3)}


@pytest.mark.parametrize(
    ("name", "visible"),
    [
        ("local", set()),
        ("fedproto", set()),
        ("lg_fedavg", {"head"}),
        ("fedavg", {"head"}),
        ("fedper", set()),
        ("fedrod", {"head"}),
        ("flux", {"head", "confidence"}),
    ],
)
def test_an_upload_is_shown_shared_modules_only(laboratory, three, monkeypatch, name, visible):
    kind, seen = find(name), []
    original = kind.upload

    def spy(self, start, end, *others):
        seen.append((set(start), set(end)))
        return original(self, start, end, *others)

    monkeypatch.setattr(kind, "upload", spy)
    laboratory.build(kind(), three)
    assert seen
    assert all(pair == (visible, visible) for pair in seen)


# --- the server step alone


def step(prototypes, counts, mask, *, weight="counts", old=None, present=None):
    prototypes, counts = jnp.asarray(prototypes, float), jnp.asarray(counts, float)
    classes, dim = prototypes.shape[1:]
    old = jnp.full((classes, dim), -7.5) if old is None else jnp.asarray(old, float)
    present = jnp.zeros(classes, bool) if present is None else jnp.asarray(present)
    held = counts > 0
    server, terms = FedProto(weight=weight).server(
        Server({}, Rows(old, present)),
        Mean({}, {}),
        (Rows(prototypes, held), Rows(counts, held)),
        jnp.asarray(mask),
        jax.random.key(0),
    )
    return np.asarray(server.state.value), np.asarray(server.state.present), terms


@pytest.mark.parametrize(("weight", "expected"), [("counts", 3), ("uniform", 2)])
def test_one_sample_at_0_and_three_at_4(weight, expected):
    value, present, terms = step([[[0]], [[4]]], [[1], [3]], [True, True], weight=weight)
    assert (value, present, terms["prototypes_present"][0]) == (expected, True, 1)


@pytest.mark.parametrize("weight", ["counts", "uniform"])
def test_a_single_clients_prototypes_become_the_global_ones(weight):
    mine = [[[1.5, 2.0], [3.0, -4.0]]]
    value, present, _ = step(mine, [[2, 5]], [True], weight=weight)
    np.testing.assert_array_equal(value, mine[0])
    assert present.all()


@pytest.mark.parametrize("weight", ["counts", "uniform"])
def test_a_class_held_only_by_those_who_were_not_heard_keeps_prototype_and_validity(weight):
    prototypes = np.array([[[1.0], [np.nan], [np.nan]], [[np.nan], [9.0], [9.0]]])
    value, present, terms = step(
        prototypes,
        [[2, 0, 0], [0, 3, 3]],
        [True, False],
        weight=weight,
        old=[[0.0], [0.1], [0.2]],
        present=[False, True, False],
    )
    np.testing.assert_array_equal(value, [[1.0], [0.1], [0.2]])
    np.testing.assert_array_equal(present, [True, True, False])
    assert terms["prototypes_present"][0] == 2


@pytest.mark.parametrize("weight", ["counts", "uniform"])
def test_permuting_classes_permutes_prototypes_and_permuting_members_nothing(weight):
    rng = np.random.default_rng(0)
    prototypes, counts = rng.normal(size=(4, 5, 2)), rng.integers(0, 4, size=(4, 5))
    mask = np.array([True, True, False, True])
    value, present, _ = step(prototypes, counts, mask, weight=weight)
    classes, members = rng.permutation(5), rng.permutation(4)
    again, present_again, _ = step(prototypes[:, classes], counts[:, classes], mask, weight=weight)
    np.testing.assert_array_equal(again, value[classes])
    np.testing.assert_array_equal(present_again, present[classes])
    again, _, _ = step(prototypes[members], counts[members], mask[members], weight=weight)
    np.testing.assert_allclose(again, value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("options", "message"), [({"lam": -1.0}, "lam is -1"), ({"weight": "count"}, "'counts'")])
def test_an_option_out_of_range_is_refused(laboratory, three, options, message):
    with pytest.raises(UsageError, match=message):
        laboratory.build(FedProto(**options), three)
