"""Traced programs kept from one process to the next: found again, the same, and never another simulation's."""

import dataclasses
import os
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from fedjax_mm.methods import method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.fedprox import FedProx
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.experiment import prepare
from fedjax_mm.simulation import compiled, facts, shelf
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.shelf import Shelf, open_shelf


@method
class Own(FedAvg):
    """A user's own method."""

    name: ClassVar[str] = "own"


@pytest.fixture
def place(tmp_path):
    return Shelf(tmp_path / "traced", "maker")


def build(sim, place, method=None, federation=None, **options):
    federation = federation or sim.alike()
    settings = sim.make_settings(federation, **({"rounds": 2, "eval_every": 2, "model": "shared"} | options))
    population = build_population(settings.seeds, [federation] * len(settings.seeds))
    return build_engine(method or FedAvg(), population, settings, shelf=place)


def refuse(*_, **__):
    raise AssertionError("traced again")


def test_a_second_engine_traces_nothing_and_gives_the_same_bits(sim, place, monkeypatch):
    """On two devices, whose program is the more intricate one."""
    options = {"devices": 2, "seeds": (0, 3), "participation": 2, "momentum": 0.5}
    expected, first = sim.run(build(sim, None, **options)), build(sim, place, **options)
    assert first.devices == 2
    found = sim.run(first)
    monkeypatch.setattr(facts, "predictor_names", refuse)
    monkeypatch.setattr(export, "export", refuse)
    again = sim.run(build(sim, place, **options))
    for other in (found, again):
        assert not sim.same_bits(expected.end, other.end)
        sim.assert_blocks_agree(expected.blocks[-1], other.blocks[-1], 0)
    assert len(list(place.folder.iterdir())) == 2


def test_numbers_are_arguments_and_the_state_is_given_up(sim, place, monkeypatch):
    state = build(sim, place).initial_state()
    ends = []
    for lr in (0.03, 0.3):
        engine = build(sim, place, lr=lr)
        state = engine.initial_state()
        ends.append(sim.host(engine.run_block(state, 1, 2)[0]))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.stores))
        monkeypatch.setattr(export, "export", refuse)
    assert sim.gap(*ends) > 1e-3


VARIANTS = [
    {},
    {"lr": 0.5},
    {"momentum": 0.5},
    {"clip": 1.0},
    {"optimizer": "adam"},
    {"batch": 3},
    {"participation": 2},
    {"seeds": (4,)},
    {"precision": "float64"},
    {"rounds": 4},
    {"method": FedAvg(blocks="naive")},
    {"method": FedProto()},
    {"method": FedProx(mu=0.5)},
    {"method": FedProx(mu=0.7)},
    {"federation": "mixed", "method": FedProto(), "model": "pool"},
]


@pytest.mark.slow
def test_one_mark_means_one_program(sim, place, monkeypatch):
    """Whatever sets two simulations apart: where their programs differ, so do their marks."""
    asked, texts = [], {}
    monkeypatch.setattr(Shelf, "program", lambda self, mark, trace: asked.append(mark))
    monkeypatch.setattr(compiled, "jax", _Lowered(texts, asked))
    for variant in VARIANTS:
        options = dict(variant)
        federation = getattr(sim, options.pop("federation", "alike"))()
        with jax.enable_x64(options.get("precision") == "float64"):
            engine = build(sim, place, federation=federation, **options)
            for length in (1, 2) if not variant else (2,):
                with pytest.raises(_Enough):
                    engine._program(0, length, engine.initial_state())
    assert len(asked) == len(VARIANTS) + 1
    assert all(len(found) == 1 for found in texts.values())
    # Of the variants, only seeds and numbers share programs.
    assert len(texts) == len(VARIANTS) + 1 - 3


class _Enough(Exception):
    pass


