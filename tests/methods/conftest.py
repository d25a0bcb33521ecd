"""Tiny federations in double precision, and a laboratory that compiles each method on each of them once."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import from_arrays
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.tables import index_table
from fedjax_mm.methods import Info, Lane, Spec
from fedjax_mm.methods.layout import with_fusion
from fedjax_mm.methods.method import Batch
from fedjax_mm.models import HeadSpec, networks
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import network_of

SAMPLES, CLASSES = 72, 3
DEFAULTS = {
    "rounds": 3,
    "eval_every": 1,
    "model": "shared",
    "dim": 4,
    "epochs": 2,
    "batch": 8,
    "lr": 0.1,
    "fusion": "sum",
    "precision": "float64",
    "executor": "lockstep",
    "devices": 1,
}


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def make_data():
    rng = np.random.default_rng(0)
    y = np.arange(SAMPLES) % CLASSES
    inputs = {
        name: (rng.normal(size=(CLASSES, width))[y] + rng.normal(size=(SAMPLES, width))).astype(np.float32)
        for name, width in (("a", 3), ("b", 2))
    }
    return from_arrays(inputs, y, classes=["red", "green", "blue"])


def make_federation(data, train, holds=None):
    """A federation with these training samples; samples from 48 on are for validation and test."""
    clients, rest = len(train), np.arange(48, SAMPLES)
    return Federation(
        data=data,
        clients=tuple(map(str, range(clients))),
        holds=np.ones((clients, 2), bool) if holds is None else np.asarray(holds, bool),
        observed=data.observed,
        train=index_table([np.asarray(rows) for rows in train], SAMPLES),
        validation=index_table(np.array_split(rest[::2], clients), SAMPLES),
        test=index_table(np.array_split(rest[1::2], clients), SAMPLES),
        split_seed=0,
        settings={},
    )


@dataclasses.dataclass
class Trial:
    """A run, round by round: host copies of the states (the first is the initial one) and what the blocks left."""

    engine: object
    states: list
    blocks: list

    def of_client(self, module, client, round_=-1):
        """The parameters one client has in a module after a round, one tree a network, by modality."""
        store = self.engine.context.stores[module]
        values = self.states[round_].stores[module]
        found = [network_of(store, values, client, j) for j in range(store.network.shape[1])]
        return [tree for tree in found if tree is not None]

    def term(self, name):
        """A term or counter, `[rounds]`."""
        return np.array([sums[-1, 0] / weights[-1, 0] for sums, weights in (b.terms[name] for b in self.blocks)])


class Laboratory:
    """Engines, compiled once; a world may be swapped for another of the same shapes without compiling."""

    def __init__(self):
        self.data = make_data()
        self.engines = {}
        self.starts = {}

    def federation(self, train, holds=None, data=None):
        return make_federation(data or self.data, train, holds)

    def build(self, method, federation, **settings):
        resolved = Settings(**DEFAULTS | settings).resolved("all", federation.size)
        return build_engine(method, build_population((0,), [federation]), resolved)

    def engine(self, method, federation, **settings):
        key = (jax.tree.structure(method), id(federation), tuple(sorted(settings.items())))
        if key not in self.engines:
            # The federation is kept too, so that no other can get its id.
            self.engines[key] = self.build(method, federation, **settings), federation
        return self.engines[key][0]

    def run(self, method, federation, *, tables=None, **settings):
        """Runs a method; `tables` maps the population's tables to others of the same shapes."""
        engine = self.engine(method, federation, **settings)
        if id(engine) not in self.starts:
            self.starts[id(engine)] = to_host(engine.initial_state())
        world = engine.world._replace(
            method=jax.tree.map(lambda number: jnp.full(1, number, jnp.float64), method),
            tables=tables(engine.world.tables) if tables else engine.world.tables,
        )
        swapped = dataclasses.replace(engine, world=world)
        trial = Trial(engine, [self.starts[id(engine)]], [])
        state = to_device(trial.states[0])
        for first, length in swapped.blocks():
            state, block = swapped.run_block(state, first, length)
            trial.states.append(to_host(state))
            trial.blocks.append(block)
        return trial


OBSERVED = np.array([[True, True, False, True, False], [True, False, True, True, False]])
"""Five samples of two modalities: both, the first, the second, both, and padding."""


