"""Sweeps: every combination of a grid, numbers side by side in one program."""

import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import UsageError
from fedjax_mm.runs import files
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.execute import together
from fedjax_mm.runs.experiment import prepare
from fedjax_mm.runs.grid import configurations
from fedjax_mm.simulation.engine import Engine

BASE = make_entries(["fedproto"])[0]
GRID = {"lam": [0.5, 2.0], "lr": [0.05, 0.01]}
LABELS = ["lam=0.5+lr=0.05", "lam=0.5+lr=0.01", "lam=2+lr=0.05", "lam=2+lr=0.01"]


def test_every_combination_has_its_options_and_a_label():
    entries = configurations(BASE, {"lam": ["0.5", "2"], "batch": ["4", "8"], "weight": ["uniform"]})
    assert [entry.label for entry in entries] == [
        f"lam={lam}+batch={batch}+weight=uniform" for lam in ("0.5", "2") for batch in (4, 8)
    ]
    assert [entry.options["lam"] for entry in entries] == [0.5, 0.5, 2.0, 2.0]
    assert [entry.training for entry in entries] == [{"batch": 4}, {"batch": 8}] * 2
    assert configurations(BASE, {"fedproto.lam": [1.0]})[0].label == "lam=1"


def test_shards_are_all_of_it_once():
    grid = {"lam": [0.1, 0.2, 0.3, 0.4, 0.5], "lr": [0.1, 0.2]}
    parts = [[entry.label for entry in configurations(BASE, grid, f"{i}/3")] for i in (1, 2, 3)]
    assert sorted(label for part in parts for label in part) == sorted(
        entry.label for entry in configurations(BASE, grid)
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("grid", "shard", "message"),
    [
        ({}, None, "needs a grid"),
        ({"lamda": [1]}, None, "did you mean"),
        ({"lam": ["much"]}, None, "lam is 'much'"),
        ({"lam": [1, 1.0]}, None, "each once"),
        ({"lam": []}, None, "needs values"),
        ({"rounds": [1, 2]}, None, "option"),
        ({"lam": [1]}, "0/2", "i from 1 to n"),
        ({"lam": [1]}, "2/2", "empty"),
        ({"lam": [1]}, "half", "i/n"),
    ],
)
def test_wrong_grids_are_refused(grid, shard, message):
    with pytest.raises(UsageError, match=message):
        configurations(BASE, grid, shard)


def test_a_value_out_of_range_is_refused_before_anything_runs(federation):
    with pytest.raises(UsageError, match="lr is -1"):
        fmm.sweep("fedproto", federation, grid={"lr": [0.1, -1.0]}, rounds=1)
    with pytest.raises(UsageError, match="lam is -1"):
        fmm.sweep("fedproto", federation, grid={"lam": [-1.0]}, rounds=1)


def test_numbers_are_trained_together_and_structures_apart(federation):
    entries = configurations(BASE, {"lam": [0.5, 2.0], "batch": [4, 8], "lr": [0.1, 0.2]})
    groups = together(prepare(entries, federation, {"rounds": 1}))
    assert [{entry.training["batch"] for entry in group} for group in groups] == [{4}, {8}]
    assert [len(group) for group in groups] == [4, 4]


@pytest.fixture(scope="module")
def swept(federation, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "run"
    return fmm.sweep("fedproto", federation, grid=GRID, out=out, rounds=4, eval_every=2, seeds=(3, 7))


def test_a_sweep_is_a_run_of_its_configurations(swept, federation):
    assert list(swept.methods) == LABELS
    manifest = files.read_json(swept.path / "manifest.json")
    assert manifest["grid"] == ["lam", "lr"] and manifest["settings"]["nonfinite"] == "skip"
    assert manifest["methods"]["lam=2+lr=0.01"]["training"] == {"lr": 0.01}
    costs = files.read_json(swept.path / "costs.json")
    assert {costs[label]["trained_together"] for label in LABELS} == {4}
    for label, lam, lr in (("lam=2+lr=0.01", 2.0, 0.01), ("lam=0.5+lr=0.05", 0.5, 0.05)):
        alone = fmm.simulate(
            fmm.methods.FedProto(lam=lam), federation, lr=lr, rounds=4, eval_every=2, seeds=(3, 7), nonfinite="skip"
        )
        mine = swept.results()[label]["test/loss/pooled@head:last"]["per_seed"]
        theirs = alone.results()["fedproto"]["test/loss/pooled@head:last"]["per_seed"]
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    losses = [swept.results()[label]["test/loss/pooled@head:last"]["mean"] for label in LABELS]
    assert len({round(loss, 6) for loss in losses}) == 4


def test_an_interrupted_sweep_is_gone_on_with_to_the_same_bits(swept, federation, tmp_path, monkeypatch, tables):
    out, original, seen = tmp_path / "run", Engine.run_block, []

    def run_block(self, state, first, length):
        seen.append(first)
        if first == 3 and len(seen) == 2:
            raise KeyboardInterrupt
        return original(self, state, first, length)

    monkeypatch.setattr(Engine, "run_block", run_block)
    with pytest.raises(KeyboardInterrupt):
        fmm.sweep("fedproto", federation, grid=GRID, out=out, rounds=4, eval_every=2, seeds=(3, 7))
    fmm.resume(out)
    assert seen == [1, 3, 3]
    assert tables(out) == tables(swept.path)
