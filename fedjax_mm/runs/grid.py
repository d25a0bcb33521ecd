"""Grids: a method with every combination of some options."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.runs import options
from fedjax_mm.runs.entries import Entry
from fedjax_mm.simulation.settings import Settings

COMMON = ("rounds", "eval_every", "seeds", "select", "precision", "model", "executor", "devices", "client_state")
"""Settings that all configurations of a run share."""


def configurations(base: Entry, grid: Mapping[str, Sequence[Any]], shard: str | None = None) -> tuple[Entry, ...]:
    """Every combination of a grid as an entry of a run, the last option varying fastest.

    Args:
        base: The method with the options that do not vary.
        grid: Option of the method, or setting -> its values, or their texts.
        shard: `i/n`: only every n-th combination, from the i-th on, i from 1 to n; None for all.

    Returns:
        The entries, labelled `option=value+option=value`.

    Raises:
        UsageError: An option is unknown, common to all configurations, or has no value, one twice or one of the wrong
            type; or the shard is not of that form, or is empty.
    """
    if not grid:
        raise UsageError("a sweep needs a grid: one or more options with their values, such as lr=0.01,0.1")
    kinds, settings = options.fields(type(base.method)), options.fields(Settings)
    varied = {}
    for name, values in grid.items():
        name = name.removeprefix(f"{base.label}.")
        kind = kinds[name] if name in kinds else settings[choose("option", name, [*kinds, *_free(settings)])]
        varied[name] = [options.convert(value, kind, name) for value in values]
        if not varied[name] or any(varied[name].count(value) > 1 for value in varied[name]):
            raise UsageError(f"{name} needs values, each once; it has {list(values)}")
    entries = []
    for combination in itertools.product(*varied.values()):
        chosen = dict(zip(varied, combination, strict=True))
        mine = {name: value for name, value in chosen.items() if name in kinds}
        label = "+".join(f"{name}={_text(value)}" for name, value in chosen.items())
        training = {name: value for name, value in chosen.items() if name not in kinds}
        method = dataclasses.replace(base.method, **mine)
        entries.append(dataclasses.replace(base, label=label, method=method, training=training))
    return tuple(entries) if shard is None else _part(entries, shard)


def _free(settings: Mapping[str, Any]) -> list[str]:
    return [name for name in settings if name not in COMMON]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(_text(entry) for entry in value) or "none"
    return re.sub(r"[^\w.+=-]", "_", f"{value:g}" if isinstance(value, float) else str(value).lower())


def _part(entries: Sequence[Entry], shard: str) -> tuple[Entry, ...]:
    form = re.fullmatch(r"(\d+)/(\d+)", str(shard).strip())
    first, count = (int(part) for part in form.groups()) if form else (0, 0)
    if not 1 <= first <= count:
        raise UsageError(f"shard is {shard!r}, must be i/n with i from 1 to n")
    part = tuple(entries[first - 1 :: count])
    if not part:
        raise UsageError(f"shard {shard} is empty: the grid has {len(entries)} configurations")
    return part
