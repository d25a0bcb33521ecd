"""Wrong usage: exit code 2, one clear message, and nothing written."""

import subprocess
import sys

import numpy as np
import pytest

WRONG = [
    (["--method", "fedporto"], "unknown method 'fedporto'; did you mean fedproto"),
    (["--method", "local,fedproto"], "unknown method 'local,fedproto'"),
    (["--method", "nowhere:Mine"], "cannot import nowhere"),
    (["--method", "own.py"], "'own.py' is a file: name the class in it, as in own.py:Class"),
    (["--method", "local", "--method", "fedavg"], "--method is given twice"),
    (["--method", "local", "--seeds", "1", "--seeds=2"], "--seeds is given twice; separate seeds by commas"),
    (["--method", "nowhere.py:Mine"], "there is no file nowhere.py"),
    ([], "run needs --method; valid: fedavg, fedper, fedproto"),
    (["--method", "local", "--data", "mfaet"], "unknown data set 'mfaet'; did you mean mfeat?"),
    (["--method", "local", "--data", "gone.npz"], "there is no file or folder gone.npz"),
    (["--method", "local", "--label", "z"], "'z'"),
    (["--method", "local", "--partition", "m3"], "unknown partition 'm3'; did you mean m"),
    (["--method", "local", "--alhpa", "1"], "No such option: --alhpa"),
    (["--method", "local", "--partition", "all", "--alpha", "0"], "alpha must be a positive finite number or 'iid'"),
    (["--method", "local", "--partition", "all", "--alpha", "idd"], "alpha must be a positive finite number or 'iid'"),
    (["--method", "local", "--alpha", "0.5"], "--alpha has no effect on natural clients"),
    (["--method", "local", "--clients", "4"], "has 3 natural clients, not 4"),
    (["--method", "local", "--clients", "few"], "--clients is 'few', must be an integer"),
    (["--method", "local", "--partition", "all", "--clients", "16"], "16"),
    (["--method", "local", "--partition", "all", "--set", "minimum=30,30,30"], "90"),
    (["--method", "local", "--set", "minimum=1"], "minimum must be three counts"),
    (["--method", "local", "--split", "sorted"], "unknown split 'sorted'"),
    (["--method", "local", "--split-seed", "any"], "--split-seed is 'any', must be an integer of at least 0, or each"),
    (["--method", "local", "--participation", "0"], "participation is 0, must be a count from 1 to the 3 clients"),
    (["--method", "local", "--participation", "4"], "participation is 4, must be a count from 1 to the 3 clients"),
    (["--method", "local", "--participation", "1.5"], "participation is 1.5, must be a rate in (0, 1]"),
    (
        ["--method", "local", "--participation", "half"],
        "participation is 'half', must be a finite number or an integer",
    ),
    (["--method", "local", "--rounds", "0"], "rounds is 0, must be at least 1"),
    (["--method", "local", "--rounds", "2.5"], "rounds is '2.5', must be an integer"),
    (["--method", "local", "--eval-every", "0"], "eval_every is 0, must be at least 1"),
    (["--method", "local", "--seeds", "0"], "seeds is 0, must be at least 1"),
    (["--method", "local", "--seeds", "1,1"], "distinct"),
    (["--method", "local", "--model", "pol"], "unknown model 'pol'; did you mean pool?"),
    (["--method", "local", "--executor", "maps"], "unknown executor 'maps'; did you mean map"),
    (["--method", "local", "--precision", "float16"], "unknown precision 'float16'; did you mean float64 or float32?"),
    (["--method", "local", "--set", "lr"], "--set lr: must be key=value"),
    (["--method", "local", "--set", "lr=fast"], "lr is 'fast', must be a finite number"),
    (["--method", "local", "--set", "lr=1", "--set", "lr=2"], "--set lr is given twice"),
    (["--method", "local", "--set", "epoch=1"], "unknown option 'epoch'; did you mean epochs?"),
    (["--method", "local", "--set", "rounds=1"], "rounds is not for --set: it is an option of its own, --rounds"),
    (["--method", "local", "--set", "split_seed=1"], "an option of its own, --split-seed"),
    # T87b.
    (["--method", "local", "--set", "drop_last=False"], "drop_last is 'False', must be true or false"),
    (["--method", "local", "--set", "encoders=dnn,cnn"], "unknown encoder 'cnn'; did you mean cnn2d or cnn1d"),
    (["--method", "fedproto", "--set", "lamb=1"], "unknown option 'lamb'; did you mean lam?"),
    (["--method", "fedproto", "--set", "lam=none"], "fedproto.lam is 'none', must be a finite number"),
    (["--method", "fedproto", "--set", "fedproto.lamb=1"], "unknown option of fedproto 'lamb'; did you mean lam?"),
    (["--method", "fedproto", "--set", "fedprot.lam=1"], "unknown method 'fedprot'; did you mean fedproto?"),
    (["--method", "fedproto", "--set", "lam=-1"], "fedproto: lam is -1.0, must be"),
    (["--method", "local", "--config", "gone.toml"], "--config: there is no file gone.toml"),
]


