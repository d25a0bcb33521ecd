"""What the README says is run as it stands."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from fedjax_mm.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_python_examples_run(tmp_path):
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks("python")))
    quickly = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, env=quickly).stdout
    assert "local" in printed and "fedproto" in printed and "head" in printed
    assert "(2, 10, 48)" in printed


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "fedjax-mm " in line]
    return [shlex.split(line.rpartition("fedjax-mm ")[2]) for line in lines]


@pytest.mark.parametrize("arguments", commands(), ids=lambda arguments: arguments[0])
def test_every_command_is_understood(arguments, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    # Whoever followed the README has that folder already.
    place = arguments.index("--out") if "--out" in arguments else len(arguments)
    assert main([*arguments[:place], *arguments[place + 2 :], "--dry-run"]) == 0
    data = arguments[arguments.index("--data") + 1] if "--data" in arguments else "mfeat"
    assert data in capsys.readouterr().out


def test_ci_runs_exactly_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    matching = [line for line in README.splitlines() if line.endswith("-m pytest")]
    assert len(matching) == 1


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
