"""`fedjax-mm bench`: what it refuses, what it prints and writes, and that variants run in turn."""

import importlib.util
import json
import subprocess
import sys

import pytest

from fedjax_mm.bench import measure as module
from fedjax_mm.bench.measure import make_cases, measure
from fedjax_mm.cli import main
from fedjax_mm.errors import RunError, UsageError

KEYS = {"workload", "clients", "variant", "seconds_per_round", "first_call_seconds", "peak_bytes"}


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "W9"], "unknown workload 'W9'; did you mean W"),
        (["--workload", ","], "--workload names nothing"),
        (["--variants", "auto,maps"], "unknown variant 'maps'; did you mean map"),
        (["--variants", "map@0"], "variant 'map@0': after @ stands the most devices"),
        (["--variants", "torch-loop@1"], "not for PyTorch"),
        (["--clients", "10,few"], "--clients is '10,few', must be numbers of at least 1"),
        (["--seeds", "0"], "--seeds is '0', must be numbers of at least 1"),
        (["--repeats", "0"], "--repeats is '0', must be an integer of at least 1"),
        (["--json", "gone/f.json"], "--json is gone/f.json: it must be a file in a folder that exists"),
    ],
)
def test_wrong_usage(call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_reference_needs_pytorch_and_a_workload_it_can_run(call, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    code, _, err = call("--variants", "auto,torch-loop")
    assert code == 2
    assert "variant torch-loop needs PyTorch, which is not installed: pip install 'fedjax-mm[bench]'" in err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    code, _, err = call("--workload", "W1,W2", "--variants", "torch-bmm")
    assert code == 2
    assert "variant torch-bmm does not run workload W2; it runs W1" in err


def test_cases_are_every_combination_with_the_workloads_own_sizes():
    cases = make_cases("W1,W5", None, "auto,map@1", None)
    found = [(case.workload.name, case.clients, case.seeds) for case in cases]
    assert found == [("W1", 100, 1), ("W5", 20, 1), ("W5", 20, 5), ("W5", 20, 20)]
    assert {case.variants for case in cases} == {("auto", "map@1")}
    assert [case.clients for case in make_cases("W2", "10,100", "auto", "2")] == [10, 100]


def test_the_comparing_process_needs_no_jax():
    code = "import sys; import fedjax_mm.cli.benchmark; assert not {'jax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def fake(monkeypatch, tmp_path, body):
    """Puts a script in the place of the worker; it finds its request in `request` and tells with `say`."""
    script = tmp_path / "worker.py"
    start = "import json, sys\nrequest = json.loads(sys.argv[-1])\n"
    script.write_text(f"{start}def say(**content): print(json.dumps(content), flush=True)\n{body}")
    popen = subprocess.Popen
    monkeypatch.setattr(
        module.subprocess,
        "Popen",
        lambda command, **options: popen([command[0], str(script), command[-1]], **options),
    )


IN_TURN = """
log = open({log!r}, "a")
say(first_call_seconds=1.0, compile_seconds=None, rounds=2, peak_bytes=7)
for number, line in enumerate(sys.stdin):
    print(request["variant"], file=log, flush=True)
    seconds = [3.0, 1.0, 2.0][number] * (2 if request["variant"] == "map" else 1)
    say(seconds_per_round=seconds, peak_bytes=8 + number)
"""


def test_blocks_are_interleaved_and_ratios_paired(monkeypatch, tmp_path):
    log = tmp_path / "log"
    fake(monkeypatch, tmp_path, IN_TURN.format(log=str(log)))
    said = []
    (case,) = make_cases("W1", "4", "auto,map", None)
    one, two = measure(case, 3, said.append)
    assert log.read_text().split() == ["auto", "map"] * 3
    assert (one.seconds_per_round, two.seconds_per_round) == (2.0, 4.0)
    assert (one.ratio, two.ratio) == (1.0, 2.0)
    assert two.seconds == (6.0, 2.0, 4.0)
    assert (one.peak_bytes, one.rounds, one.first_call_seconds) == (10, 2, 1.0)
    assert said == [f"W1, 4 clients, {variant}: first call 1.00 s" for variant in ("auto", "map")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("say(error='ValueError: too much')", "auto on W1, 4 clients failed: ValueError: too much"),
        ("sys.exit('out of luck')", "auto on W1, 4 clients failed: exit code 1; out of luck"),
        ("import os; os.kill(os.getpid(), 9)", "auto on W1, 4 clients failed: killed by signal 9"),
    ],
)
def test_a_failing_process_is_told_with_its_message(monkeypatch, tmp_path, body, message):
    fake(monkeypatch, tmp_path, body)
    with pytest.raises(RunError, match=message):
        measure(make_cases("W1", "4", "auto", None)[0], 1, lambda line: None)


@pytest.mark.slow
def test_a_measurement_really_taken(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    file = tmp_path / "bench.json"
    code, out, err = call("--clients", 2, "--variants", "map@1", "--repeats", 1, "--json", file)
    assert code == 0, err
    assert err.startswith("W1, 2 clients, map@1: first call ")
    assert "s per round" in out and "FedAvg, MLP 784-128-10" in out
    (entry,) = json.loads(file.read_text())
    assert entry.keys() > KEYS
    assert (entry["workload"], entry["clients"], entry["variant"], entry["ratio"]) == ("W1", 2, "map@1", 1)
    assert 0 < entry["seconds_per_round"] < entry["first_call_seconds"]
    assert 0 < entry["compile_seconds"] < entry["first_call_seconds"]
    # The 60,000 samples of the pool are 180 MiB.
    assert entry["peak_bytes"] > 180 * 2**20


def test_quiet_prints_the_table_alone(call, monkeypatch, tmp_path):
    fake(monkeypatch, tmp_path, IN_TURN.format(log=str(tmp_path / "log")))
    code, out, err = call("--quiet", "--repeats", 2, "--variants", "auto")
    assert (code, err) == (0, "")
    assert "W1" in out


def test_wrong_text_from_python_too():
    with pytest.raises(UsageError, match="unknown workload"):
        make_cases("w", None, "auto", None)
