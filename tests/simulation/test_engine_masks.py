"""What may not be read is not read: other values behind every mask give the same bits everywhere."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.flux import Flux
from fedjax_mm.simulation.population import build_population

POISONS = (0.0, 1e6, np.nan)
ABSENT_1 = 13
"""A seed whose first cohort of four leaves out client 1."""
OPTIONS = {"rounds": 2, "eval_every": 2, "epochs": 1, "seeds": (0,)}


def sparse(sim):
    """Five clients of 9, 5, 1, 0 and 6 training samples: padded batches, batches of one and of none.

    Some samples lack modalities, most clients hold one or two; client 4 holds three but never sees "b" in training.
    """
    data = sim.make_data()
    holds = [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]]
    federation = sim.make_federation(data, holds, [9, 5, 1, 0, 6], missing=0.4)
    observed = federation.observed.copy()
    rows = federation.train.of(4)
    observed[rows, 1], observed[rows, 0] = False, True
    return dataclasses.replace(federation, observed=observed)


def unreadable(federation):
    """Bool `[n, M]`: entries no client may read."""
    readable = np.zeros_like(federation.observed)
    for client in range(federation.size):
        for split in ("train", "validation", "test"):
            rows = federation.table(split).of(client)
            readable[rows] = federation.observed[rows] & federation.holds[client]
    return ~readable


def poisoned(federation, value):
    """The federation over data that hold `value` wherever nobody may look; the checks of the data are bypassed."""
    mask, inputs = unreadable(federation), {}
    for j, (name, values) in enumerate(federation.data.inputs.items()):
        inputs[name] = values.copy()
        inputs[name][mask[:, j]] = value
    return dataclasses.replace(federation, data=dataclasses.replace(federation.data, inputs=inputs))


def poisoned_tables(tables, federation, value):
    """The same behind the population's own precautions, with the row padding points at."""
    mask = np.vstack([unreadable(federation), np.ones((1, len(tables.inputs)), bool)])
    return {
        name: jnp.where(mask[:, j].reshape(-1, 1), jnp.asarray(value, values.dtype), values)
        for j, (name, values) in enumerate(tables.inputs.items())
    }


def assert_same(sim, a, b):
    assert not sim.same_bits(a.end, b.end)
    for x, y in zip(a.blocks, b.blocks, strict=True):
        sim.assert_evaluations_agree(x.evaluation, y.evaluation, 0)
        for name, values in x.terms.items():
            np.testing.assert_array_equal(values, y.terms[name], err_msg=name)


def assert_finite(sim, result):
    for name, leaf in sim.named_leaves(result.end):
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all(), name
    for block in result.blocks:
        assert np.isfinite(block.evaluation.loss).all()
        assert all(np.isfinite(value).all() for pair in block.terms.values() for value in pair)


@dataclasses.dataclass
class Case:
    federation: object
    engine: object
    start: object
    result: object


@pytest.fixture(scope="module")
def shared(sim):
    """Averaged encoders with BatchNorm."""
    federation = sparse(sim)
    engine = sim.make_engine(FedAvg(), federation, model="shared", encoders=("dnn_bn",), **OPTIONS)
    start = sim.host(engine.initial_state())
    return Case(federation, engine, start, sim.run(engine, sim.device(start)))


@pytest.fixture(scope="module")
def proto(sim):
    """Prototypes, and client 1 alone outside a cohort of four."""
    federation = sparse(sim)
    engine = sim.make_engine(
        FedProto(), federation, model="shared", participation=4, **(OPTIONS | {"rounds": 1, "seeds": (ABSENT_1,)})
    )
    start = sim.host(engine.initial_state())
    return Case(federation, engine, start, sim.run(engine, sim.device(start)))


@pytest.fixture(scope="module")
def flux(sim):
    """Networks per modality and private heads, and client 1 alone outside a cohort of four."""
    federation = sparse(sim)
    engine = sim.make_engine(
        Flux(hidden=3),
        federation,
        model="shared",
        widths=((),),
        participation=4,
        **(OPTIONS | {"rounds": 1, "seeds": (ABSENT_1,)}),
    )
    start = sim.host(engine.initial_state())
    return Case(federation, engine, start, sim.run(engine, sim.device(start)))


@pytest.mark.parametrize("value", POISONS)
def test_unread_entries_of_the_data_change_nothing(value, shared, sim):
    federation = poisoned(shared.federation, value)
    tables = build_population((0,), [federation]).tables
    again = sim.run(sim.with_tables(shared.engine, **tables._asdict()), sim.device(shared.start))
    assert_finite(sim, again)
    assert_same(sim, shared.result, again)


@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("case", ["shared", "proto", "flux"])
def test_unread_entries_on_the_device_change_nothing(case, value, sim, request):
    case = request.getfixturevalue(case)
    inputs = poisoned_tables(case.engine.world.tables, case.federation, value)
    again = sim.run(sim.with_tables(case.engine, inputs=inputs), sim.device(case.start))
    assert_finite(sim, again)
    assert_same(sim, case.result, again)


def test_read_entries_do_count(shared, sim):
    """The other way round: the comparison above can fail."""
    inputs = dict(shared.engine.world.tables.inputs)
    row = shared.federation.train.of(0)[np.argmax(shared.federation.observed[shared.federation.train.of(0), 0])]
    inputs["a"] = inputs["a"].at[row].add(1.0)
    again = sim.run(sim.with_tables(shared.engine, inputs=inputs), sim.device(shared.start))
    assert sim.same_bits(shared.result.end, again.end)


