"""What `list` prints."""

import inspect

from rich.console import Console
from rich.table import Table

from fedjax_mm.data import available_names, embedded_names
from fedjax_mm.data.sources import VARIABLE
from fedjax_mm.errors import choose
from fedjax_mm.federation import PARTITIONS
from fedjax_mm.methods import available
from fedjax_mm.runs.options import fields


def show(what: str) -> None:
    """Prints the `methods`, `data`, `partitions` or `regimes` there are.

    Raises:
        UsageError: `what` is none of these.
    """
    listings = {"methods": _methods, "data": _data, "partitions": _partitions, "regimes": _regimes}
    columns, rows = listings[choose("listing", what, listings)]()
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(table)
    if what == "data":
        console.print(f"More are found by name in the folder that the environment variable {VARIABLE} names.")


Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _methods() -> Rows:
    rows = []
    for name, cls in available().items():
        default = cls()
        chosen = "\n".join(f"{name}.{option}={getattr(default, option)}" for option in fields(cls))
        rows.append((name, _first_line(cls), chosen))
    return ("method", "what it does", "options (--set)"), rows


def _data() -> Rows:
    embedded = embedded_names()
    rows = [(name, "embedded" if name in embedded else f"in ${VARIABLE}") for name in available_names()]
    return ("data set", "where"), rows


def _partitions() -> Rows:
    return ("partition", "who holds what"), list(PARTITIONS.items())


def _regimes() -> Rows:
    return ("regime", "what is missing"), [("hom,none", "nothing beyond what the data set itself lacks")]


def _first_line(cls: type) -> str:
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]
