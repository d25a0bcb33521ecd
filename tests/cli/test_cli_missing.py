"""Missing modalities on the command line."""

import json

import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.cli import missing, request
from fedjax_mm.data import save_npz

# Clients of one shape compile once.
REGIME = ["--missing", "hom,high", "--test-missing", "hom,none"]


@pytest.fixture(scope="module")
def sensors(tmp_path_factory):
    """The path of 90 samples of three clients in recording order, two modalities."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    path = tmp_path_factory.mktemp("data") / "sensors.npz"
    inputs = {name: rng.normal(size=(90, 3)) for name in ("a", "b")}
    save_npz(fmm.from_arrays(inputs, y, client=np.repeat(list("xyz"), 30), order=np.arange(90)), path)
    return path


def experiment(command, *, config=None, set_=(), **values):
    return request.experiment(command, request.merged(command, {"config": config, "set_": list(set_), **values}))


def test_options_reach_the_federation(sensors):
    made = experiment(
        "run",
        method="local",
        data=str(sensors),
        missing="mod,high",
        test_missing="hom",
        set_=["missing_protocol=adni", "empty=repair"],
    ).federations[0]
    expected = {"missing": "mod,high", "test_missing": "hom,none", "missing_protocol": "adni", "empty": "repair"}
    assert expected.items() <= made.settings.items()


def test_a_dry_run_says_what_will_be_missing(call, sensors, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = call("run", "--method", "local", "--data", sensors, *REGIME, "--dry-run")
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    federation = fmm.federate(fmm.load_data(sensors), missing="hom,high", test_missing="hom,none")
    rate = federation.missing_rates["sample axis"]["before repair"]
    assert "Missing hom,high (missing_protocol=sensing, empty=repair): clients lack" in text
    assert f"samples lack {100 * rate:.1f} % of their client's as drawn (0.0 % in the data)" in text
    repaired = federation.counts["samples given a modality back"]
    assert f"{repaired} samples were given one back, 0 samples dropped." in text
    assert "Missing in test samples hom,none (missing_protocol=sensing, empty=repair): clients lack 0.0 % of" in text


def test_nothing_is_said_where_nothing_is_missing(call, sensors):
    assert "Missing" not in call("run", "--method", "local", "--data", sensors, "--dry-run")[1]


def test_lines_over_several_splits():
    axes = {"client axis": {"before repair": 0.0, "after repair": 0.0}}
    rates = [
        {**axes, "sample axis": {"natural": 0.1, "before repair": 0.1, "after repair": after}} for after in (0.1, 0.05)
    ]
    counts = [{"samples dropped for want of a modality": 0}, {"samples dropped for want of a modality": 3}]
    counts[1]["test samples of classes nobody trains"] = 2
    natural, untrained = missing.lines({"missing": "hom,none"}, counts, rates)
    assert natural.startswith("Missing hom,none: clients lack 0.0 % of the modalities as drawn, 0.0 % in the end; ")
    assert "10.0 % of their client's as drawn (10.0 % in the data), 7.5 % in the end" in natural
    assert natural.endswith("0-3 samples dropped.")
    assert untrained == "0-2 test samples are of classes that no client trains: they are counted as they are answered."


def test_a_run_prints_and_keeps_it_and_its_manifest_gives_it_back(call, sensors, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    code, text, _ = call("run", "--method", "local", "--data", sensors, *REGIME, "--rounds", "1", "--out", out)
    assert code == 0
    assert "Missing hom,high (missing_protocol=sensing, empty=repair): " in text
    manifest = out / "manifest.json"
    first = fmm.federate(fmm.load_data(sensors), missing="hom,high", test_missing="hom,none")
    again = experiment("run", config=str(manifest)).federations[0]
    assert again.settings == first.settings and np.array_equal(again.observed, first.observed)
    changed = experiment("run", config=str(manifest), missing="hom,mod").federations[0]
    assert (changed.settings["missing"], changed.settings["test_missing"]) == ("hom,mod", "hom,none")
    # A test missingness that only followed training follows it again.
    content = json.loads(manifest.read_text())
    content["federation"]["test_missing"] = content["federation"]["missing"]
    manifest.write_text(json.dumps(content))
    changed = experiment("run", config=str(manifest), missing="hom,mod").federations[0]
    assert changed.settings["test_missing"] == "hom,mod"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--missing", "hihg,none"], "unknown regime of the client axis in missing 'hihg'; did you mean high"),
        (["--missing", "hom,0.5:2"], "sample axis of missing is '0.5:2': p00 and p11"),
        (["--test-missing", "hom"], None),
        (["--missing", "a,b,c"], "missing is 'a,b,c', must be CLIENT,SAMPLE"),
        (["--set", "empty=keep"], "unknown way to treat empty samples: 'keep'"),
        (["--set", "missing=mod"], "missing is not for --set: it is an option of its own, --missing"),
        (["--partition", "masks"], "partition 'masks' makes a client of each natural mask with at least 8 samples"),
        (["--partition", "silos", "--alpha", "0.5"], "--alpha has no effect on partition silos"),
    ],
)
def test_usage(call, sensors, tmp_path, arguments, message):
    code, _, err = call(
        "run", "--method", "local", "--data", sensors, *arguments, "--dry-run", "--out", tmp_path / "out"
    )
    if message is None:
        assert (code, err) == (0, "")
        return
    assert code == 2
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_groups_that_are_torn_are_told():
    told = missing.lines({"missing": "hom,none"}, [{"groups on several sides": 3}], ())
    assert told == ["3 groups have samples in more than one of training, validation and test."]
    assert missing.lines({"missing": "hom,none"}, [{"groups on several sides": 0}], ()) == []