class _Lowered:
    """In the place of `jax`: lowers and notes the text instead of compiling."""

    def __getattr__(self, name):
        return getattr(jax, name)

    def __init__(self, texts, asked):
        self.texts, self.asked = texts, asked

    def jit(self, function, **options):
        def lower(*arguments):
            text = jax.jit(function, **options).lower(*arguments).as_text()
            self.texts.setdefault(self.asked[-1], set()).add(text)
            raise _Enough

        return type("Jitted", (), {"lower": staticmethod(lower)})


def double(value):
    return export.export(jax.jit(lambda x: x * value))(jnp.ones(2))


def test_damaged_files_are_not_believed(place):
    assert place.facts("facts", lambda: {"a": 1}) == place.facts("facts", refuse) == {"a": 1}
    place.program("double", lambda: double(2))
    np.testing.assert_array_equal(place.program("double", refuse).call(jnp.ones(2)), [2, 2])
    for path in place.folder.iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    assert place.facts("facts", lambda: {"a": 2}) == place.facts("facts", refuse) == {"a": 2}
    np.testing.assert_array_equal(place.program("double", lambda: double(3)).call(jnp.ones(2)), [3, 3])
    np.testing.assert_array_equal(place.program("double", refuse).call(jnp.ones(2)), [3, 3])


def test_other_makers_and_parts_have_other_marks(place):
    mark = place.mark("a", np.arange(3))
    assert mark == place.mark("a", np.arange(3))
    others = [("b", np.arange(3)), ("a", np.arange(4)), ("a", np.arange(3.0)), ("a", np.arange(3)[None]), ("a",)]
    assert len({mark, *(place.mark(*parts) for parts in others)}) == 6
    assert dataclasses.replace(place, made_by="another version").mark("a", np.arange(3)) != mark


def test_the_oldest_files_go(place, monkeypatch):
    monkeypatch.setattr(shelf, "MOST", 2)
    for number in range(4):
        place.facts(f"{number}", lambda: {})
        os.utime(place.folder / f"{number}.json", (number, number))
    assert sorted(file.name for file in place.folder.iterdir()) == ["2.json", "3.json"]


def test_a_folder_that_cannot_be_written_is_no_error(place):
    place.folder.write_text("in the way")
    assert place.facts("facts", lambda: {"a": 1}) == {"a": 1}
    np.testing.assert_array_equal(place.program("double", lambda: double(2)).call(jnp.ones(2)), [2, 2])


def test_what_cannot_be_finished_leaves_nothing_behind(place, monkeypatch):
    def full(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(shelf.pathlib.Path, "replace", full)
    assert place.facts("facts", lambda: {"a": 1}) == {"a": 1}
    assert list(place.folder.iterdir()) == []


def test_users_own_methods_are_traced_each_time(sim, place):
    assert build(sim, place, method=Own()).shelf is None
    entries = make_entries(["fedavg", Own])
    experiment = prepare(entries, sim.alike(), {"rounds": 1, "model": "shared", "devices": 1}, shelf=place)
    assert all(engine.shelf is None for engine in experiment.engines.values())
    assert not place.folder.exists()


def test_the_maker_is_the_package_its_libraries_and_their_configuration(monkeypatch):
    before = shelf._tracer()
    assert shelf._tracer() == before
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_something")
        assert shelf._tracer() != before
    with monkeypatch.context() as patch:
        patch.setattr(shelf.importlib.metadata, "version", lambda name: "0")
        assert shelf._tracer() != before
    precision = jax.config.jax_default_matmul_precision
    try:
        jax.config.update("jax_default_matmul_precision", "float32")
        assert shelf._tracer() != before
    finally:
        jax.config.update("jax_default_matmul_precision", precision)
    assert shelf._tracer() == before


def test_it_lies_beside_jaxs_cache_if_there_is_one(tmp_path):
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        jax.config.update(names[1], str(tmp_path))
        assert open_shelf().folder == tmp_path / "traced"
        jax.config.update(names[0], False)
        assert open_shelf() is None
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
