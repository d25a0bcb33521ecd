"""Several devices are a way of running one computation: they give the numbers of one."""

import functools
import socket
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.methods import method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.flux import Flux
from fedjax_mm.simulation.division import divide
from fedjax_mm.simulation.evaluate import Evaluator

TWO_SHAPES = [[1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 1, 0], [0, 1, 1]]
SHARED = {"model": "shared", "encoders": ("mlp",), "widths": ((),)}
KEPT = {"momentum": 0.5, "optimizer_state": "keep"}


def unlike(sim):
    """Five clients of two shapes, of 9, 2, 5, 3 and 6 training samples."""
    return sim.make_federation(sim.make_data(), TWO_SHAPES, [9, 2, 5, 3, 6])


# How lanes are divided -> method, federation, options, devices asked for, devices used.
CASES = {
    "seeds": (FedProto(), lambda sim: sim.mixed(), {"encoders": ("mlp",), "widths": ((),), "seeds": (0, 3, 5)}, 2, 2),
    "clients": (FedAvg(), lambda sim: sim.alike(), {**SHARED, "encoders": ("dnn_bn",), "seeds": (4,)}, 8, 3),
    "padding": (FedAvg(), lambda sim: sim.alike(), {**SHARED, **KEPT, "seeds": (0, 3, 4)}, 2, 2),
    "shapes": (FedProto(), unlike, {"encoders": ("mlp",), "widths": ((),), "seeds": (1,), "clip": 0.5}, 3, 3),
}


def outcome(sim, case, devices, **options):
    rule, federation, own, *_ = CASES[case]
    engine = sim.make_engine(rule, federation(sim), devices=devices, **(own | options))
    result = sim.run(engine)
    return engine, sim.host(engine.gathered(result.state)), result.blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "executors"),
    # Whole seeds without padding are the easier case of `padding`.
    [
        pytest.param("seeds", ["lockstep"], marks=pytest.mark.marathon),
        ("clients", ["map"]),
        pytest.param("padding", ["lockstep"], marks=pytest.mark.marathon),
        pytest.param("shapes", ["map"], marks=pytest.mark.marathon),
    ],
)
def test_several_devices_equal_one(case, executors, sim):
    asked, used = CASES[case][3:]
    with jax.enable_x64(True):
        options = {"precision": "float64", "participation": 1.0 if case == "clients" else 2}
        _, reference, blocks = outcome(sim, case, 1, executor="map", **options)
        for executor in executors:
            engine, state, others = outcome(sim, case, asked, executor=executor, **options)
            assert engine.devices == used and engine.executor_name == executor
            assert sim.gap(reference, state) < 1e-9, executor
            sim.assert_blocks_agree(blocks[-1], others[-1], 1e-9)


@pytest.mark.marathon
def test_networks_per_modality_and_copies_agree_lane_after_lane_on_two_devices(sim):
    """Clients of two shapes, none of which has everything: averages that count copies are combined, too."""
    federation = sim.make_federation(sim.make_data(), [[1, 1, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]], [9, 2, 5, 3])
    options = {**SHARED, "fusion": "sum", "rounds": 2, "seeds": (1,), "precision": "float64"}
    ends = {}
    with jax.enable_x64(True):
        for executor, devices in (("lockstep", 1), ("map", 2)):
            rule = Flux(hidden=3, blocks="naive")
            engine = sim.make_engine(rule, federation, executor=executor, devices=devices, **options)
            assert engine.devices == devices and engine.executor_name == executor
            result = sim.run(engine)
            ends[executor, devices] = sim.host(engine.gathered(result.state)), result.blocks[-1]
        reference, block = ends.pop(("lockstep", 1))
        for case, (state, other) in ends.items():
            assert sim.gap(reference, state) < 1e-9, case
            sim.assert_blocks_agree(block, other, 1e-9)