def assert_refused(call, arguments, message, folder):
    before = sorted(folder.rglob("*"))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("fedjax-mm: ")
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"), WRONG, ids=lambda value: value[:40] if isinstance(value, str) else " ".join(value)
)
def test_wrong_usage(call, tiny, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    data = [] if "--data" in arguments else ["--data", tiny]
    assert_refused(call, ["run", *arguments, *data, "--out", tmp_path / "out"], message, tmp_path)


def test_in_compare_a_method_option_names_its_method(call, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = ["compare", "--data", tiny, "--methods", "local,fedproto", "--set"]
    message = "lam is a method's option: name the method, as in fedproto.lam"
    assert_refused(call, [*start, "lam=1"], message, tmp_path)
    assert_refused(call, [*start, "lamb=1"], "unknown option 'lamb'", tmp_path)
    assert_refused(call, [*start, "fedavg.lam=1"], "unknown method 'fedavg'", tmp_path)
    assert_refused(call, ["compare", "--data", tiny, "--methods", ","], "no method is named", tmp_path)


BAD_FILES = {
    "labels": ({"x.a": np.zeros((8, 2))}, "y"),
    "rows": ({"x.a": np.zeros((8, 2)), "y": np.arange(7) % 2}, "7"),
    "objects": ({"x.a": np.array([{}] * 8, object), "y": np.arange(8) % 2}, "object"),
    "nan": ({"x.a": np.full((8, 2), np.nan), "y": np.arange(8) % 2}, "x.a"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(call, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    arrays, word = BAD_FILES[kind]
    np.savez(tmp_path / "bad.npz", **arrays)
    assert_refused(call, ["run", "--method", "local", "--data", "bad.npz"], word, tmp_path)
    code, out, err = call("describe", "bad.npz")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_an_occupied_directory_is_refused_first(call, tiny, tmp_path):
    # Before the data is even loaded: the data set named here does not exist.
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert_refused(
        call,
        ["run", "--method", "local", "--data", "gone", "--out", out],
        f"{out} exists and is not an empty folder; nothing is overwritten",
        tmp_path,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "is not a TOML file"),
        ("round = 3", "unknown option in c.toml 'round'; did you mean rounds"),
        ("rounds = 1.5", "rounds is 1.5, must be an integer"),
        ("set = 3", "c.toml: set must be a table"),
        ("data = 3", "data in c.toml is 3, must be text"),
        ("quiet = 'True'", "quiet in c.toml is 'True', must be true or false"),
        ("[set]\nlr = 'fast'", "lr is 'fast', must be a finite number"),
        ("[set]\nfedproto.lam = 1", "unknown method 'fedproto'"),
        ("methods = 'local'", "unknown option in c.toml 'methods'; did you mean method"),
    ],
)
def test_wrong_configuration_files(call, tiny, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(text)
    data = [] if text.startswith("data") else ["--data", tiny]
    assert_refused(call, ["run", "--method", "local", "--config", "c.toml", *data], message, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", "gone"], "gone is not a run directory"),
        (["rerun", "gone.json"], "gone.json does not exist"),
        (["list", "method"], "unknown listing 'method'; did you mean methods? valid: methods, data, partitions, "),
        (["list"], "list needs one of methods, data, partitions, regimes, options"),
        (["compare", "--methods", "a", "--methods", "b"], "--methods is given twice; separate names by commas"),
        (["compare", "--methods", "local,local"], "method 'local' is named twice"),
        (["describe", "mfaet"], "did you mean mfeat?"),
        (["rnu"], "No such command 'rnu'"),
        (["resume"], "Missing argument 'RUN'"),
    ],
)
def test_other_commands(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert_refused(call, arguments, message, tmp_path)


def test_help_needs_no_jax():
    code = (
        "import sys; from fedjax_mm.cli import main; "
        "codes = [main([*words, '--help']) for words in ([], ['run'], ['compare'])]; "
        "assert codes == [0, 0, 0]; assert 'jax' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_names_every_training_option(call, monkeypatch):
    from fedjax_mm.cli.request import FEDERATION_SET, OWN, TRAINING

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    text = " ".join(call("run", "--help")[1].replace("│", " ").split())
    assert f"Training: {', '.join(TRAINING)}." in text
    assert f"Federation: {', '.join(FEDERATION_SET)}." in text
    for name in OWN:
        assert f"--{name.replace('_', '-')}" in text


def test_without_a_command_there_is_help(call):
    code, out, err = call()
    assert code == 2
    assert "Usage" in out
    assert err == ""
    assert call("--version")[1].strip()
