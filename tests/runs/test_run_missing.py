"""Missing modalities in runs: saved, the same for every method, the same again."""

import json
import shutil

import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.data import save_npz
from fedjax_mm.errors import UsageError
from fedjax_mm.federation import SPLITS
from fedjax_mm.runs import files
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.execute import Execution
from fedjax_mm.runs.experiment import prepare
from fedjax_mm.runs.manifest import federation_options

# Clients of one shape compile once.
OPTIONS = {"missing": "hom,0.6:0.6", "test_missing": "hom,mod"}
SETTINGS = {"rounds": 2, "eval_every": 1}


@pytest.fixture(scope="module")
def sensors(tmp_path_factory):
    """60 samples of three clients in recording order, two modalities of three features, from a file."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    inputs = {name: rng.normal(size=(60, 3)) + np.eye(3)[y] * 2 for name in ("a", "b")}
    path = tmp_path_factory.mktemp("data") / "sensors.npz"
    save_npz(fmm.from_arrays(inputs, y, client=np.repeat(list("xyz"), 20), order=np.arange(60)), path)
    return fmm.load_data(path)


@pytest.fixture(scope="module")
def run(sensors, tmp_path_factory):
    federation = fmm.federate(sensors, **OPTIONS)
    out = tmp_path_factory.mktemp("runs") / "run"
    return fmm.simulate("local", federation, out=out, **SETTINGS)


def test_split_and_masks_are_saved_with_the_run(run, sensors):
    federation = fmm.federate(sensors, **OPTIONS)
    header, arrays = files.read_npz(run.path / "federation" / "0.npz")
    assert header["settings"] == dict(federation.settings) and header["data"]["sha256"] == sensors.sha256
    assert header["counts"] == dict(federation.counts) and header["missing_rates"] == federation.missing_rates
    assert np.array_equal(arrays["observed"], federation.observed) and arrays["observed"].dtype == bool
    assert np.array_equal(arrays["holds"], federation.holds)
    assert arrays["clients"].tolist() == ["x", "y", "z"] and arrays["modalities"].tolist() == ["a", "b"]
    for number, part in enumerate(SPLITS):
        for client in range(3):
            rows = np.flatnonzero((arrays["client"] == client) & (arrays["part"] == number))
            assert np.array_equal(rows, federation.table(part).of(client))
    described = json.loads((run.path / "manifest.json").read_text())["federation"]
    assert (described["missing"], described["test_missing"]) == ("hom,0.6:0.6", "hom,mod")
    table = fmm.load_run(run.path).missing()
    assert len(table) == 1
    assert table["samples given a modality back"][0] == federation.counts["samples given a modality back"] > 0
    assert table["sample axis, before repair"][0] == federation.missing_rates["sample axis"]["before repair"] > 0
    assert described["counts"] == [dict(federation.counts)] and described["missing_rates"] == [federation.missing_rates]


def test_every_method_has_the_same_table(sensors):
    federation = fmm.federate(sensors, missing="0.5:0.5,high", test_missing="hom,mod", split_seed=1)
    experiment = prepare(make_entries(["local", "fedavg"]), federation, SETTINGS)
    tables = [experiment.engines[label].population.tables for label in ("local", "fedavg")]
    assert tables[0].observed is tables[1].observed
    assert np.array_equal(np.asarray(tables[0].observed)[0, :-1], federation.observed)
    assert np.array_equal(np.asarray(tables[0].info.modalities), federation.holds)


def test_a_stopped_run_goes_on_with_the_same_masks(run, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(run.path, out)
    shutil.rmtree(out / "checkpoints" / "local" / "2")
    resumed = fmm.resume(out)
    for name in ("rounds.csv", "clients.csv", "summary.json"):
        assert (out / name).read_bytes() == (run.path / name).read_bytes()
    assert resumed.costs().loc["local", "rounds_run"] == 3


def test_other_masks_are_not_gone_on_with(run, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(run.path, out)
    shutil.rmtree(out / "checkpoints" / "local" / "2")
    content = json.loads((out / "manifest.json").read_text())
    content["federation"]["missing"] = "hom,high"
    (out / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="the federation comes out differently"):
        fmm.resume(out)


def test_each_split_seed_has_masks_of_its_own(sensors, tmp_path, monkeypatch):
    monkeypatch.setattr(Execution, "run", lambda self, report: None)
    federation = fmm.federate(sensors, missing="hom,high")
    fmm.simulate("local", federation, out=tmp_path / "out", rounds=1, seeds=(0, 4), split_seed="each")
    saved = {path.name: files.read_npz(path)[1]["observed"] for path in (tmp_path / "out" / "federation").iterdir()}
    assert set(saved) == {"0.npz", "4.npz"} and not np.array_equal(saved["0.npz"], saved["4.npz"])
    assert np.array_equal(saved["4.npz"], fmm.federate(sensors, missing="hom,high", split_seed=4).observed)


def test_a_manifest_from_before_there_was_missingness(run):
    described = dict(run.manifest["federation"])
    for name in ("missing", "test_missing", "missing_protocol", "empty"):
        del described[name]
    assert "missing" not in federation_options(described) and federation_options(described)["partition"] == "natural"
    with pytest.raises(KeyError):
        federation_options({"missing": "mod,mod"})
