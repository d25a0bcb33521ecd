"""Mistakes in a method are found when it is set up, and numbers that are not finite are never passed over."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.methods import Layout, Method, Module, Phase, Server, Stage, Upload, method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto


@method
class PerSample(Method):
    """Its loss is not a scalar."""

    name: ClassVar[str] = "per_sample"

    def loss(self, lane):
        _, terms = super().loss(lane)
        return jnp.sum(jnp.square(lane.fuse()), axis=1), terms


@method
class NoPair(Method):
    """Its term has no weight."""

    name: ClassVar[str] = "no_pair"

    def loss(self, lane):
        ce, _ = super().loss(lane)
        return ce, {"ce": ce}


@method
class LateMistake(Method):
    """Its second stage has a loss of its own, which is wrong."""

    name: ClassVar[str] = "late"

    def layout(self, spec):
        stages = (Stage(1), Stage(None, (Phase(loss="second"),)))
        return Layout({"encoders": Module(None), "head": Module(spec.head)}, stages=stages)

    def second(self, lane):
        return self.loss(lane)[0]

    @property
    def losses(self):
        return {"loss": self.loss, "second": self.second}


@method
class WideScores(Method):
    """It scores classes that do not exist."""

    name: ClassVar[str] = "wide"

    def predict(self, lane):
        return {"head": jnp.pad(lane.logits(), ((0, 0), (0, 2)))}


@method
class ForgetsState(Method):
    """Its upload drops the client's state."""

    name: ClassVar[str] = "forgets"

    def init_client(self, key, info):
        return {"visits": jnp.int32(0)}

    def upload(self, start, end, sums, info, state):
        return Upload()


@method
class RealCounter(ForgetsState):
    """It puts a real number where it counts."""

    name: ClassVar[str] = "real_counter"

    def upload(self, start, end, sums, info, state):
        return Upload(state={"visits": state["visits"] + 0.5})


@method
class OtherServer(Method):
    """Its server state changes shape."""

    name: ClassVar[str] = "other_server"

    def init_server(self, key, spec):
        return jnp.zeros(2)

    def server(self, server, mean, stack, mask, key):
        return Server(mean.modules, jnp.zeros(3)), {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (PerSample, r"per_sample: loss returned a loss of shape \(4,\); it must be a scalar"),
        (NoPair, r"no_pair: loss: term 'ce' must be a pair \(sum, weight\)"),
        (LateMistake, r"late: second must return \(loss, terms\)"),
        (WideScores, r"wide: scores 'head' of a batch of 1 are \[1, 6\], must be \[1, 4\]"),
        (ForgetsState, r"forgets: the client state that upload returns must have the structure .*'visits'.*nothing"),
        (RealCounter, r"real_counter: the client state .*'visits'.* was int32\[1\] and became float32\[1\]"),
        (OtherServer, r"other_server: what server returns must keep shapes .*float32\[1, 2\] and became"),
    ],
)
def test_a_wrong_hook_is_named_before_anything_is_compiled(sim, wrong, message):
    with pytest.raises(UsageError, match=message):
        sim.make_engine(wrong(), sim.alike(), model="shared", executor="map", seeds=(0,))


@method
class ServerBreaks(FedAvg):
    """Its server step is not finite in round 2."""

    name: ClassVar[str] = "server_breaks"

    def init_server(self, key, spec):
        return {"rounds": jnp.int32(0)}

    def server(self, server, mean, stack, mask, key):
        rounds = server.state["rounds"] + 1
        head = {"head": {**mean.modules["head"], "layers": mean.modules["head"]["layers"]}}
        bad = jnp.where(rounds == 2, jnp.nan, 0.0)
        layers = {k: {n: leaf + bad for n, leaf in layer.items()} for k, layer in head["head"]["layers"].items()}
        return Server({**mean.modules, "head": {"layers": layers}}, {"rounds": rounds}), {}


@pytest.mark.slow
def test_a_server_step_that_is_not_finite_stops_the_run_or_is_left_out(sim):
    options = {"model": "shared", "executor": "map", "seeds": (0,), "eval_every": 1}
    with pytest.raises(RunError, match=r"server_breaks: not finite in round 2: the server step \(seed 0\)"):
        sim.run(sim.make_engine(ServerBreaks(), sim.alike(), **options))
    result = sim.run(sim.make_engine(ServerBreaks(), sim.alike(), nonfinite="skip", **options))
    total, weight = result.blocks[1].terms["server_skipped"]
    assert (total / weight).tolist() == [[1.0]]
    assert result.states[1].server["rounds"].tolist() == [1], "the server stays as it was"
    assert all(np.isfinite(leaf).all() for block in result.blocks for leaf in block.evaluation.loss)


@method
class BrokenScores(Method):
    """Finite parameters, scores that are not."""

    name: ClassVar[str] = "broken_scores"

    def predict(self, lane):
        return {"head": jnp.where(lane.info.id == 1, jnp.nan, lane.logits())}


@pytest.mark.slow
def test_scores_that_are_not_finite_stop_the_run_or_count_as_wrong(sim):
    options = {"model": "shared", "executor": "map", "seeds": (0,), "rounds": 1, "eval_every": 1}
    with pytest.raises(RunError, match=r"not finite in round 1: scores of client client1 \(seed 0\)"):
        sim.run(sim.make_engine(BrokenScores(), sim.alike(), **options))
    (block,) = sim.run(sim.make_engine(BrokenScores(), sim.alike(), nonfinite="skip", **options)).blocks
    confusion = block.evaluation.confusion[0, 0, 1]
    assert confusion.sum() == 5 and np.trace(confusion, axis1=1, axis2=2).sum() == 0


@pytest.mark.parametrize("value", [1e39, 1e-50])
def test_a_number_that_the_precision_cannot_hold_is_refused(sim, value):
    with pytest.raises(UsageError, match="out of the range of float32"):
        sim.make_engine(FedProto(lam=value), sim.alike(), model="shared", seeds=(0,), precision="float32")
