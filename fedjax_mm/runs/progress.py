"""Progress on stderr."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

Report = Callable[[str, int, int], None]
"""Told after each block, and before the first: label, rounds done, rounds in all."""


@contextlib.contextmanager
def reporting(show: bool) -> Iterator[Report]:
    """Yields what to tell about progress; with `show` it draws a bar per method.

    Where there is no terminal it writes a line when a method begins to compile, and one per block.
    """
    if not show:
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False, markup=False)
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {}

        def report(label: str, done: int, total: int) -> None:
            begun = label in bars
            if not begun:
                bars[label] = progress.add_task(label, total=total)
            waiting = not begun and done < total
            progress.update(bars[label], completed=done, description=f"{label}: compiling" if waiting else label)

        yield report


def _lines(console: Any) -> Report:
    begun: dict[str, float] = {}

    def report(label: str, done: int, total: int) -> None:
        if label in begun:
            seconds = time.monotonic() - begun[label]
            console.print(f"{label}: round {done} of {total}, {seconds:.0f} s", soft_wrap=True)
        elif done < total:
            console.print(f"{label}: compiling", soft_wrap=True)
        begun.setdefault(label, time.monotonic())

    return report
