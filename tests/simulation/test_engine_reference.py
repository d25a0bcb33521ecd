"""The engine against a loop over clients in NumPy: forward, backward and optimiser by hand, in float64.

The reference reads the index tables and the initial weights; batches and cohorts it draws again from the documented
keys.
"""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest

from fedjax_mm.methods import Layout, Spec, method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.lg_fedavg import LgFedAvg
from fedjax_mm.methods.local import Local
from fedjax_mm.simulation.keys import derive

pytestmark = pytest.mark.usefixtures("x64")
SEEDS = (0, 3)
TOLERANCE = 1e-9


# --- multilayer perceptrons, by hand ---------------------------------------------------------------------------------


def forward(layers, x):
    """Outputs of every layer, the input first; ReLU after all but the last."""
    outputs = [x]
    for position, (kernel, bias) in enumerate(layers):
        x = x @ kernel + bias
        if position < len(layers) - 1:
            x = np.maximum(x, 0)
        outputs.append(x)
    return outputs


def backward(layers, outputs, slope):
    """Gradients of every layer, and of the input, from the gradient of the output."""
    gradients = []
    for position in reversed(range(len(layers))):
        if position < len(layers) - 1:
            slope = slope * (outputs[position + 1] > 0)
        gradients.append((outputs[position].T @ slope, slope.sum(axis=0)))
        slope = slope @ layers[position][0].T
    return gradients[::-1], slope


def log_softmax(logits):
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


# --- a client --------------------------------------------------------------------------------------------------------


class Client:
    """One client: its networks, as lists of layers by name ("head" or a modality), and its data."""

    def __init__(self, world, k, networks):
        self.world, self.k, self.networks = world, k, networks

    def features(self, networks, rows):
        """Outputs of the encoders, the mask, the fused feature."""
        federation, inputs = self.world.federation, self.world.inputs
        observed = federation.observed[rows] & federation.holds[self.k]
        outputs = {}
        for j, name in enumerate(federation.data.modalities):
            if federation.holds[self.k, j]:
                outputs[name] = forward(networks[name], np.where(observed[:, [j]], inputs[name][rows], 0))
        fused = np.zeros((len(rows), 3))
        for j, name in enumerate(federation.data.modalities):
            if name in outputs:
                fused += np.where(observed[:, [j]], outputs[name][-1], 0)
        count = np.maximum(observed.sum(axis=1), 1)[:, None]
        return outputs, observed, fused / count, count

    def gradients(self, networks, rows, prototypes=None, lam=0.0):
        federation = self.world.federation
        y = federation.data.labels[rows]
        outputs, observed, z, count = self.features(networks, rows)
        head = forward(networks["head"], z)
        slope = (np.exp(log_softmax(head[-1])) - np.eye(head[-1].shape[1])[y]) / len(rows)
        gradients = {}
        gradients["head"], slope = backward(networks["head"], head, slope)
        if prototypes is not None:
            value, present = prototypes
            slope = slope + lam * 2 * np.where(present[y][:, None], z - value[y], 0) / (z.shape[1] * len(rows))
        for j, name in enumerate(federation.data.modalities):
            if name in outputs:
                own = np.where(observed[:, [j]], slope / count, 0)
                gradients[name] = backward(networks[name], outputs[name], own)[0]
        return gradients

    def train(self, key, epochs, batch, rules, traces, **objective):
        """Local training: new networks and momentum traces."""
        rows = self.world.federation.train.of(self.k)
        networks = self.networks
        for epoch in range(epochs):
            order = self.world.order(derive(derive(key, "epoch", epoch), "order"), rows)
            for start in range(0, len(order), batch):
                gradients = self.gradients(networks, order[start : start + batch], **objective)
                networks, traces = step(networks, gradients, traces, rules)
        return networks, traces


