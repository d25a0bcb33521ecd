"""Everything a method may ask of the engine, through methods written for the purpose."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import RunError
from fedjax_mm.methods import Layout, Method, Module, Phase, Server, Stage, Upload, method, shared_model
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.models.heads import HeadSpec
from fedjax_mm.objectives.supervised import cross_entropy

ROUNDS = 4
LR = 0.05
TEMPERATURE = 0.5


def cosine(a, b):
    return jnp.sum(a * b, axis=-1) / jnp.sqrt(jnp.sum(a * a, axis=-1) * jnp.sum(b * b, axis=-1) + 1e-12)


@method
class Everything(Method):
    """Views, quantities, all kinds of upload, client and server state; it records what it was shown."""

    contrast: float = 0.0
    proximal: float = 0.0
    breaks_in: float = 1e6

    name: ClassVar[str] = "everything"

    def layout(self, spec):
        linear = HeadSpec(spec.fused, (), spec.classes)
        modules = {
            "encoders": Module(None, share="mean"),
            "head": Module(spec.head),
            "common": Module(linear, share="mean", weight="uniform"),
        }
        return Layout(modules, views=("download", "previous"), quantities=("proximal",))

    def init_client(self, key, info):
        seen = jnp.zeros((info.modalities.shape[0], 3))
        return {"visits": jnp.int32(0), "proximal": jnp.float32(0), "current": seen, "download": seen, "previous": seen}

    def init_server(self, key, spec):
        member = jnp.zeros(3, jnp.int32)
        return {
            "rounds": jnp.int32(0),
            "share": jnp.zeros(2),
            "half": jnp.zeros(()),
            "weight": jnp.zeros(()),
            "ids": member,
            "heard": member > 0,
            "bias": jnp.zeros((3, spec.classes)),
        }

    def loss(self, lane):
        logits = lane.logits() + lane.apply("common", lane.fuse())
        ce, n = cross_entropy(logits, lane.batch.y, lane.batch.valid)
        z, received, stored = (lane.fuse(view) for view in ("current", "download", "previous"))
        each = jax.nn.softplus((cosine(z, stored) - cosine(z, received)) / TEMPERATURE)
        contrast = jnp.sum(jnp.where(lane.batch.valid, each, 0)) / jnp.maximum(n, 1)
        proximal = jnp.sum(lane.encoder["proximal"])
        broken = (lane.info.id == 1) & (lane.round >= self.breaks_in)
        total = ce + self.contrast * contrast + self.proximal * proximal
        return jnp.where(broken, jnp.inf, 1.0) * total, {"ce": (ce * n, n), "contrast": (contrast * n, n)}

    def collect(self, lane):
        sums = {view: jnp.sum(lane.features[view], axis=1) for view in ("current", "download", "previous")}
        return sums | {"proximal": jnp.sum(lane.encoder["proximal"])}

    def upload(self, start, end, sums, info, state):
        value = jnp.where(info.id == 0, 0.0, 1.0)
        leaves = {"share": jnp.stack([value, 1 - value]), "half": value.astype(jnp.bfloat16), "whole": jnp.int32(7)}
        weight = jnp.where(info.id == 0, 1.0, jnp.where(info.id == 1, 3.0, 0.0))
        return Upload(
            mean={"said": (leaves, weight)},
            stack={"id": info.id, "bias": end["common"]["layers"][0]["bias"]},
            state=sums | {"visits": state["visits"] + 1},
        )

    def server(self, server, mean, stack, mask, key):
        leaves, weight = mean.extra["said"]
        state = {
            "rounds": server.state["rounds"] + 1,
            "share": leaves["share"],
            "half": leaves["half"].astype(jnp.float32),
            "weight": weight,
            "ids": stack["id"],
            "heard": mask,
            "bias": stack["bias"],
        }
        assert leaves["whole"].dtype == leaves["half"].dtype == leaves["share"].dtype, "the run's precision"
        return Server(mean.modules, state), {"heard": (jnp.sum(mask * 1.0), jnp.float32(1))}


SEED = 18


@pytest.fixture(scope="module")
def everything(sim):
    """Four clients, three of them a round; client 1 is in the first two cohorts."""
    engine = sim.make_engine(
        Everything(),
        sim.hetero(),
        model="shared",
        partition="all",
        rounds=ROUNDS,
        eval_every=1,
        participation=3,
        lr=LR,
        seeds=(SEED,),
        nonfinite="skip",
    )
    engine.programs["start"] = sim.host(engine.initial_state())
    return engine


def go(sim, engine, **numbers):
    """A run with other numbers of the method, which are arguments of the one program."""
    chosen = dataclasses.replace(engine.world.method, **{k: jnp.full(1, v, jnp.float32) for k, v in numbers.items()})
    engine = dataclasses.replace(engine, world=engine.world._replace(method=chosen))
    return sim.run(engine, sim.device(engine.programs["start"]))


def finished(sim, engine, state, k):
    """The networks client k last finished with."""
    stored = [sim.network(engine, state, "encoders", 0, k, j, rows="slots", stores=state.previous) for j in range(3)]
    return [*stored, sim.network(engine, state, "head", 0, k, rows="slots", stores=state.previous)]


@pytest.fixture(scope="module")
def plain(everything, sim):
    return go(sim, everything)


def test_client_and_server_state(everything, plain, sim):
    visits = np.zeros(4, int)
    for round_, state in enumerate(plain.states, 1):
        members = sim.cohort(everything, round_)
        assert len(members) == 3
        visits[members] += 1
        np.testing.assert_array_equal(state.clients["visits"], visits)
        np.testing.assert_array_equal(state.participated, visits > 0)
        assert state.server["rounds"] == round_
        np.testing.assert_array_equal(state.server["ids"][0], members)
        assert state.server["heard"].all()


def test_absent_clients_keep_everything(everything, plain, sim):
    before = everything.programs["start"]
    for round_, after in enumerate(plain.states, 1):
        members = sim.cohort(everything, round_)
        for k in range(4):
            private = [sim.network(everything, state, "head", 0, k) for state in (before, after)]
            own = [jax.tree.map(lambda leaf, k=k: leaf[k], state.clients) for state in (before, after)]
            kept = [finished(sim, everything, state, k) for state in (before, after)]
            moved = [bool(sim.same_bits(*pair)) for pair in (private, own, kept)]
            assert moved == [k in members] * 3, (round_, k)
        before = after


def test_weighted_means_of_uploads_are_exact(everything, plain, sim):
    """Values 0 and 1 with weights 1 and 3; all other clients have nothing to say."""
    expected = {(True, True): 0.75, (True, False): 0.0, (False, True): 1.0}
    for round_, state in enumerate(plain.states, 1):
        members = sim.cohort(everything, round_)
        value = expected[0 in members, 1 in members]
        np.testing.assert_array_equal(state.server["share"][0], [value, 1 - value])
        assert state.server["half"][0] == value
        assert state.server["weight"][0] == (0 in members) + 3 * (1 in members)


def test_uniform_weight_counts_every_member_once(plain):
    for state in plain.states:
        bias = state.stores["common"][0]["params"]["layers"][0]["bias"][0]
        np.testing.assert_allclose(bias, state.server["bias"][0].mean(axis=0), rtol=1e-6)


def test_previous_view_is_what_the_client_last_finished_with(everything, plain, sim):
    last = [None] * 4
    for round_, state in enumerate(plain.states, 1):
        for k in sim.cohort(everything, round_):
            seen = {view: state.clients[view][k] for view in ("current", "download", "previous")}
            if last[k] is None:
                np.testing.assert_array_equal(seen["previous"], seen["download"])
            else:
                np.testing.assert_allclose(seen["previous"], last[k], rtol=1e-5, atol=1e-5)
            last[k] = seen["current"]
    assert np.abs(seen["current"] - seen["previous"]).max() > 1e-3


def test_contrast_of_equal_views_is_log_two_without_gradient(everything, plain, sim):
    total, weight = plain.blocks[0].terms["contrast"]
    np.testing.assert_allclose(total / weight, math.log(2), rtol=1e-6)
    with_contrast = go(sim, everything, contrast=5.0)
    assert sim.gap(plain.states[0].stores, with_contrast.states[0].stores) < 1e-4
    ends = [r.end.stores["encoders"] for r in (plain, with_contrast)]
    assert sim.gap(*ends) > 1e-3, "once client and server differ the contrast counts"


def test_proximal_quantity_is_the_squared_distance_to_the_download(everything, plain, sim):
    start = everything.programs["start"]
    for k in sim.cohort(everything, 1):
        after, total = finished(sim, everything, plain.states[0], k), 0.0
        for j in range(3):
            before = sim.network(everything, start, "encoders", 0, k, j)
            if before is not None:
                total += sum(
                    ((a - b) ** 2).sum() for a, b in zip(*map(jax.tree.leaves, (before, after[j])), strict=True)
                )
        np.testing.assert_allclose(plain.states[0].clients["proximal"][k], total, rtol=1e-4)


def test_proximal_gradient(everything, plain, sim):
    """Client 2 takes two steps a round, and the term has no slope at the first: it adds -lr * 2p * (w1 - w0)."""
    p = 0.5
    assert 2 in sim.cohort(everything, 1)
    start = everything.programs["start"]
    pulled = go(sim, everything, proximal=p)
    federation, tables = everything.population.federations[0], everything.world.tables
    rows = federation.train.of(2)
    x = (np.asarray(tables.inputs["b"])[rows] - np.asarray(tables.shift["b"])[0]) * np.asarray(tables.scale["b"])[0]
    y = federation.data.labels[rows]

    def loss(encoder, head, common):
        z = x
        for i in sorted(encoder["hidden"]):
            z = jax.nn.relu(z @ encoder["hidden"][i]["kernel"] + encoder["hidden"][i]["bias"])
        z = z @ encoder["last"]["kernel"] + encoder["last"]["bias"]
        logits = z @ common["layers"][0]["kernel"] + common["layers"][0]["bias"]
        z = jax.nn.relu(z @ head["layers"][0]["kernel"] + head["layers"][0]["bias"])
        logits += z @ head["layers"][1]["kernel"] + head["layers"][1]["bias"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    encoder, *heads = (
        sim.network(everything, start, m, 0, 2, j) for m, j in (("encoders", 1), ("head", 0), ("common", 0))
    )
    first_step = jax.tree.map(lambda g: -LR * g, jax.grad(loss)(encoder, *heads))
    ends = [finished(sim, everything, r.states[0], 2)[1] for r in (plain, pulled)]
    for free, held, d in zip(*map(jax.tree.leaves, (*ends, first_step)), strict=True):
        expected = -LR * 2 * p * np.asarray(d)
        np.testing.assert_allclose(held - free, expected, atol=2e-7 + 0.01 * np.abs(expected).max())


# --- clients whose result is not finite ------------------------------------------------------------------------------


def test_a_client_that_is_skipped_keeps_everything(everything, plain, sim):
    assert all(1 in sim.cohort(everything, r) for r in (1, 2))
    broken = go(sim, everything, breaks_in=2.0)
    assert not sim.same_bits(plain.states[0], broken.states[0])
    before, after = broken.states[0], broken.states[1]
    assert not sim.same_bits(*(sim.network(everything, state, "head", 0, 1) for state in (before, after)))
    assert not sim.same_bits(*(finished(sim, everything, state, 1) for state in (before, after)))
    assert not sim.same_bits(*(jax.tree.map(lambda leaf: leaf[1], s.clients) for s in (before, after)))
    np.testing.assert_array_equal(after.server["heard"][0], np.array(sim.cohort(everything, 2)) != 1)
    total, weight = broken.blocks[1].terms["skipped"]
    assert total[0, 0] == 1 and weight[0, 0] == 1
    for name, leaf in sim.named_leaves(broken.end):
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all(), name
    share = after.server["share"][0][0]
    assert share == 0, "only client 0 is heard"


def test_a_client_that_is_skipped_has_still_participated_before(everything, sim):
    broken = go(sim, everything, breaks_in=2.0)
    assert broken.states[0].participated[1]
    assert broken.states[1].participated[1], "its stored networks are still those it last finished with"


def test_stop_names_where(everything, sim):
    settings = dataclasses.replace(everything.context.settings, nonfinite="stop")
    engine = dataclasses.replace(everything, context=dataclasses.replace(everything.context, settings=settings))
    with pytest.raises(RunError) as caught:
        go(sim, engine, breaks_in=2.0)
    message = str(caught.value)
    assert all(part in message for part in ("everything", "round 2", "client1", f"seed {SEED}"))
    assert any(module in message for module in ("encoders", "head", "common")), "its gradient breaks them all"


@method
class Raises(Method):
    """Its loss fails when it is computed, for one client."""

    name: ClassVar[str] = "raises"

    def loss(self, lane):
        def check(k):
            if k == 1:
                raise ZeroDivisionError("the cause")
            return np.float32(1)

        factor = jax.pure_callback(check, jax.ShapeDtypeStruct((), jnp.float32), lane.info.id, vmap_method="sequential")
        ce, n = cross_entropy(lane.logits(), lane.batch.y, lane.batch.valid)
        return ce * jax.lax.stop_gradient(factor), {"ce": (ce * n, n)}


@pytest.mark.slow
def test_debug_names_the_client_and_keeps_the_error(sim):
    engine = sim.make_engine(Raises(), sim.alike(), model="shared", executor="debug", rounds=1, epochs=1)
    with pytest.raises(RunError, match="the cause") as caught:
        sim.run(engine)
    assert "client client1 (seed " in str(caught.value) and "round 1" in str(caught.value)


# --- stages and phases -----------------------------------------------------------------------------------------------


@method
class TwoStages(Method):
    """One round of encoders alone with a loss of their own, then heads alone."""

    name: ClassVar[str] = "two_stages"

    def layout(self, spec):
        stages = (
            Stage(1, (Phase(train=("encoders",), epochs=1, loss="warm"),)),
            Stage(None, (Phase(train=("head",), epochs=2),)),
        )
        return dataclasses.replace(shared_model(spec, encoders="mean", head="private"), stages=stages)

    def warm(self, lane):
        size = jnp.sum(jnp.square(lane.fuse()), axis=1)
        total = jnp.sum(jnp.where(lane.batch.valid, size, 0))
        n = jnp.sum(lane.batch.valid) * 1.0
        return total / jnp.maximum(n, 1), {"size": (total, n)}

    @property
    def losses(self):
        return {"loss": self.loss, "warm": self.warm}


@pytest.fixture(scope="module")
def staged(sim):
    engine = sim.make_engine(TwoStages(), sim.alike(), model="shared", encoders=("dnn_bn",), rounds=4, eval_every=2)
    start = sim.host(engine.initial_state())
    return engine, start, sim.run(engine, sim.device(start))


@pytest.mark.slow
def test_stages_and_frozen_modules(staged, sim):
    engine, start, result = staged
    assert engine.blocks() == [(1, 1), (2, 1), (3, 2)]
    assert engine.blocks(done=1) == [(2, 1), (3, 2)]
    assert not sim.same_bits(start.stores["head"], result.states[0].stores["head"])
    moved = sim.same_bits(start.stores["encoders"], result.states[0].stores["encoders"])
    assert any("statistics" in name for name in moved) and any("kernel" in name for name in moved)
    assert sim.same_bits(result.states[0].stores["head"], result.end.stores["head"])
    assert "size" in result.blocks[0].terms and "ce" not in result.blocks[0].terms
    assert "ce" in result.blocks[1].terms and "size" not in result.blocks[1].terms


@pytest.mark.slow
def test_averaging_what_nobody_trained_does_not_change_it(staged, sim):
    """Encoders are frozen in the second stage, and so are their statistics, although they are averaged."""
    _, _, result = staged
    assert not sim.same_bits(result.states[0].stores["encoders"], result.end.stores["encoders"])


@method
class Warmup(TwoStages):
    """A stage whose length is an option, here 0."""

    warmup: int = 0

    name: ClassVar[str] = "warmup"

    def layout(self, spec):
        layout = super().layout(spec)
        stages = (dataclasses.replace(layout.stages[0], rounds=self.warmup), layout.stages[1])
        return dataclasses.replace(layout, stages=stages)


def test_a_stage_of_no_rounds_has_no_block(sim):
    engine = sim.make_engine(Warmup(), sim.alike(), model="shared", rounds=4, eval_every=2)
    assert engine.blocks() == [(1, 2), (3, 2)]


# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_statistics_are_averaged_or_stay(sim):
    """The averaged ones are the mean, by samples that have the modality, of those that would have stayed."""
    federation, ends, engines = sim.alike(), {}, {}
    for rule in ("average", "local"):
        engines[rule] = sim.make_engine(
            FedAvg(), federation, model="shared", encoders=("dnn_bn",), statistics=rule, rounds=1, participation=2
        )
        ends[rule] = sim.run(engines[rule]).end
    members = sim.cohort(engines["local"], 1)
    (absent,) = set(range(3)) - set(members)
    for j, name in enumerate(federation.data.modalities):
        own = [sim.network(engines["local"], ends["local"], "encoders", 0, k, j, part="statistics") for k in range(3)]
        averaged = sim.network(engines["average"], ends["average"], "encoders", 0, 0, j, part="statistics")
        weights = [federation.observed[federation.train.of(k), j].sum() for k in members]
        assert sum(weights) > 0, name
        mean = jax.tree.map(
            lambda *leaves, w=weights: sum(a * b for a, b in zip(w, leaves, strict=True)) / sum(w),
            *[own[k] for k in members],
        )
        for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(averaged), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert {float(leaf.sum()) for leaf in jax.tree.leaves(own[absent])} <= {0.0, 64.0, 128.0}, "as initialised"
