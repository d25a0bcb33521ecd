"""What `list` prints."""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fedjax_mm.cli.request import FEDERATION_SET, TRAINING
from fedjax_mm.data import available_names, embedded_names
from fedjax_mm.data.sources import VARIABLE
from fedjax_mm.errors import UsageError, choose
from fedjax_mm.federation import PARTITIONS, federate
from fedjax_mm.federation.regimes import listing
from fedjax_mm.methods import available
from fedjax_mm.runs.experiment import SETTINGS
from fedjax_mm.runs.options import describe, fields
from fedjax_mm.simulation.settings import BY_MODEL, ENCODERS, Settings


def show(what: str | None) -> None:
    """Prints the `methods`, `data`, `partitions`, `regimes` or `options` there are.

    Raises:
        UsageError: `what` is none of these.
    """
    listings = {
        "methods": _methods,
        "data": _data,
        "partitions": _partitions,
        "regimes": _regimes,
        "options": _options,
    }
    if what is None:
        raise UsageError(f"list needs one of {', '.join(listings)}")
    columns, rows = listings[choose("listing", what, listings)]()
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(table)
    if what == "regimes":
        console.print(
            "A client's mod and high are those of sensing if the data has an order, else of adni "
            "(--set missing_protocol). p00 and p11 are the probabilities of staying missing and observed. "
            "Numbers of your own: --missing 45:20,0.8:0.95."
        )
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
    return ("axis", "regime", "what is missing (--missing CLIENT,SAMPLE)"), listing()


def _options() -> Rows:
    settings = {name: getattr(Settings(), name) for name in TRAINING}
    arguments = {name: parameter.default for name, parameter in inspect.signature(federate).parameters.items()}
    rows = [
        *_described("", settings, SETTINGS, Settings),
        *_described("", {name: arguments[name] for name in FEDERATION_SET}, FEDERATION_SET, federate),
    ]
    for name, cls in available().items():
        kinds = fields(cls)
        rows += _described(f"{name}.", {option: getattr(cls(), option) for option in kinds}, kinds, cls)
    return ("option (--set)", "default", "values", "meaning"), rows


def _described(prefix: str, defaults: Mapping[str, Any], kinds: Mapping[str, Any], source: Any) -> Iterator[Any]:
    """One row per option; what it means is read from the docstring of `source`, and where it is left to the model, too.

    Yields:
        Name, default, values and meaning.
    """
    meanings = _entries(inspect.getdoc(source) or "")
    for name, default in defaults.items():
        meaning, _, stated = meanings.get(name, "").partition(" Default: ")
        by_model = [f"{_written(values[name])} ({model})" for model, values in BY_MODEL.items() if name in values]
        shown = (
            ", ".join(by_model)
            if source is Settings and by_model
            else stated.rstrip(".").replace("`", "") or _written(default)
        )
        yield f"{prefix}{name}", shown, _values(name, kinds[name], meaning), meaning.replace("`", "")


def _entries(docstring: str) -> dict[str, str]:
    """The arguments or attributes a Google-form docstring describes: name -> text."""
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?)+)", docstring, re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _values(name: str, kind: Any, meaning: str) -> str:
    if name == "encoders":
        return f"a list of {', '.join(ENCODERS)}"
    if str not in (kind, *typing.get_args(kind)):
        return describe(kind)
    names = dict.fromkeys(re.findall(r"`(\w+)`", meaning))
    return ", ".join(names) or describe(kind)


def _written(value: Any) -> str:
    """A value as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _first_line(cls: type) -> str:
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]
