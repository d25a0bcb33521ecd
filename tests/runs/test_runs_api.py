import hashlib
import json
import warnings

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.experiment import prepare
from fedjax_mm.runs.manifest import describe, restore
from fedjax_mm.simulation.stores import network_of


def test_the_directory_has_what_the_design_says(both):
    names = {path.name for path in both.path.iterdir()}
    files = {"manifest.json", "rounds.csv", "clients.csv", "subsets.csv", "summary.json", "costs.json"}
    assert names == {*files, "federation", "checkpoints"}
    for label in ("local", "fedproto"):
        kept = {path.name for path in (both.path / "checkpoints" / label).iterdir()}
        assert kept == {"2", "4", "record.npz", "record.previous.npz"}
    manifest = json.loads((both.path / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["data"]["sha256"] == fmm.load_data(manifest["data"]["source"]).sha256
    assert manifest["settings"]["seeds"] == [3, 7]
    assert manifest["settings"]["batch"] == 32
    assert manifest["federation"]["partition"] == "all"
    assert manifest["methods"]["fedproto"]["options"] == {"lam": 1.0, "weight": "counts"}
    assert manifest["methods"]["local"]["executor"] == "map"
    assert manifest["methods"]["local"]["executor_reason"]
    assert manifest["methods"]["local"]["sha256"] is None
    assert manifest["git_dirty"] in ((None,) if manifest["git_commit"] is None else (True, False))
    assert {"python", "fedjax_mm", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"} == set(
        manifest["versions"]
    )
    assert set(manifest["prng"]) == {"jax_default_prng_impl", "jax_threefry_partitionable"}


def test_summary_follows_from_the_clients_table(both):
    # The pooled accuracy of the last round, recomputed from what the clients report.
    rows = both.clients().query("split == 'test' and metric == 'accuracy' and round == 4")
    rows = rows.assign(right=rows["value"] * rows["n"])
    sums = rows.groupby(["method", "seed"])[["right", "n"]].sum()
    pooled = (sums["right"] / sums["n"]).unstack("seed")
    table = both.summary("test/accuracy/pooled").xs("test/accuracy/pooled:last", level="metric")
    assert list(table.columns) == ["mean", "std", 3, 7]
    for label in ("local", "fedproto"):
        np.testing.assert_allclose(table.loc[label, [3, 7]], pooled.loc[label, [3, 7]], rtol=1e-12)
        assert table.loc[label, "mean"] == pytest.approx(pooled.loc[label].mean())
        assert table.loc[label, "std"] == pytest.approx(pooled.loc[label].std(ddof=1))


def test_a_method_alone_is_the_method_among_others(both, straight):
    rows = both.rounds().query("method == 'local'").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, straight.rounds(), check_exact=True)
    assert both.results()["local"] == straight.results()["local"]


def test_in_memory_nothing_is_written_and_everything_is_the_same(
    straight, federation, settings, tmp_path, monkeypatch, tables
):
    monkeypatch.chdir(tmp_path)
    run = fmm.simulate("local", federation, **settings)
    assert list(tmp_path.iterdir()) == []
    pd.testing.assert_frame_equal(run.rounds(), straight.rounds(), check_exact=True)
    pd.testing.assert_frame_equal(run.clients(), straight.clients(), check_exact=True)
    pd.testing.assert_frame_equal(run.summary(None), straight.summary(None), check_exact=True)
    pd.testing.assert_frame_equal(run.subsets(), straight.subsets(), check_exact=True)
    assert run.costs().loc["local", "rounds_run"] == 4
    x = {"a": federation.data.inputs["a"][:2]}
    np.testing.assert_array_equal(run.predict(0, x)["head"], straight.predict(0, x)["head"])


def test_rerun_gives_the_same_bits(straight, tmp_path, tables):
    again = fmm.rerun(straight.path / "manifest.json", out=tmp_path / "again")
    assert tables(again.path) == tables(straight.path)


def test_an_occupied_directory_is_not_touched(straight, federation, settings, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in straight.path.rglob("*")}
    with pytest.raises(UsageError, match=f"{straight.path} already holds a run"):
        fmm.simulate("local", federation, out=straight.path, **settings)
    assert {path: path.stat().st_mtime_ns for path in straight.path.rglob("*")} == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        fmm.simulate("local", federation, out=tmp_path / "file", **settings)


def test_costs(both, federation):
    costs = both.costs()
    assert list(costs.index) == ["local", "fedproto"]
    # Encoders 3 -> 128 -> 64 -> 48, twice; attention 48 -> 48 -> 1, the last without a bias; head 48 -> 48 -> 3.
    encoder = 3 * 128 + 128 + 128 * 64 + 64 + 64 * 48 + 48
    attention = 48 * 48 + 48 + 48
    head = 48 * 48 + 48 + 48 * 3 + 3
    parameters = 2 * encoder + attention + head
    assert costs.loc["local", "parameters_per_client"] == parameters
    samples = federation.train.sizes.sum()
    assert costs.loc["local", "flops_per_round_estimate"] == 6 * 3 * samples * parameters
    assert costs.loc["local", "bytes_up_per_client_and_round"] == 0
    # Three prototypes of 48 floats and a count, where a client has the class; two masks of a byte each.
    held = np.mean([len(np.unique(federation.data.labels[federation.train.of(k)])) for k in range(3)])
    assert costs.loc["fedproto", "bytes_up_per_client_and_round"] == pytest.approx(held * (48 * 4 + 4) + 2)
    steps = -(-federation.train.sizes // 32)
    assert costs.loc["local", "padding_share"] == pytest.approx(1 - samples / (steps.sum() * 32))
    assert costs.loc["local", "compile_seconds"] > 0
    assert costs.loc["local", "peak_memory_bytes"] > 2**20


def test_paired_comparison(both):
    table = both.summary("test/macro_f1/client_mean").xs("test/macro_f1/client_mean", level="metric")
    result = both.compare("fedproto", "local", metric="test/macro_f1/client_mean")
    assert result.seeds == (3, 7)
    assert result.mean == pytest.approx((table.loc["fedproto", [3, 7]] - table.loc["local", [3, 7]]).mean())
    # Macro-F1 selects under model=shared: what is looked at first.
    assert both.headline == "test/macro_f1/client_mean" and both.compare("fedproto", "local") == result
    pd.testing.assert_frame_equal(both.summary(), both.summary("test/macro_f1/client_mean"))
    pd.testing.assert_frame_equal(both.summary("test/nll/pooled"), both.summary("test/loss/pooled"))
    with pytest.raises(UsageError, match="did you mean test/accuracy/pooled"):
        both.compare("fedproto", "local", metric="test/accuracy/poled")
    with pytest.raises(UsageError, match="unknown method of the run 'fedavg'"):
        both.compare("fedavg", "local")


@pytest.mark.slow
def test_predictions_are_those_that_were_counted(both, federation):
    # Accuracy on each client's test samples, recomputed from predictions after loading.
    run = fmm.load_run(both.path)
    last = run.clients().query("method == 'fedproto' and split == 'test' and round == 4 and seed == 7")
    for client, name in enumerate(federation.clients):
        rows = federation.test.of(client)
        x = {modality: federation.data.inputs[modality][rows] for modality in ("a", "b")}
        scores = run.predict(client if client else name, x, method="fedproto", seed=7)
        assert set(scores) == {"prototype", "prototype_own", "head"}
        for predictor, values in scores.items():
            assert values.shape == (len(rows), 3)
            accuracy = np.mean(values.argmax(1) == federation.data.labels[rows])
            told = last.query(f"client == '{name}' and metric == 'accuracy@{predictor}'")["value"].item()
            assert accuracy == pytest.approx(told)


def test_features_are_those_of_the_clients_own_encoders(straight, federation):
    # Standardised by hand and run through the stored weights in NumPy.
    run, data, client, seed = fmm.load_run(straight.path), federation.data, 1, 7
    x = {modality: data.inputs[modality][federation.test.of(client)] for modality in ("a", "b")}
    features = run.features(client, x, seed=seed)
    assert list(features) == ["a", "b"]
    trained = federation.train.rows[federation.train.rows < data.size]
    stores, state = run._experiment.engines["local"].context.stores, run._states["local"]

    def parameters(module, j):
        lane = run.seeds.index(seed) * federation.size + client
        found = network_of(stores[module], state.stores[module], lane, j)
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)

    for j, modality in enumerate(("a", "b")):
        seen = data.inputs[modality][trained]
        value, encoder = (x[modality] - seen.mean(0)) / seen.std(0), parameters("encoders", j)
        for layer in encoder["hidden"].values():
            value = np.maximum(value @ layer["kernel"] + layer["bias"], 0)
        value = value @ encoder["last"]["kernel"] + encoder["last"]["bias"]
        assert features[modality].shape == (len(x[modality]), 48)
        np.testing.assert_allclose(features[modality], value, atol=1e-5)
        # A modality alone has the same features: nothing of the others enters.
        np.testing.assert_array_equal(
            run.features(client, {modality: x[modality]}, seed=seed)[modality], features[modality]
        )


def test_wrong_predictions(both):
    x = {"a": np.zeros((1, 3))}
    for arguments, message in [
        ({"client": 0, "x": x}, "several methods; name one: local, fedproto"),
        ({"client": 3, "x": x, "method": "local"}, "client is 3, must be an id from 0 to 2"),
        ({"client": "9", "x": x, "method": "local"}, "unknown client '9'"),
        ({"client": 0, "x": x, "method": "local", "seed": 0}, "seed 0 is not in the run; it has 3, 7"),
        ({"client": 0, "x": {"c": x["a"]}, "method": "local"}, "by modality, of the client's: a, b"),
    ]:
        for asked in (both.predict, both.features):
            with pytest.raises(UsageError, match=message):
                asked(**arguments)


def test_only_run_directories_load(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory"):
        fmm.load_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(RunError, match="lacks data, federation, settings, methods"):
        fmm.load_run(tmp_path)


def test_data_made_in_memory_must_be_given_again(straight, tmp_path):
    manifest = json.loads((straight.path / "manifest.json").read_text())
    source, manifest["data"]["source"] = manifest["data"]["source"], ""
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    run = fmm.load_run(tmp_path)
    with pytest.raises(UsageError, match="was made in memory: pass it as data="):
        run.predict(0, {"a": np.zeros((1, 3))})
    other = fmm.from_arrays({"a": np.zeros((60, 3)), "b": np.zeros((60, 3))}, np.arange(60) % 3)
    with pytest.raises(UsageError, match="is not the one of the manifest: its SHA-256"):
        fmm.rerun(tmp_path, data=other)
    assert fmm.load_data(source).sha256 == manifest["data"]["sha256"]


OWN = """
from fedjax_mm.methods import Method, method

@method
class Mine(Method):
    name = "mine"
"""


def test_a_changed_method_of_the_users_own_is_warned_of(federation, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    experiment = prepare(make_entries(f"{file}:Mine"), federation, {"rounds": 1})
    content = describe(experiment, [])
    assert content["methods"]["mine"]["sha256"] == hashlib.sha256(OWN.encode()).hexdigest()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore(content)
    file.write_text(OWN + "# changed")
    with pytest.warns(UserWarning, match=r"mine: the file of .*mine\.py:Mine has changed"):
        restore(content)


def test_short_representations(data, federation):
    assert repr(data) == "MultimodalDataset('tiny', 60 samples, 3 classes, 2 modalities)"
    assert repr(federation) == "Federation('tiny', all, 3 clients, split seed 0)"


def test_only_public_names_are_shown():
    assert dir(fmm) == sorted([*fmm.__all__, "__version__"])


def test_the_lazy_names_are_all_there():
    for name in fmm.__all__:
        assert getattr(fmm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulte'"):
        fmm.simulte  # noqa: B018
