"""What a finished run prints."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fedjax_mm.cli import missing
from fedjax_mm.metrics.comparison import smallest_p
from fedjax_mm.runs.experiment import EACH
from fedjax_mm.runs.run import Run

MEASURES = {"accuracy": "accuracy", "macro_f1": "macro-F1"}
CALIBRATION = {"accuracy": "accuracy", "NLL": "loss", "ECE": "ece", "Brier": "brier"}
"""What is shown besides macro-F1: column -> metric, pooled."""
EXPLAINED = {
    "accuracy": "Accuracy in [0, 1], pooled over the test samples of all clients",
    "macro_f1": "Macro-F1 in [0, 1] over the classes present, mean over the clients with test samples",
}
SELECTION = {
    "personal": "each client at its own best validation round",
    "global": "all clients at the one best validation round of their seed",
}


@contextlib.contextmanager
def resumable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Says, when the user interrupts, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"; to go on: fedjax-mm resume {os.fspath(path)}" if os.path.lexists(path) else ""
        raise typer.Abort(f"interrupted{how}") from None


def counted(number: int, noun: str) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show(run: Run, *, quiet: bool) -> None:
    """Prints the table of results and where they are; with `quiet` only the latter."""
    if quiet:
        print(run.path)
        return
    console = Console(highlight=False, markup=False)
    console.print(_table(run))
    if _beside(run):
        # A table of its own: beside the results it would not fit into 80 columns.
        console.print(_calibration(run))
    for line in _remarks(run):
        console.print(line)
    console.print(f"Run directory: {run.path}", soft_wrap=True)


def _table(run: Run) -> Table:
    federation, settings = run.manifest["federation"], run.manifest["settings"]
    sizes = f"{counted(federation['clients'], 'client')}, {counted(settings['rounds'], 'round')}"
    table = Table(
        title=f"{run.manifest['data']['name']}, {federation['partition']}, {sizes}",
        title_justify="left",
    )
    results, measure = run.results(), _measure(run)
    if run.manifest["grid"]:
        table.add_column("configuration", overflow="fold")
        table.add_column(f"validation {measure}", justify="right")
        names = (_validation(run), run.headline, f"{run.headline}:last")
    else:
        table.add_column("method", overflow="fold")
        table.add_column("predictor", overflow="fold")
        names = (run.headline, f"{run.headline}:last")
    table.add_column(f"test {measure}", justify="right")
    table.add_column("last round", justify="right")
    for label, entries in results.items():
        own = () if run.manifest["grid"] else (run.manifest["methods"][label]["predictors"][0],)
        table.add_row(label, *own, *(_value(entries.get(name)) for name in names))
    return table


def _calibration(run: Run) -> Table:
    table = Table()
    table.add_column("configuration" if run.manifest["grid"] else "method", overflow="fold")
    for column in _beside(run):
        table.add_column(column, justify="right")
    for label, entries in run.results().items():
        values = (_value(entries.get(f"test/{metric}/pooled"), digits=3) for metric in _beside(run).values())
        table.add_row(label, *values)
    return table


def _measure(run: Run) -> str:
    return MEASURES[run.manifest["settings"]["select"]]


def _validation(run: Run) -> str:
    return run.headline.replace("test/", "validation/", 1)


def _beside(run: Run) -> Mapping[str, str]:
    return CALIBRATION if run.manifest["settings"]["select"] == "macro_f1" else {}


def _chosen(run: Run) -> str:
    """The configuration of a grid with the best result on validation data, the first of equal ones."""
    found = {label: entries[_validation(run)]["mean"] for label, entries in run.results().items()}
    return max(found, key=lambda label: -1.0 if found[label] is None else found[label])


def _differences(run: Run) -> list[str]:
    """Every method against the first, where there are seeds to pair."""
    reference, seeds = run.methods[0], len(run.seeds)
    if len(run.methods) < 2 or seeds < 2:
        return []
    lines = [
        f"Difference to {reference} in test {_measure(run)}, paired by seed: mean [95 % t interval], two-sided "
        f"sign-flip p (at least {smallest_p(seeds):.3g} with {counted(seeds, 'seed')}):"
    ]
    for label in run.methods[1:]:
        found = run.compare(label, reference)
        if found.mean is None or found.interval is None:
            lines.append(f"  {label}: undefined")
        else:
            low, high = found.interval
            lines.append(f"  {label}: {found.mean:+.4f} [{low:+.4f}, {high:+.4f}], p = {found.p:.3g}")
    return lines


def _value(entry: Mapping[str, Any] | None, *, digits: int = 4) -> str:
    if entry is None or entry["mean"] is None:
        return "undefined"
    shown = "" if entry["std"] is None else f" ± {entry['std']:.{digits}f}"
    return f"{entry['mean']:.{digits}f}{shown}"


def _remarks(run: Run) -> list[str]:
    seeds = ", ".join(map(str, run.seeds))
    spread = f"{'mean ± sample SD over ' if len(run.seeds) > 1 else ''}{counted(len(run.seeds), 'seed')} ({seeds})"
    split_seed, settings = run.manifest["federation"]["split_seed"], run.manifest["settings"]
    split = "each seed has a split of its own" if split_seed == EACH else f"one split (split seed {split_seed})"
    kinds = {label: method["kind"] for label, method in run.manifest["methods"].items()}
    measure = _measure(run)
    lines = [f"{EXPLAINED[settings['select']]}; {spread}, {split}."]
    if _beside(run):
        lines.append(
            "Accuracy, NLL (nats), ECE (15 bins) and Brier score at the same rounds, pooled over the test samples of "
            "all clients; summary.json has other populations."
        )
    for kind in dict.fromkeys(kinds.values()):
        labels = ", ".join(label for label in kinds if kinds[label] == kind)
        who = "" if len(set(kinds.values())) == 1 else f" ({labels})"
        lines.append(
            f"Test {measure} is selected by validation {measure} (select={settings['select']}, "
            f"model={settings['model']}): {SELECTION[kind]}{who}."
        )
    if run.manifest["grid"]:
        lines.append(f"Best on validation: {_chosen(run)}. Its test {measure} is the one to report.")
    else:
        lines += _differences(run)
    federation = run.manifest["federation"]
    lines += missing.lines(federation, federation["counts"], federation.get("missing_rates", ()))
    return [*lines, *(f"Note: {note}." for note in run.notes)]
