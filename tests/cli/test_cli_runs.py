import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import fedjax_mm as fmm
from fedjax_mm.cli import request
from fedjax_mm.methods import available
from fedjax_mm.runs import files, options
from fedjax_mm.simulation.engine import Engine

TABLES = ("rounds.csv", "clients.csv", "subsets.csv", "summary.json")
SHORT = ["--rounds", "4", "--eval-every", "2", "--seeds", "2"]


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run of `local` on the natural clients, which hold every modality: one shape under model=shared."""
    from fedjax_mm.cli import main

    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["run", "--method", "local", "--data", str(tiny), *SHORT, "--out", str(out), "--quiet"]) == 0
    return out


def test_a_run_prints_its_table(call, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "out"
    code, text, err = call("run", "--method", "local", "--data", tiny, "--rounds", "1", "--out", out)
    assert code == 0
    assert "tiny, natural, 3 clients, 1 round" in text
    assert "±" not in text
    assert "1 seed (0), one split (split seed 0)" in " ".join(text.split())
    rows = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│ local")]
    results = files.read_json(out / "summary.json")["local"]
    first = ["test/macro_f1/client_mean", "test/macro_f1/client_mean:last"]
    second = [f"test/{metric}/pooled" for metric in ("accuracy", "loss", "ece", "brier")]
    for row, head, names, digits in zip(rows, (["local", "head"], ["local"]), (first, second), (4, 3), strict=True):
        assert [cell.strip() for cell in row] == [*head, *(f"{results[name]['mean']:.{digits}f}" for name in names)]
    assert all(header in text for header in ("macro-F1", "NLL", "ECE", "Brier"))
    chosen = "selected by validation macro-F1 (select=macro_f1, model=shared): each client at its own best validation"
    assert chosen in " ".join(text.split())
    assert f"Run directory: {out}" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("Run directory"))
    # Not a terminal: a line before compiling, and one per block.
    assert re.fullmatch(r"local: compiling\nlocal: round 1 of 1, \d+ s\n", err)


def test_several_methods_are_compared_with_the_first_seed_by_seed(call, tiny, tmp_path):
    out = tmp_path / "out"
    code, text, _ = call(
        "compare", "--methods", "local,fedproto", "--data", tiny, "--rounds", "1", "--seeds", "3", "--out", out
    )
    assert code == 0
    assert "(at least 0.25 with 3 seeds)" in " ".join(text.split())
    found = fmm.load_run(out).compare("fedproto", "local")
    low, high = found.interval
    assert f"fedproto: {found.mean:+.4f} [{low:+.4f}, {high:+.4f}], p = {found.p:.3g}" in text


def test_quiet_prints_only_the_directory(call, finished, tmp_path):
    # And a finished run has nothing to do (T91).
    code, out, err = call("resume", finished, "--quiet")
    assert (code, out.strip()) == (0, str(finished))
    assert err == f"fedjax-mm: {finished} is finished: nothing to do\n"
    code, out, _ = call("resume", finished)
    assert code == 0
    assert "±" in out


def test_the_manifest_says_what_was_called_and_reruns(call, finished, tmp_path):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["settings"]["rounds"] == 4
    code, _, _ = call("rerun", finished / "manifest.json", "--out", tmp_path / "again", "--quiet")
    assert code == 0
    for name in TABLES:
        assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes()


def test_dry_run_writes_and_compiles_nothing(call, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engine, "run_block", None)
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ["--data", tiny, "--partition", "m1+", "--clients", "3", *SHORT, "--dry-run", "--out", "out"]
    code, out, err = call("compare", "--methods", "fedavg,fedproto", *arguments)
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "fedavg averages encoders, which differ in shape under model=pool: lg_fedavg takes its place" in text
    assert "lg_fedavg: executor map (" in text
    assert "dnn 3-" in text
    assert "Nothing was compiled or written" in text
    assert list(tmp_path.iterdir()) == []


def test_configuration_files_and_options(tiny, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        f'methods = "fedproto,local"\ndata = "{tiny}"\npartition = "all"\nclients = 2\neval-every = 5\n'
        "seeds = [1, 2]\nparticipation = 1\n[set]\nlr = 0.5\nencoders = ['dnn_bn']\nclip = 'none'\nfedproto.lam = 2\n"
    )
    given = request.merged("compare", {"config": str(path), "clients": "3", "set_": ["lr=0.25"], "quiet": False})
    experiment = request.experiment("compare", given)
    settings = experiment.settings
    assert experiment.federations[0].size == 3
    assert (settings.eval_every, settings.seeds, settings.lr, settings.clip) == (5, (1, 2), 0.25, None)
    assert (settings.participation, settings.encoders) == (1, ("dnn_bn",))
    assert [(entry.label, entry.options.get("lam")) for entry in experiment.entries] == [
        ("fedproto", 2.0),
        ("local", None),
    ]
    assert isinstance(settings.participation, int)


def test_a_manifest_is_a_configuration_file(finished):
    path = str(finished / "manifest.json")
    experiment = request.experiment("run", request.merged("run", {"config": path, "rounds": "6", "set_": None}))
    stored = json.loads((finished / "manifest.json").read_text())
    from fedjax_mm.runs import manifest

    again = manifest.describe(experiment, [])
    for part in ("data", "federation", "methods"):
        assert again[part] == stored[part]
    assert again["settings"] == {**stored["settings"], "rounds": 6}


def test_widths_survive_the_manifest(tiny):
    from fedjax_mm.runs import manifest

    chosen = {"method": "local", "data": str(tiny), "partition": "all", "model": "pool"}
    given = request.merged("run", chosen | {"clients": "6", "set_": ["encoders=mlp", "widths=none,8-4"]})
    experiment = request.experiment("run", given)
    assert experiment.settings.widths == ((), (8, 4))
    stores = experiment.engines["local"].context.stores
    assert {str(spec) for spec in stores["encoders"].networks} == {"mlp 3-48", "mlp 3-8-4-48"}
    again = manifest.restore(json.loads(json.dumps(manifest.describe(experiment, []))))
    assert again.settings == experiment.settings


def test_each_split_seed(tiny):
    given = request.merged(
        "run",
        {"method": "local", "data": str(tiny), "partition": "m1", "split_seed": "each", "seeds": "4,2", "set_": []},
    )
    experiment = request.experiment("run", given)
    assert [federation.split_seed for federation in experiment.federations] == [4, 2]


def test_interruption_says_how_to_go_on(call, tiny, tmp_path, monkeypatch):
    # T96.
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run_block", interrupt)
    out = tmp_path / "out"
    code, _, err = call("run", "--method", "local", "--data", tiny, *SHORT, "--out", out, "--quiet")
    assert code == 130
    assert err == f"fedjax-mm: interrupted; to go on: fedjax-mm resume {out}\n"
    assert set(TABLES) <= {path.name for path in out.iterdir()}


def test_interrupted_before_there_is_a_directory(call, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(request, "experiment", interrupt)
    assert call("run", "--method", "local") == (130, "", "fedjax-mm: interrupted\n")


def test_what_is_replaced_is_told_before_the_run(call, tiny, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "run_block", interrupt)
    arguments = ["--data", tiny, "--model", "pool", *SHORT, "--out", tmp_path / "out", "--quiet"]
    _, _, err = call("run", "--method", "fedavg", *arguments)
    assert err.startswith(
        "fedjax-mm: fedavg averages encoders, which differ in shape under model=pool: lg_fedavg takes"
    )


def test_every_option_is_listed_with_its_meaning(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in call("list", "options")[1].splitlines()]
    listed = {row[0]: row[1:] for row in rows if row and row[0]}
    own = {f"{name}.{option}" for name, cls in available().items() for option in options.fields(cls)}
    assert {"fedproto.lam", "mfedpba.server_clip"} <= own
    assert {*request.TRAINING, *request.FEDERATION_SET, *own} == set(listed)
    assert all(default and values and meaning for default, values, meaning in listed.values())
    assert listed["batch"][0] == "12 (pool), 32 (shared)"
    assert listed["fractions"][0] == "0.64,0.11,0.25"
    assert listed["gap"][0].endswith("else 0")
    assert listed["missing_protocol"][:2] == ["sensing if the data has an order, else adni", "sensing, adni"]
    assert listed["optimizer"][1] == "sgd, adam"


def test_modality_names_are_not_broken(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)
    text = call("run", "--method", "local", "--partition", "all", "--clients", "2", "--dry-run")[1]
    words = set(text.replace("│", " ").split())
    assert {"fourier", "profile", "karhunen", "pixel", "zernike", "morphology"} <= words


def test_a_failed_run_exits_with_1(call, tiny, tmp_path):
    # T111, T114.
    arguments = ["--data", tiny, *SHORT, "--set", "lr=1e30", "--out", tmp_path / "out", "--quiet"]
    code, out, err = call("run", "--method", "local", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("fedjax-mm: local: not finite in round ")
    assert err.count("\n") == 1


def test_lists_and_descriptions(call, tiny, monkeypatch):
    monkeypatch.setenv("FEDJAX_MM_DATA", str(tiny.parent))
    for what, word in [
        ("methods", "fedproto.lam=1.0"),
        ("data", "tiny"),
        ("partitions", "m1+"),
        ("regimes", "Beta(45, 20)"),
        ("options", "fedproto.lam"),
    ]:
        code, out, err = call("list", what)
        assert (code, err) == (0, "")
        assert word in out
    code, out, _ = call("describe", "tiny")
    assert code == 0
    assert "samples: 60" in out


@pytest.mark.slow
def test_killed_and_resumed_in_processes_of_their_own(finished, tiny, tmp_path, call):
    """kill -9 in the middle, then resume: the three files of the straight run, bit for bit."""
    arguments = ["--methods", "local,fedproto", "--data", str(tiny), "--rounds", "5", "--eval-every", "1"]
    arguments += ["--seeds", "2", "--participation", "2", "--set", "encoders=mlp", "--set", "widths=none", "--quiet"]
    command = [sys.executable, "-m", "fedjax_mm.cli"]
    quickly = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run([*command, "compare", *arguments, "--out", str(tmp_path / "straight")], check=True, env=quickly)
    killed = tmp_path / "killed"
    process = subprocess.Popen([*command, "compare", *arguments, "--out", str(killed)], env=quickly)
    deadline = time.monotonic() + 600
    while not (killed / "checkpoints" / "fedproto" / "2").exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, "resume", str(killed), "--quiet"], check=True, env=quickly)
    for name in TABLES:
        assert (killed / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