def test_a_state_is_laid_out_and_gathered_without_loss_and_gone_on_with(sim):
    rule, federation, own, asked, _ = CASES["padding"]
    engine = sim.make_engine(rule, federation(sim), devices=asked, executor="map", eval_every=2, **own)
    straight = sim.run(engine)
    state, _ = engine.run_block(engine.initial_state(), 1, 2)
    between = sim.host(engine.gathered(state))
    assert sim.same_bits(between, sim.host(engine.gathered(engine.placed(sim.device(between))))) == []
    resumed, _ = engine.run_block(engine.placed(sim.device(between)), 3, 1)
    assert sim.same_bits(sim.host(engine.gathered(resumed)), sim.host(engine.gathered(straight.state))) == []
    again = sim.run(engine)
    assert sim.same_bits(sim.host(again.state), sim.host(straight.state)) == []
    # The evaluation of the same state on one device.
    alone = sim.make_engine(rule, federation(sim), devices=1, executor="map", eval_every=2, **own)
    evaluate = jax.jit(functools.partial(Evaluator(alone.context, alone.predictors), alone.reader))
    counts = evaluate(alone.world, sim.device(sim.host(engine.gathered(straight.state))), jnp.int32(3))
    sim.assert_evaluations_agree(alone._evaluation(3, counts), straight.blocks[-1].evaluation, 1e-5)


@method
class Fails(FedAvg):
    """The loss of client 4 is not a number."""

    name: ClassVar[str] = "fails"

    def loss(self, lane):
        ce, terms = super().loss(lane)
        return ce * jnp.where(lane.info.id == 4, jnp.nan, 1.0), terms


def test_a_result_that_is_not_finite_is_told_of_the_right_client(sim):
    options = {"executor": "map", "model": "shared", "rounds": 1, "eval_every": 1}
    engine = sim.make_engine(Fails(), unlike(sim), devices=2, **options)
    assert engine.devices == 2
    with pytest.raises(RunError, match="encoders of client client4"):
        sim.run(engine)


def test_divisions_hold_every_lane_once_in_equal_shapes(sim):
    engine = sim.make_engine(FedProto(), unlike(sim), encoders=("mlp",), widths=((),), seeds=(0, 1))
    sizes, stores = engine.population.train_sizes(), engine.context.stores
    signature = np.concatenate([store.network for store in stores.values()], axis=1)
    for devices in (2, 3, 5):
        division = divide(stores, sizes, devices)
        assert sorted(division.lanes[division.real]) == list(range(10))
        assert all((signature[lanes] == signature[division.lanes[0]]).all() for lanes in division.lanes)
        assert division.lanes.shape[0] <= devices and division.gain >= 1.25
    assert divide(stores, sizes, 1) is None


def test_devices_that_are_not_there_are_refused(sim):
    with pytest.raises(UsageError, match=f"JAX has {jax.device_count()}"):
        sim.make_engine(FedAvg(), sim.alike(), model="shared", devices=jax.device_count() + 1)


PROCESS = """
import sys
import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_disable_most_optimizations", True)
place, count, index, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if count > 1:
    jax.distributed.initialize(place, num_processes=count, process_id=index, cluster_detection_method="deactivate")
import fedjax_mm as fmm

rng = np.random.default_rng(0)
y = np.arange(60) % 3
data = fmm.from_arrays({name: rng.normal(size=(60, 3)) + np.eye(3)[y] for name in "ab"}, y)
federation = fmm.federate(data, partition="all", clients=4)
options = {"rounds": 2, "eval_every": 1, "participation": 3, "precision": "float64"}
run = fmm.simulate("fedavg", federation, devices=2 * count, **options)
values = run.rounds()["value"].to_numpy(float)
np.savez(f"{out}{index}.npz", values=values, devices=run.manifest["methods"]["fedavg"]["devices"])
"""


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"

    def start(count, index, name):
        words = [sys.executable, "-c", PROCESS, place, str(count), str(index), str(tmp_path / name)]
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    for processes in ([start(1, 0, "one")], [start(2, index, "two") for index in range(2)]):
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-2000:]
    one, first, second = (np.load(tmp_path / f"{name}.npz") for name in ("one0", "two0", "two1"))
    assert (one["devices"], first["devices"]) == (2, 4)
    np.testing.assert_array_equal(first["values"], second["values"])
    np.testing.assert_allclose(first["values"], one["values"], rtol=1e-9, atol=1e-9)
