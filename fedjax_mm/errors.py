"""The two kinds of failure a user meets, and how names they mistyped are answered."""

import difflib
from collections.abc import Iterable

FEW = 8
"""So many valid names are all told, besides the nearest."""


class UsageError(ValueError):
    """Bad input, found before anything was compiled or written (exit code 2)."""


class RunError(RuntimeError):
    """A run that started and could not go on (exit code 1)."""


def choose(what: str, name: str, valid: Iterable[str]) -> str:
    """Returns `name` if it is one of `valid`.

    Args:
        what: The kind of thing named, for the message ("method", "partition").
        name: What the user wrote.
        valid: The names that would be right.

    Returns:
        `name`, unchanged.

    Raises:
        UsageError: `name` is not valid; the message gives the nearest valid names, and all where they are few.
    """
    options = [str(option) for option in valid]
    if name in options:
        return name
    near = difflib.get_close_matches(str(name), options, n=3, cutoff=0.5)
    hints = [f"did you mean {' or '.join(near)}?"] if near else []
    if not near or len(near) < len(options) <= FEW:
        hints.append(f"valid: {', '.join(options) or 'none'}")
    raise UsageError(f"unknown {what} {name!r}; {' '.join(hints)}")
