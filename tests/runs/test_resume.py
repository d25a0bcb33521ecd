import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.methods import Method, method
from fedjax_mm.runs import checkpoints
from fedjax_mm.simulation.engine import Engine


def breaking(monkeypatch, error, at=3):
    """Every block that starts in round `at` raises `error` once it has run."""
    original = Engine.run_block

    def run_block(self, state, first, length):
        result = original(self, state, first, length)
        if first == at:
            raise error
        return result

    monkeypatch.setattr(Engine, "run_block", run_block)


def test_interrupted_and_resumed_is_straight(straight, federation, settings, tmp_path, monkeypatch, tables):
    # T89, T92, T96: the last complete block counts, and the same bits come out.
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        breaking(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            fmm.simulate("local", federation, out=out, **settings)
    assert checkpoints.latest(out / "checkpoints" / "local") == 2
    assert fmm.load_run(out).rounds()["round"].max() == 2
    resumed = fmm.resume(out)
    assert tables(out) == tables(straight.path)
    # T88: each round once.
    rounds = resumed.rounds().query("metric == 'ce' and seed == 3")["round"]
    assert list(rounds) == [1, 2, 3, 4]
    assert resumed.costs().loc["local", "rounds_run"] == 4
    assert json.loads((out / "manifest.json").read_text())["methods"]["local"]["executor"] == "map"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["flux", *(pytest.param(name, marks=pytest.mark.marathon) for name in ("moon", "fedrod", "fedper"))]
)
def test_what_a_method_keeps_for_each_client_survives_an_interruption(name, federation, tmp_path, monkeypatch, tables):
    """Private heads and confidence heads; the networks a client last finished with (MOON); clients outside a cohort."""
    options = {"model": "shared", "encoders": ("mlp",), "widths": ((),), "dim": 4, "batch": 4, "seeds": (3,)}
    options |= {"rounds": 3, "eval_every": 1, "participation": 2, "momentum": 0.5, "optimizer_state": "keep"}
    chosen = fmm.methods.find(name)(**({"hidden": 3} if name == "flux" else {}))
    straight = fmm.simulate(chosen, federation, out=tmp_path / "straight", **options)
    with monkeypatch.context() as patch:
        breaking(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            fmm.simulate(chosen, federation, out=tmp_path / "run", **options)
    assert checkpoints.latest(tmp_path / "run" / "checkpoints" / name) == 2
    fmm.resume(tmp_path / "run")
    assert tables(tmp_path / "run") == tables(straight.path)
    ends = [fmm.load_run(tmp_path / folder)._answerer(0, name, None)[1] for folder in ("straight", "run")]
    for (path, a), b in zip(jax.tree.leaves_with_path(ends[0]), jax.tree.leaves(ends[1]), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), jax.tree_util.keystr(path)


def test_records_without_their_checkpoint_are_done_again(straight, tmp_path, tables):
    # Killed between the record of rounds 3 and 4 and their checkpoint; the tables are those of round 4, too.
    out = tmp_path / "run"
    shutil.copytree(straight.path, out)
    shutil.rmtree(out / "checkpoints" / "local" / "4")
    fmm.resume(out)
    assert tables(out) == tables(straight.path)


def test_a_damaged_record_gives_way_to_the_one_before(straight, tmp_path, tables):
    out = tmp_path / "run"
    shutil.copytree(straight.path, out)
    record = out / "checkpoints" / "local" / "record.npz"
    record.write_bytes(bytes(200) + record.read_bytes()[200:])
    with pytest.warns(UserWarning, match="trying what was recorded before"):
        fmm.resume(out)
    assert tables(out) == tables(straight.path)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(straight, tmp_path, tables):
    # T97. In a comparison whose second method is not begun: one is gone on with, the other starts (T95).
    out = tmp_path / "run"
    shutil.copytree(straight.path, out)
    shutil.rmtree(out / "checkpoints" / "local" / "2")
    damaged = out / "checkpoints" / "local" / "4" / "description"
    for file in damaged.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["settings"]["rounds"] = 5
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(RunError, match="holds no intact checkpoint"):
        fmm.resume(out)
    # What was recorded is not lost.
    assert tables(out) == tables(straight.path)


def test_a_finished_run_has_nothing_to_do(straight, tmp_path, tables):
    # T91; and the tables are made again if they were not.
    out = tmp_path / "run"
    shutil.copytree(straight.path, out)
    (out / "rounds.csv").unlink()
    with pytest.warns(UserWarning, match="is finished: nothing to do"):
        run = fmm.resume(out)
    assert tables(out) == tables(straight.path)
    assert run.results() == straight.results()


def test_another_configuration_is_refused(straight, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(straight.path, out)
    shutil.rmtree(out / "checkpoints" / "local" / "4")
    manifest = json.loads((out / "manifest.json").read_text())

    def resume(**changes):
        (out / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        fmm.resume(out)

    with pytest.raises(RunError, match=re.escape("settings.lr is 0.5, was 0.05")):
        resume(settings={**manifest["settings"], "lr": 0.5})
    with pytest.raises(UsageError, match="SHA-256"):
        resume(data={**manifest["data"], "sha256": "0" * 64})
    with pytest.raises(UsageError, match="the federation comes out differently"):
        resume(federation={**manifest["federation"], "split_seed": 1})
    versions = {**manifest["versions"], "numpy": "1.0"}
    with pytest.warns(UserWarning, match=r"numpy is .*, was 1\.0"), pytest.raises(RunError):
        resume(settings={**manifest["settings"], "lr": 0.5}, versions=versions)


def test_what_is_not_finite_stops_the_run_and_names_the_client(federation, settings, tmp_path):
    # T111; the directory stays valid.
    with pytest.raises(RunError, match=r"local: not finite in round \d: .* of client \d \(seed \d\)"):
        fmm.simulate("local", federation, out=tmp_path / "run", **{**settings, "lr": 1e30})
    assert fmm.load_run(tmp_path / "run").rounds().empty


def test_a_failing_block_keeps_the_earlier_ones_and_the_cause(federation, settings, tmp_path, monkeypatch):
    # T114.
    breaking(monkeypatch, MemoryError("too big\nsecond line"))
    with pytest.raises(RunError, match=r"local failed in rounds 3 to 4: MemoryError: too big; executor=debug") as info:
        fmm.simulate("local", federation, out=tmp_path / "run", **settings)
    assert isinstance(info.value.__cause__, MemoryError)
    assert fmm.load_run(tmp_path / "run").rounds()["round"].max() == 2


@method
class Talkative(Method):
    """Reports a vector."""

    name = "talkative"

    def server(self, server, mean, stack, mask, key):
        server, _ = super().server(server, mean, stack, mask, key)
        return server, {"drift": (jnp.ones(3), jnp.ones(3))}


def test_a_term_that_is_not_a_number_is_refused(federation, settings):
    # T110.
    with pytest.raises(RunError, match=r"talkative: term 'drift' has shape \(2, 2, 3\).*one number per round and seed"):
        fmm.simulate(Talkative(), federation, **settings)


def test_a_failing_client_is_named_by_the_debug_executor(federation, settings, monkeypatch):
    # T114.
    from fedjax_mm.simulation.executors import Debug

    def call(self, advance, carry, cohort, active):
        def failing(plan, carry, lanes, active):
            if int(lanes[0]) == 4:
                raise KeyError("gone")
            return advance(plan, carry, lanes, active)

        return original(self, failing, carry, cohort, active)

    original = Debug.__call__
    monkeypatch.setattr(Debug, "__call__", call)
    with pytest.raises(RunError, match=r"client 1 \(seed 7\) failed.*KeyError: 'gone'"):
        fmm.simulate("local", federation, executor="debug", **{**settings, "rounds": 1})
