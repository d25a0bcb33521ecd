"""Variants side by side: each in a process of its own, their timed blocks interleaved."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import fedjax_mm
from fedjax_mm.bench.workloads import WORKLOADS, Workload
from fedjax_mm.errors import RunError, UsageError, choose

EXECUTORS = ("auto", "map", "lockstep", "vmap", "debug")
TORCH = ("torch-loop", "torch-vmap", "torch-bmm")
VARIANTS = (*EXECUTORS, *TORCH)
DEFAULT_VARIANTS = "auto,map,lockstep,debug"
LINES = 3
"""Lines of a process's stderr that are told where it ends without an answer."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What is compared with one another.

    Attributes:
        workload: The workload.
        clients: The number of clients K.
        seeds: The number of seeds.
        variants: How it is run, the first being what the others are measured by.
    """

    workload: Workload
    clients: int
    seeds: int
    variants: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.workload.name}, {self.clients} clients" + (f", {self.seeds} seeds" if self.seeds > 1 else "")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One variant of one case.

    Attributes:
        workload: The workload's name.
        clients: The number of clients K.
        seeds: The number of seeds.
        variant: How it was run.
        seconds_per_round: Median over the blocks, all seeds together, a block's evaluation included.
        first_call_seconds: Setting up, compiling and the first block.
        compile_seconds: Compiling alone; None where nothing is compiled.
        peak_bytes: Largest resident memory of the process.
        ratio: Median over the repeats of its time by that of the first variant.
        rounds: Rounds in a block.
        seconds: Seconds per round of each block.
    """

    workload: str
    clients: int
    seeds: int
    variant: str
    seconds_per_round: float
    first_call_seconds: float
    compile_seconds: float | None
    peak_bytes: int
    ratio: float
    rounds: int
    seconds: tuple[float, ...]


def make_cases(workload: str, clients: str | None, variants: str, seeds: str | None) -> list[Case]:
    """The cases a user named, all as text, separated by commas.

    Args:
        workload: Names of workloads.
        clients: Numbers of clients; None for the workload's own.
        variants: How to run them; `map@1` is `map` on at most one device.
        seeds: Numbers of seeds; None for the workload's own.

    Returns:
        The cases.

    Raises:
        UsageError: A workload or variant is unknown or they do not go together, a number is not one, or PyTorch is
            asked for and missing.
    """
    named = [WORKLOADS[choose("workload", name, WORKLOADS)] for name in _words(workload, "--workload")]
    wanted = tuple(_variant(name) for name in _words(variants, "--variants"))
    for name in wanted:
        if name in TORCH and importlib.util.find_spec("torch") is None:
            raise UsageError(f"variant {name} needs PyTorch, which is not installed: pip install 'fedjax-mm[bench]'")
        for each in named:
            if name in TORCH and name not in each.references:
                others = ", ".join(other.name for other in WORKLOADS.values() if name in other.references)
                raise UsageError(f"variant {name} does not run workload {each.name}; it runs {others}")
    return [
        Case(each, k, count, wanted)
        for each in named
        for k in (_numbers(clients, "--clients") if clients else (each.clients,))
        for count in (_numbers(seeds, "--seeds") if seeds else each.seeds)
    ]


def measure(case: Case, repeats: int, report: Callable[[str], None]) -> list[Measurement]:
    """Starts a process per variant, one after another, then lets them run a block in turn.

    Args:
        case: The case.
        repeats: Blocks of each variant after the first, at least 1.
        report: Is told what was measured, a line at a time.

    Returns:
        A measurement per variant.

    Raises:
        RunError: A variant failed.
    """
    with contextlib.ExitStack() as stack:
        processes, first = [], []
        for variant in case.variants:
            processes.append(stack.enter_context(_process(case, variant)))
            first.append(processes[-1]())
            report(f"{case}, {variant}: first call {first[-1]['first_call_seconds']:.2f} s")
        # A B A B: what slows the machine down for a while slows all of them down.
        answers = [[process("block") for process in processes] for _ in range(repeats)]
    measurements = []
    for position, variant in enumerate(case.variants):
        seconds = tuple(answer[position]["seconds_per_round"] for answer in answers)
        ratios = [mine / answer[0]["seconds_per_round"] for mine, answer in zip(seconds, answers, strict=True)]
        measurements.append(
            Measurement(
                workload=case.workload.name,
                clients=case.clients,
                seeds=case.seeds,
                variant=variant,
                seconds_per_round=statistics.median(seconds),
                first_call_seconds=first[position]["first_call_seconds"],
                compile_seconds=first[position]["compile_seconds"],
                peak_bytes=answers[-1][position]["peak_bytes"],
                ratio=statistics.median(ratios),
                rounds=first[position]["rounds"],
                seconds=seconds,
            )
        )
    return measurements


Ask = Callable[..., dict[str, Any]]


@contextlib.contextmanager
def _process(case: Case, variant: str) -> Iterator[Ask]:
    """A worker; asking it sends it a line, if there is one to send, and returns its next answer."""
    request = {"workload": case.workload.name, "clients": case.clients, "seeds": case.seeds, "variant": variant}
    command = [sys.executable, "-m", "fedjax_mm.bench.worker", json.dumps(request)]
    root = str(pathlib.Path(fedjax_mm.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        ) as process,
    ):
        sent, received = process.stdin, process.stdout
        if sent is None or received is None:
            raise RunError("a process without pipes")

        def ask(line: str = "") -> dict[str, Any]:
            with contextlib.suppress(BrokenPipeError):
                if line:
                    print(line, file=sent, flush=True)
            text = received.readline()
            answer = json.loads(text) if text else {"error": _last_words(process, errors)}
            if "error" in answer:
                raise RunError(f"{variant} on {case} failed: {answer['error']}")
            return answer

        try:
            yield ask
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                sent.close()


def _last_words(process: subprocess.Popen[str], errors: Any) -> str:
    code = process.wait()
    errors.seek(0)
    said = " ".join(errors.read().split("\n")[-LINES - 1 :]).strip()
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{ended}{'; ' if said else ''}{said}"


def _words(text: str, option: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise UsageError(f"{option} names nothing")
    return words


def _variant(name: str) -> str:
    base, at, devices = name.partition("@")
    choose("variant", base, VARIANTS)
    if at and (base in TORCH or not devices.isdecimal() or int(devices) < 1):
        raise UsageError(f"variant {name!r}: after @ stands the most devices, at least 1, as in map@1; not for PyTorch")
    return name


def _numbers(text: str, option: str) -> tuple[int, ...]:
    words = _words(text, option)
    wrong = next((word for word in words if not word.isdecimal() or int(word) < 1), None)
    if wrong is not None:
        raise UsageError(f"{option} is {text!r}, must be numbers of at least 1, separated by commas")
    return tuple(map(int, words))
