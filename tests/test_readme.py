"""What the README says is run as it stands."""

import pathlib
import re
import shlex

import pytest

from fedjax_mm.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_python_examples_run(capsys):
    for example in blocks("python"):
        exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
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
    assert "mfeat" in capsys.readouterr().out


def test_ci_runs_exactly_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    matching = [line for line in README.splitlines() if line.endswith("-m pytest")]
    assert len(matching) == 1


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
