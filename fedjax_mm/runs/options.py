"""Options by name: from keyword arguments, text or JSON to values of the declared types."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_mm.errors import UsageError, choose

KINDS = {bool: "true or false", int: "an integer", float: "a finite number", str: "text", type(None): "none"}
WORDS = {bool: {"true": True, "false": False}, type(None): {"none": None}}
UNIONS = (typing.Union, types.UnionType)


def fields(cls: type) -> dict[str, Any]:
    """The fields of a dataclass: name -> declared type."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def convert(value: Any, kind: Any, what: str) -> Any:
    """Brings a value to its declared type.

    Args:
        value: A Python or NumPy value, or the text of one: `true` or `false`, a number, `none`, `a,b` for a tuple,
            `a-b,c` for a tuple of tuples (`none` for an empty one within).
        kind: `bool`, `int`, `float`, `str`, None, a union or a tuple of these; any other type is not checked.
        what: The option, for the message.

    Returns:
        The value. A whole number is a float where only a float is declared; where both are, the decimal point decides.

    Raises:
        UsageError: It is not of that type.
    """
    try:
        return _convert(value, kind)
    except (ValueError, OverflowError):
        raise UsageError(f"{what} is {value!r}, must be {describe(kind)}") from None


def describe(kind: Any) -> str:
    """The declared type in words."""
    if typing.get_origin(kind) in UNIONS:
        return " or ".join(describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        entry = typing.get_args(kind)[0]
        if typing.get_origin(entry) is tuple:
            return f"a list, each {describe(typing.get_args(entry)[0])}, several joined by -, or none"
        return f"a list, each {describe(entry)}"
    return KINDS.get(kind, getattr(kind, "__name__", str(kind)))


def _convert(value: Any, kind: Any, *, within: bool = False) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if typing.get_origin(kind) in UNIONS:
        return _first(value, typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        entries = _split(value, within) if isinstance(value, str) else value
        if not isinstance(entries, list | tuple):
            raise ValueError
        return tuple(_convert(entry, typing.get_args(kind)[0], within=True) for entry in entries)
    if kind not in KINDS or (kind is str and isinstance(value, str)):
        return value
    return _parse(value.strip(), kind) if isinstance(value, str) else _conform(value, kind)


def _split(text: str, within: bool) -> list[str]:
    """The entries of a list in a text; within another list they are joined by -, and `none` is the empty one."""
    if within:
        return [] if text.strip() == "none" else text.split("-")
    return [part for part in text.split(",") if part]


def _first(value: Any, kinds: tuple[Any, ...]) -> Any:
    """The first type that fits, the narrowest first."""
    order = [type(None), bool, int, float]
    for kind in sorted(kinds, key=lambda kind: order.index(kind) if kind in order else len(order)):
        try:
            return _convert(value, kind)
        except (ValueError, OverflowError):
            continue
    raise ValueError


def _parse(text: str, kind: type) -> Any:
    if kind not in WORDS:
        return _conform(kind(text), kind)
    if text not in WORDS[kind]:
        raise ValueError
    return WORDS[kind][text]


def _conform(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError
    return value


def keywords(given: Mapping[str, Any], kinds: Mapping[str, Any], *, what: str, owner: str = "") -> dict[str, Any]:
    """Checks names and types of options.

    Args:
        given: Option -> value.
        kinds: Option -> declared type.
        what: What the options are, for the message ("setting").
        owner: Put before the names in messages, such as `"fedproto."`.

    Returns:
        Option -> value of its declared type.

    Raises:
        UsageError: An option is unknown or its value has the wrong type.
    """
    return {name: convert(value, kinds[choose(what, name, kinds)], f"{owner}{name}") for name, value in given.items()}


def seeds(value: Any) -> tuple[int, ...]:
    """The seeds of a run.

    Args:
        value: A count n, meaning 0..n-1; or the seeds. As text: `5`, `0,3,7`, or `3,` for one seed.

    Returns:
        The seeds.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = tuple(value)
    wanted = convert(value, int | tuple[int, ...], "seeds")
    if isinstance(wanted, tuple):
        return wanted
    if wanted < 1:
        raise UsageError(f"seeds is {wanted}, must be at least 1 (a count; a list such as 0,3 or '0,' names the seeds)")
    return tuple(range(wanted))


def as_json(value: Any) -> Any:
    """A value of a declared type as JSON has it: tuples as lists."""
    return [as_json(entry) for entry in value] if isinstance(value, tuple) else value
