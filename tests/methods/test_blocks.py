"""Averages of what exists per modality: over those who trained it, or over everyone with untrained copies."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Layout, Module, Spec, Upload, find, method
from fedjax_mm.methods.flux import Flux
from fedjax_mm.models import HeadSpec

OPTIONS = {"fusion": "attention", "widths": ((2,),), "rounds": 1, "encoders": ("dnn_bn",)}
PER_MODALITY = ("encoders", "confidence")
SHARED = ("fusion", "head")
SPEC = Spec(("a", "b"), 3, 2, 4, "attention", "shared", HeadSpec(4, (4,), 3), 5, 1)


@method
class Watched(Flux):
    """Flux that keeps what its hooks were shown."""

    name: ClassVar[str] = "watched"

    def init_client(self, key, info):
        return {"start": jnp.zeros((2, self.hidden)), "end": jnp.zeros((2, self.hidden))}

    def upload(self, start, end, sums, info, state):
        assert set(start) == set(end) == {"fusion", "head", "confidence"}, "private leaves cannot be sent"
        biases = {k: v["confidence"]["layers"][0]["bias"] for k, v in (("start", start), ("end", end))}
        return Upload(state=biases)


@pytest.fixture(scope="module")
def halves(laboratory):
    """Two clients of six samples; both hold a, only the second holds b."""
    return laboratory.federation([np.arange(6), np.arange(6, 12)], holds=[[True, False], [True, True]])


@pytest.fixture(scope="module")
def partial(laboratory, halves):
    return laboratory.run(Watched(hidden=3), halves, **OPTIONS)


@pytest.fixture(scope="module")
def naive(laboratory, halves):
    return laboratory.run(Watched(hidden=3, blocks="naive"), halves, **OPTIONS)


def halfway(before, after):
    return jax.tree.map(lambda x, y: (x + y) / 2, before, after)


def test_with_one_holder_of_two_a_naive_step_is_half_the_step(partial, naive, close):
    for module in PER_MODALITY:
        (_, b0), (a1, b1) = (partial.of_client(module, 1, round_) for round_ in (0, 1))
        a, b = naive.of_client(module, 1, 1)
        close(a, a1)
        close(b, halfway(b0, b1))
        assert max(np.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (b0, b1)), strict=True)) > 1e-3
    for module in SHARED:
        close(naive.of_client(module, 0), partial.of_client(module, 0))


def test_statistics_are_those_of_the_copies_too(partial, naive, close):
    (bucket,) = {int(partial.engine.context.stores["encoders"].bucket[1, 1])}
    row = partial.engine.context.stores["encoders"].rows["statistics"][1, 1]
    first, part, whole = (
        jax.tree.map(lambda leaf: leaf[row], run.states[r].stores["encoders"][bucket]["statistics"])
        for run, r in ((partial, 0), (partial, 1), (naive, 1))
    )
    close(whole, halfway(first, part))


def test_copies_are_billed_both_ways(partial, naive):
    def numbers(client):
        """Parameters of all a client is sent, and mean and variance for each of an encoder's two hidden units."""
        sent = [partial.of_client(module, client) for module in (*SHARED, *PER_MODALITY)]
        return sum(leaf.size for leaf in jax.tree.leaves(sent)) + 4 * len(partial.of_client("encoders", client))

    first, second = numbers(0), numbers(1)
    assert first < second
    np.testing.assert_array_equal(partial.term("bytes_up"), 8 * (first + second) / 2)
    for way in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(naive.term(way), 8 * second)


def test_hooks_see_one_network_per_modality_and_0_where_a_client_has_none(partial, close):
    start, end = (np.asarray(partial.states[1].clients[name]) for name in ("start", "end"))
    initial = [head["layers"][0]["bias"] for head in partial.of_client("confidence", 1, 0)]
    np.testing.assert_array_equal(start[1], initial)
    np.testing.assert_array_equal(start[0, 0], initial[0])
    np.testing.assert_array_equal((start[0, 1], end[0, 1]), 0)
    # Of b's head the second client is the only holder: what it had at the end is the average.
    close(list(end[1, 1:]), [partial.of_client("confidence", 1)[1]["layers"][0]["bias"]])
    assert len(partial.of_client("confidence", 0)) == 1


def test_every_modalitys_head_starts_from_its_own_weights(partial):
    a, b = partial.of_client("confidence", 1, 0)
    assert not np.array_equal(a["layers"][0]["kernel"], b["layers"][0]["kernel"])


def test_a_module_starts_only_from_one_of_its_architecture():
    heads = {"head": Module(HeadSpec(4, (), 3)), "other": Module(HeadSpec(4, (2,), 3), start="head")}
    with pytest.raises(UsageError, match=r"'other' starts from 'head'"):
        Layout({"encoders": Module(None), **heads})
    with pytest.raises(UsageError, match=r"starts from 'nobody'"):
        Layout({"encoders": Module(None), "head": dataclasses.replace(heads["head"], start="nobody")})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "moon", "fedper", "fedrod", "flux"])
def test_every_method_that_averages_encoders_offers_both(name):
    weights = [find(name)(blocks=blocks).layout(SPEC).modules["encoders"].weight for blocks in ("partial", "naive")]
    assert weights == ["samples", "everyone"]
