"""The command line `fedjax-mm`."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedjax_mm.cli.commands import app
from fedjax_mm.errors import RunError, UsageError

PROGRAM = "fedjax-mm"
REPEATABLE = ("--set", "--grid", "--quiet", "--dry-run", "--help", "--version")
LISTS = {"--methods": "names", "--seeds": "seeds"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words after the program's name; by default those of this process.

    Returns:
        The exit code: 0; 1 a run that failed; 2 wrong usage; 130 interrupted. On stderr, one message says what.
    """
    # As `python -m` does: methods of the user's own are looked for where they stand.
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            _check_repetition(words)
            code = app(words, prog_name=PROGRAM, standalone_mode=False, obj=arguments is None)
            # Typer answers an interruption with this code and no word.
            return _fail("interrupted", 130) if code == 130 else code if isinstance(code, int) else 0
        except UsageError as error:
            return _fail(error, 2)
        except (RunError, OSError) as error:
            return _fail(error, 1)
        except (KeyboardInterrupt, typer.Abort) as error:
            return _fail(str(error) or "interrupted", 130)
        except Exception as error:
            # Typer's own errors have this method; their class moved from click into typer.
            if not hasattr(error, "format_message"):
                raise
            return _fail(error.format_message(), 2)  # pyright: ignore[reportAttributeAccessIssue]


def _check_repetition(words: Sequence[str]) -> None:
    """Refuses an option given twice, of which Typer would silently take the last."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    twice = next((name for name in names if name not in REPEATABLE and names.count(name) > 1), None)
    if twice:
        how = f"; separate {LISTS[twice]} by commas" if twice in LISTS else ""
        raise UsageError(f"{twice} is given twice{how}")


def _fail(message: Any, code: int) -> int:
    # Without a command, Typer has printed the help, and its error says nothing.
    if text := " ".join(str(message).split()):
        print(f"{PROGRAM}: {text}", file=sys.stderr)
    return code


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
