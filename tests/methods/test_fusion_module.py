"""A fusion with parameters is a module like any other: whose it is, when it learns, what it costs."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest

from fedjax_mm.methods import Layout, Module, Phase, Spec, Stage, find, method, shared_model
from fedjax_mm.methods.layout import with_fusion
from fedjax_mm.models import HeadSpec
from fedjax_mm.models.fusion import AttentionSpec
from fedjax_mm.simulation.settings import Settings

FedAvg, Local, LgFedAvg = find("fedavg"), find("local"), find("lg_fedavg")
SPEC = Spec(("a", "b"), 3, 2, 4, "attention", "shared", HeadSpec(4, (4,), 3), 5, 1)
ATTENTION = AttentionSpec(4, 4)


@pytest.mark.parametrize("name", ["local", "fedavg", "lg_fedavg", "fedproto", "mfedpba"])
def test_it_goes_with_the_head(name):
    modules = with_fusion(find(name)().layout(SPEC), SPEC).modules
    assert modules["fusion"] == dataclasses.replace(modules["head"], network=ATTENTION)
    assert modules["fusion"].share == ("mean" if name in ("fedavg", "lg_fedavg") else "private")


@pytest.mark.parametrize("fusion", ["sum", "mean", "concat"])
def test_there_is_none_where_fusing_has_no_parameters(fusion):
    spec = dataclasses.replace(SPEC, fusion=fusion)
    layout = shared_model(spec, encoders="mean", head="private", fusion="mean")
    assert set(with_fusion(layout, spec).modules) == {"encoders", "head"}


def test_a_method_may_say_whose_it_is():
    layout = shared_model(SPEC, encoders="mean", head="private", fusion="mean")
    assert with_fusion(layout, SPEC) is layout
    assert layout.modules["fusion"] == Module(ATTENTION, share="mean")
    own = Layout({"encoders": Module(None), "fusion": Module(AttentionSpec(4, 9))})
    assert with_fusion(own, SPEC) is own


def test_without_a_head_it_goes_with_the_encoders():
    layout = with_fusion(Layout({"encoders": Module(None, share="mean", group="body")}), SPEC)
    assert layout.modules["fusion"] == Module(ATTENTION, share="mean", group="body")


def test_it_learns_in_the_phases_in_which_the_head_does():
    phases = (Phase(("encoders",)), Phase(("head",), epochs=2), Phase(), Phase(("encoders", "head")))
    layout = with_fusion(
        Layout({"encoders": Module(None), "head": Module(SPEC.head)}, (Stage(1, phases[:2]), Stage(None, phases[2:]))),
        SPEC,
    )
    assert layout.stages == (
        Stage(1, (Phase(("encoders",)), Phase(("head", "fusion"), epochs=2))),
        Stage(None, (Phase(), Phase(("encoders", "head", "fusion")))),
    )


def test_the_shared_model_attends_and_the_pool_sums():
    assert Settings().resolved("all", 3).fusion == "attention"
    assert Settings().resolved("m1+", 3).fusion == "sum"
    assert Settings(fusion="mean").resolved("all", 3).fusion == "mean"


@method
class HeadOnly(FedAvg):
    """The head learns, and the fusion with it; the encoders stay."""

    name: ClassVar[str] = "head_only"

    def layout(self, spec):
        layout = super().layout(spec)
        return dataclasses.replace(layout, stages=(Stage(phases=(Phase(("head",)),)),))


@pytest.fixture(scope="module")
def trials(laboratory, three):
    options = {"fusion": "attention", "rounds": 1}
    return {m.name: laboratory.run(m(), three, **options) for m in (FedAvg, Local, HeadOnly)}


def test_fedavg_averages_it_by_samples(trials, close):
    """Both start from the same weights and see the same batches, so FedAvg's is the mean of what Local's became."""
    for client in range(3):
        close(trials["fedavg"].of_client("fusion", client, 0), trials["local"].of_client("fusion", client, 0))
    ends = [trials["local"].of_client("fusion", client) for client in range(3)]
    expected = jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=[8, 13, 19]), *ends)
    for client in range(3):
        close(trials["fedavg"].of_client("fusion", client), expected)


def test_local_keeps_its_own(trials, same):
    ends = [trials["local"].of_client("fusion", client) for client in range(3)]
    assert not any(same(ends[k], ends[j]) for k in range(3) for j in range(k))
    assert not trials["local"].engine.context.stores["fusion"].shared("params")
    assert trials["local"].term("bytes_up") == 0


def test_every_part_of_it_learns(trials):
    for trial in trials.values():
        before, after = trial.of_client("fusion", 2, 0), trial.of_client("fusion", 2)
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (x != y).any()


def test_a_frozen_encoder_does_not_keep_it_from_learning(trials, same):
    trial = trials["head_only"]
    assert same(trial.of_client("encoders", 0), trial.of_client("encoders", 0, 0))
    assert not same(trial.of_client("head", 0), trial.of_client("head", 0, 0))


def test_it_is_billed(trials):
    trial = trials["fedavg"]
    sent = [trial.of_client(module, 0) for module in ("encoders", "head", "fusion")]
    assert trial.term("bytes_up") == trial.term("bytes_down") == 8 * sum(leaf.size for leaf in jax.tree.leaves(sent))
    # d = 4: W, b and v.
    assert sum(leaf.size for leaf in jax.tree.leaves(sent[2])) == 4 * 4 + 4 + 4