def test_poisoned_labels_behind_padding_change_nothing(proto, sim):
    tables = proto.engine.world.tables
    again = sim.run(sim.with_tables(proto.engine, labels=tables.labels.at[-1].set(2)), sim.device(proto.start))
    assert_same(sim, proto.result, again)


def test_an_absent_client_reaches_nobody(proto, sim):
    """NaN in all samples of the one client outside the cohort: only its own evaluation may notice."""
    present = np.asarray(proto.result.end.participated)
    (absent,) = np.flatnonzero(~present)
    federation, tables = proto.federation, proto.engine.world.tables
    rows = np.concatenate([federation.table(s).of(absent) for s in ("train", "validation", "test")])
    inputs = {name: values.at[rows].set(np.nan) for name, values in tables.inputs.items()}
    engine = sim.with_tables(proto.engine, inputs=inputs)
    patient = dataclasses.replace(engine.context.settings, nonfinite="skip")
    engine = dataclasses.replace(engine, context=dataclasses.replace(engine.context, settings=patient))
    again = sim.run(engine, sim.device(proto.start))
    assert not sim.same_bits(proto.result.end, again.end)
    for a, b in zip(proto.result.blocks, again.blocks, strict=True):
        np.testing.assert_array_equal(a.evaluation.confusion[:, :, present], b.evaluation.confusion[:, :, present])
        for name, values in a.terms.items():
            np.testing.assert_array_equal(values, b.terms[name], err_msg=name)


def test_an_absent_client_keeps_its_private_head_and_sends_nothing(flux, sim):
    private = [sim.network(flux.engine, state, "private", 0, 1) for state in (flux.start, flux.result.end)]
    assert not sim.same_bits(*private)
    moved = [sim.network(flux.engine, state, "private", 0, 0) for state in (flux.start, flux.result.end)]
    assert sim.same_bits(*moved)
    tables, rows = flux.engine.world.tables, flux.federation.train.of(1)
    inputs = {name: values.at[rows].multiply(-3) for name, values in tables.inputs.items()}
    again = sim.run(sim.with_tables(flux.engine, inputs=inputs), sim.device(flux.start))
    assert not sim.same_bits(flux.result.end, again.end)


@pytest.mark.parametrize("value", POISONS)
def test_an_absent_class_reaches_nobody(value, proto, sim):
    """No client holds the last class; what stands in its prototype is never read and never changes."""
    state = sim.device(proto.start)
    absent = len(proto.federation.data.classes) - 1
    server = dataclasses.replace(state.server, value=state.server.value.at[:, absent].set(value))
    again = sim.run(proto.engine, state._replace(server=server))
    np.testing.assert_array_equal(
        again.end.server.value[:, absent], np.full_like(again.end.server.value[:, absent], value)
    )
    assert not again.end.server.present[:, absent].any()
    np.testing.assert_array_equal(again.end.server.value[:, :absent], proto.result.end.server.value[:, :absent])
    server = dataclasses.replace(again.end.server, value=proto.result.end.server.value)
    again.end = again.end._replace(server=server)
    assert_same(sim, proto.result, again)


def test_a_client_without_samples_keeps_its_networks(proto, sim):
    """Client 3 has none: it takes part, learns nothing, sends no prototype, and is still evaluated."""
    lane = 3
    assert proto.result.end.participated[lane]
    start = proto.start
    for module, columns in (("head", 1), ("encoders", 3)):
        for j in range(columns):
            before = sim.network(proto.engine, start, module, 0, lane, j)
            after = sim.network(proto.engine, proto.result.end, module, 0, lane, j)
            assert not sim.same_bits(before, after)
    confusion = proto.result.blocks[-1].evaluation.confusion
    assert confusion[:, 0, lane].sum() == confusion.shape[0] * 5


def test_statistics_move_only_with_two_samples_or_more(sim, shared):
    """Client 2 has one sample: its batch is normalised by the statistics it received, and leaves them alone."""
    lonely = dataclasses.replace(
        shared.federation, train=dataclasses.replace(shared.federation.train, sizes=np.array([1, 1, 1, 0, 1], np.int32))
    )
    rows = lonely.train.rows.copy()
    rows[:, 1:], rows[3] = lonely.data.size, lonely.data.size
    lonely = dataclasses.replace(lonely, train=dataclasses.replace(lonely.train, rows=rows))
    width = shared.engine.world.tables.train.shape[1]
    tables = build_population((0,), [lonely]).tables
    train = jnp.pad(tables.train, ((0, 0), (0, width - tables.train.shape[1])), constant_values=lonely.data.size)
    engine = sim.with_tables(shared.engine, train=train, info=tables.info)
    start = shared.start
    end = sim.run(engine, sim.device(start)).end
    moved = [
        sim.same_bits(before["statistics"], after["statistics"])
        for before, after in zip(start.stores["encoders"], end.stores["encoders"], strict=True)
    ]
    assert not any(moved)
    assert sim.same_bits(start.stores["head"][0]["params"], end.stores["head"][0]["params"]), "they do learn"
    assert any(
        sim.same_bits(before["statistics"], after["statistics"])
        for before, after in zip(start.stores["encoders"], shared.result.end.stores["encoders"], strict=True)
    ), "with more samples statistics move"
