"""Progress bars."""

import contextlib
from collections.abc import Callable, Iterator

Report = Callable[[str, int, int], None]
"""Told after each block, and before the first: label, rounds done, rounds in all."""


@contextlib.contextmanager
def reporting(show: bool) -> Iterator[Report]:
    """Yields what to tell about progress; with `show` it draws one bar per method on stderr."""
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

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars = {}

        def report(label: str, done: int, total: int) -> None:
            begun = label in bars
            if not begun:
                bars[label] = progress.add_task(label, total=total)
            waiting = not begun and done < total
            progress.update(bars[label], completed=done, description=f"{label}: compiling" if waiting else label)

        yield report