def step(networks, gradients, traces, rules):
    """SGD by optimiser group: clip the group's gradient as one, add the decay, keep the momentum."""
    new, new_traces = {}, {}
    for names, rule in rules:
        names = [name for name in networks if (name == "head") in names]
        norm = np.sqrt(sum((leaf**2).sum() for name in names for layer in gradients[name] for leaf in layer))
        clip = rule.get("clip")
        factor = 1.0 if clip is None or norm <= clip else clip / norm
        for name in names:
            new[name], new_traces[name] = [], []
            for position, layer in enumerate(networks[name]):
                old = traces[name][position] if traces else tuple(np.zeros_like(leaf) for leaf in layer)
                slopes = [factor * g for g in gradients[name][position]]
                slopes = [g + rule.get("weight_decay", 0.0) * p for g, p in zip(slopes, layer, strict=True)]
                trace = tuple(g + rule.get("momentum", 0.0) * t for g, t in zip(slopes, old, strict=True))
                new_traces[name].append(trace)
                new[name].append(tuple(p - rule["lr"] * t for p, t in zip(layer, trace, strict=True)))
    return new, new_traces


# --- a federation ----------------------------------------------------------------------------------------------------


class World:
    """Standardised data of a federation; the orders and cohorts of a seed."""

    def __init__(self, federation):
        self.federation = federation
        self.inputs = {}
        for j, name in enumerate(federation.data.modalities):
            rows = [federation.train.of(k) for k in range(federation.size) if federation.holds[k, j]]
            rows = np.concatenate(rows)
            rows = rows[federation.observed[rows, j]]
            values = federation.data.inputs[name].astype(np.float64)
            shift = values[rows].mean(axis=0).astype(np.float32)
            scale = (1 / values[rows].std(axis=0)).astype(np.float32)
            self.inputs[name] = (values - shift.astype(np.float64)) * scale.astype(np.float64)

    def order(self, key, rows):
        """The rows by ascending uniform numbers."""
        scores = np.asarray(jax.random.uniform(key, (len(rows),), np.float32))
        return rows[np.argsort(scores, kind="stable")]

    def cohort(self, key, round_, size):
        if size == self.federation.size:
            return list(range(size))
        scores = np.asarray(jax.random.uniform(derive(key, "cohort", round_), (self.federation.size,), np.float32))
        return sorted(np.argsort(scores, kind="stable")[:size].tolist())


def average(networks, weights):
    """Weighted mean of networks of one shape."""
    total = sum(weights)
    return [
        tuple(
            sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)) / total
            for leaves in zip(*layers, strict=True)
        )
        for layers in zip(*networks, strict=True)
    ]


def layers_of(tree):
    """A network's parameters as (kernel, bias) in order."""
    if "hidden" in tree:
        parts = [tree["hidden"][i] for i in sorted(tree["hidden"], key=int)] + [tree["last"]]
    else:
        parts = [tree["layers"][i] for i in sorted(tree["layers"], key=int)]
    return [(np.asarray(part["kernel"], np.float64), np.asarray(part["bias"], np.float64)) for part in parts]


def reference(federation, key, initial, *, rounds, size, epochs, batch, rules, keep=False, shared=(), lam=None):
    """All clients after some rounds, and the prototypes if there are any.

    `initial[k]` are client k's networks; those named in `shared` are averaged by the samples that trained them. With
    `lam`, clients exchange prototypes.
    """
    world, classes = World(federation), len(federation.data.classes)
    current = [dict(networks) for networks in initial]
    traces = [{} for _ in current]
    value, present = np.zeros((classes, 3)), np.zeros(classes, bool)
    for round_ in range(1, rounds + 1):
        cohort = world.cohort(key, round_, size)
        objective = {} if lam is None else {"prototypes": (value, present), "lam": lam}
        sums, counts = np.zeros((classes, 3)), np.zeros(classes)
        for k in cohort:
            client = Client(world, k, current[k])
            local = derive(key, "local", round_, k, 0)
            current[k], trace = client.train(local, epochs, batch, rules, traces[k] if keep else {}, **objective)
            traces[k] = trace
            rows = federation.train.of(k)
            z, y = client.features(current[k], rows)[2], federation.data.labels[rows]
            np.add.at(sums, y, z)
            np.add.at(counts, y, 1)
        value = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], value)
        present = present | (counts > 0)
        for name in shared:
            holders = [k for k in cohort if name in current[k]]
            weights = [trained_by(federation, k, name) for k in holders]
            if sum(weights) > 0:
                mean = average([current[k][name] for k in holders], weights)
                for networks in current:
                    if name in networks:
                        networks[name] = mean
    return current, (value, present), world