def make_lane(method, *, observed=OBSERVED, fusion="attention", seed=0, classes=3, dim=4):
    """One lane of a method with fresh networks, all different, and features drawn at random."""
    modalities, samples = observed.shape
    spec = Spec(("a", "b"), classes, 2, dim, fusion, "shared", HeadSpec(dim, (dim,), classes), 5, 1)
    modules = {n: m for n, m in with_fusion(method.layout(spec), spec).modules.items() if m.network is not None}
    keys = iter(jax.random.split(jax.random.key(seed), 50))

    def fresh(module):
        copies = [networks.init(module.network, next(keys), jnp.float64)[0] for _ in range(modalities)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *copies) if module.per_modality else copies[0]

    def function(module):
        def run(params, *inputs):
            return networks.apply(module.network, params, {}, *inputs, dtype=jnp.float64)[0]

        return jax.vmap(run) if module.per_modality else run

    rng = np.random.default_rng(seed)
    valid = observed.any(axis=0)
    y = np.where(valid, rng.integers(classes, size=samples), 0)
    views = ("current", "download", "previous")
    features = {view: rng.normal(size=(modalities, samples, dim)) * observed[..., None] for view in views}
    counts = np.bincount(y[valid], minlength=classes)
    return Lane(
        features=jax.tree.map(jnp.asarray, features),
        params={view: {name: fresh(module) for name, module in modules.items()} for view in views},
        batch=Batch(*map(jnp.asarray, (y.astype(np.int32), valid, observed, np.arange(samples, dtype=np.int32)))),
        info=Info(*map(jnp.asarray, (0, 0, np.ones(modalities, bool), counts, valid.sum(), observed.sum(axis=1)))),
        state={},
        download={},
        key=jax.random.key(seed),
        round=jnp.int32(1),
        networks={name: function(module) for name, module in modules.items()},
        encoder={"proximal": jnp.asarray(rng.random(modalities))},
    )


def with_inputs(lane, features, params):
    """The lane with other current features and parameters."""
    return dataclasses.replace(
        lane, features={**lane.features, "current": features}, params={**lane.params, "current": params}
    )


@functools.cache
def _program(method, terms):
    def losses(inputs, lane, batch):
        lane = dataclasses.replace(with_inputs(lane, *inputs), batch=batch)
        total, found = method.loss(lane)
        return {"total": total, **{name: found[name][0] for name in terms}}, (total, found, method.predict(lane))

    def program(inputs, others, batch, template):
        lane = dataclasses.replace(template.lane, **others)
        outputs = losses(inputs, lane, batch)[1]
        slopes = {
            name: jax.grad(lambda inputs, name=name: losses(inputs, lane, batch)[0][name])(inputs)
            for name in ("total", *terms)
        }
        return outputs, slopes

    return jax.jit(program, static_argnums=3)


class Template:
    """What of a lane is not traced; equal to any other, so that a program serves all lanes of its method."""

    def __init__(self, lane):
        self.lane = lane

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return isinstance(other, Template)


def probe(method, lane, *terms):
    """A method's functions on a lane, compiled once for each method.

    Returns:
        The loss, its terms, the scores, and for `total` and each of the named terms the gradients with respect to the
        current features and parameters.
    """
    inputs = lane.features["current"], lane.params["current"]
    others = {"features": lane.features, "params": lane.params, "info": lane.info}
    (loss, found, scores), slopes = _program(method, terms)(inputs, others, lane.batch, Template(lane))
    return types.SimpleNamespace(loss=loss, terms=found, scores=scores, slopes=slopes)


def to_host(tree):
    return jax.tree.map(np.array, tree)


def to_device(tree):
    return jax.tree.map(jnp.array, tree)


@pytest.fixture
def bench():
    """Single lanes, on which a method's functions can be called as they are."""
    return types.SimpleNamespace(lane=make_lane, with_inputs=with_inputs, probe=probe, observed=OBSERVED)


@pytest.fixture(scope="session")
def laboratory():
    return Laboratory()


@pytest.fixture(scope="session")
def three(laboratory):
    """Three clients with both modalities and 8, 13 and 19 samples; only the last holds the third class."""
    first, second, third = (np.flatnonzero(laboratory.data.labels[:48] == c) for c in range(CLASSES))
    return laboratory.federation(
        [[*first[:5], *second[:3]], [*first[5:9], *second[3:12]], [*first[9:13], *second[12:13], *third[:14]]]
    )


@pytest.fixture(scope="session")
def alone(laboratory):
    """One client with 20 samples: two full batches of eight and half of one."""
    return laboratory.federation([np.arange(20)])


@pytest.fixture
def close():
    """Asserts that two lists of arrays are equal to 1e-12."""

    def check(got, expected):
        got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
        assert len(got) == len(expected) > 0
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

    return check


@pytest.fixture
def same():
    """Whether two lists of arrays are equal bit for bit."""

    def check(a, b):
        pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
        assert pairs
        return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)

    return check
