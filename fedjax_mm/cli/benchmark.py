"""What `bench` prints and writes."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedjax_mm.bench.measure import DEFAULT_VARIANTS, Measurement, make_cases, measure
from fedjax_mm.bench.workloads import WORKLOADS
from fedjax_mm.errors import UsageError


def run(
    workload: str | None,
    clients: str | None,
    variants: str | None,
    seeds: str | None,
    repeats: str | None,
    json_file: str | None,
    *,
    quiet: bool,
) -> None:
    """Measures what the options name, all as text; None for the default.

    Raises:
        UsageError: An option is wrong; nothing was measured.
        RunError: A variant failed; what was measured before is in the file.
    """
    cases = make_cases(workload or "W1", clients, variants or DEFAULT_VARIANTS, seeds)
    if repeats is not None and (not repeats.isdecimal() or int(repeats) < 1):
        raise UsageError(f"--repeats is {repeats!r}, must be an integer of at least 1")
    target = None if json_file is None else pathlib.Path(json_file).expanduser()
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise UsageError(f"--json is {json_file}: it must be a file in a folder that exists")
    measured: list[Measurement] = []
    for case in cases:
        measured += measure(case, int(repeats or 5), lambda line: _note(line, quiet=quiet))
        if target is not None:
            _write(target, measured)
    _show(measured)


def _note(line: str, *, quiet: bool) -> None:
    if not quiet:
        print(line, file=sys.stderr, flush=True)


def _write(target: pathlib.Path, measured: Sequence[Measurement]) -> None:
    text = json.dumps([dataclasses.asdict(measurement) for measurement in measured], indent=2)
    part = target.with_name(f".{target.name}.part")
    part.write_text(f"{text}\n", encoding="utf-8")
    part.replace(target)


def _show(measured: Sequence[Measurement]) -> None:
    table = Table()
    table.add_column("workload")
    table.add_column("clients", justify="right")
    several = any(measurement.seeds > 1 for measurement in measured)
    if several:
        table.add_column("seeds", justify="right")
    table.add_column("variant", overflow="fold")
    for name in ("s per round", "ratio", "first call, s", "peak, MiB"):
        table.add_column(name, justify="right")
    for one in measured:
        table.add_row(
            one.workload,
            str(one.clients),
            *([str(one.seeds)] if several else []),
            one.variant,
            f"{one.seconds_per_round:.3g}",
            f"{one.ratio:.2f}",
            f"{one.first_call_seconds:.2f}",
            f"{one.peak_bytes / 2**20:.0f}",
        )
    console = Console(highlight=False, markup=False)
    console.print(table)
    for name in dict.fromkeys(measurement.workload for measurement in measured):
        console.print(f"{name}: {WORKLOADS[name].what}.")
    repeats = len(measured[0].seconds)
    console.print(
        f"Medians over {repeats} interleaved block{'' if repeats == 1 else 's'}; ratio: to the first variant, above 1 "
        "slower. The first call sets up, compiles and runs a block."
    )