def trained_by(federation, k, name):
    rows = federation.train.of(k)
    if name == "head":
        return len(rows)
    return int(federation.observed[rows, federation.data.modalities.index(name)].sum())


def confusion(world, networks, k, split):
    federation, classes = world.federation, len(world.federation.data.classes)
    rows = federation.table(split).of(k)
    client = Client(world, k, networks)
    scores = forward(networks["head"], client.features(networks, rows)[2])[-1]
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (federation.data.labels[rows], scores.argmax(axis=1)), 1)
    return table


# --- the engine against it -------------------------------------------------------------------------------------------


@method
class TwoRates(LgFedAvg):
    """Another rate and another clip for the head."""

    name: ClassVar[str] = "two_rates"

    def layout(self, spec: Spec) -> Layout:
        modules = super().layout(spec).modules
        return Layout(dict(modules) | {"head": dataclasses.replace(modules["head"], group="head")})

    def optimisers(self, default, layout):
        return {"main": default, "head": dataclasses.replace(default, lr=0.2, clip=0.3)}


BOTH = (True, False)
PLAIN = [(BOTH, {"lr": 0.1})]
FULL = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02, "clip": 1.0}
ENCODERS = ("a", "b", "c")
CASES = {
    "local": (Local(), {"lr": 0.1}, {"rules": PLAIN}),
    "fedavg": (
        FedAvg(),
        {**FULL, "optimizer_state": "keep"},
        {"rules": [(BOTH, FULL)], "keep": True, "shared": (*ENCODERS, "head")},
    ),
    "lg_fedavg": (
        TwoRates(),
        {"lr": 0.1, "momentum": 0.5, "clip": 1.0},
        {
            "rules": [
                ((False,), {"lr": 0.1, "momentum": 0.5, "clip": 1.0}),
                ((True,), {"lr": 0.2, "momentum": 0.5, "clip": 0.3}),
            ],
            "shared": ("head",),
        },
    ),
    "fedproto": (FedProto(lam=0.7), {"lr": 0.1}, {"rules": PLAIN, "lam": 0.7}),
}


def networks_of(sim, engine, state, seed, k):
    modalities = engine.context.modalities
    found = {name: sim.network(engine, state, "encoders", seed, k, j) for j, name in enumerate(modalities)}
    found["head"] = sim.network(engine, state, "head", seed, k)
    return {name: layers_of(tree) for name, tree in found.items() if tree is not None}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c == "fedavg" else pytest.mark.slow) for c in CASES])
def test_stacked_equals_a_loop_over_clients(case, sim):
    chosen, options, objective = CASES[case]
    federation = sim.hetero()
    engine = sim.make_engine(
        chosen,
        federation,
        model="shared",
        fusion="mean",
        partition="all",
        precision="float64",
        participation=2,
        seeds=SEEDS,
        **options,
    )
    start = engine.initial_state()
    before = sim.host(start)  # the run gives its buffers up
    initial = [[networks_of(sim, engine, before, s, k) for k in range(4)] for s in range(2)]
    result = sim.run(engine, start)
    sat_out = 0
    for s, seed in enumerate(SEEDS):
        ends, (value, present), world = reference(
            federation, jax.random.key(seed), initial[s], rounds=3, size=2, epochs=2, batch=4, **objective
        )
        for k in range(4):
            got = networks_of(sim, engine, result.end, s, k)
            assert got.keys() == ends[k].keys()
            worst = sim.gap(ends[k], got)
            assert worst < TOLERANCE, (seed, k, worst)
            sat_out += sim.gap(initial[s][k], got) == 0
            for part, split in enumerate(("validation", "test")):
                at = engine.predictors.index("head")
                counted = result.blocks[-1].evaluation.confusion[at, s, k, part]
                np.testing.assert_array_equal(counted, confusion(world, ends[k], k, split))
        if case == "fedproto":
            np.testing.assert_array_equal(present, result.end.server.present[s])
            assert present.sum() == 3, "the class nobody holds has no prototype"
            np.testing.assert_allclose(result.end.server.value[s], value, rtol=0, atol=TOLERANCE * np.abs(value).max())
    assert sat_out < 8, "something must have been trained"
