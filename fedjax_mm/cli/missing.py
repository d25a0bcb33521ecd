"""What is said about missing modalities, before a run and after it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_mm.federation.regimes import NOTHING

UNTRAINED = {
    "test samples of classes nobody trains": "of classes that no client trains",
    "test samples of classes their client does not train": "of classes that their own client does not train",
}

TORN = "groups on several sides"


def lines(
    federation: Mapping[str, Any],
    counts: Sequence[Mapping[str, int]],
    rates: Sequence[Mapping[str, Mapping[str, float]]],
) -> list[str]:
    """The realised missingness and what was done about it.

    Args:
        federation: The options of the federation by name.
        counts: `Federation.counts` of each split.
        rates: `Federation.missing_rates` of each split; shares are averaged over the splits.

    Returns:
        Lines of text, none where nothing is missing and everything that is tested is trained.
    """
    found = []
    missing = federation.get("missing", NOTHING)
    tested = federation.get("test_missing", missing)
    if missing != NOTHING or _mean(rates, "sample axis", "natural") > 0:
        found.append(f"Missing {missing}{_how(federation)}: {_realised(rates, counts, '')}.")
    if tested != missing:
        found.append(f"Missing in test samples {tested}{_how(federation)}: {_realised(rates, counts, 'test')}.")
    for name, words in UNTRAINED.items():
        if any(one.get(name) for one in counts):
            found.append(f"{_range(counts, name)} test samples are {words}: they are counted as they are answered.")
    if any(one.get(TORN) for one in counts):
        found.append(f"{_range(counts, TORN)} groups have samples in more than one of training, validation and test.")
    return found


def _how(federation: Mapping[str, Any]) -> str:
    if federation.get("missing", NOTHING) == federation.get("test_missing", NOTHING) == NOTHING:
        return ""
    return f" (missing_protocol={federation['missing_protocol']}, empty={federation['empty']})"


def _realised(
    rates: Sequence[Mapping[str, Mapping[str, float]]], counts: Sequence[Mapping[str, int]], part: str
) -> str:
    axis, count = (f"{part} ", f"{part}: ") if part else ("", "")
    which = "the modalities they had in training" if part else "the modalities"
    client, sample = f"{axis}client axis", f"{axis}sample axis"
    return (
        f"clients lack {_percent(rates, client, 'before repair')} of {which} as drawn, "
        f"{_percent(rates, client, 'after repair')} in the end; samples lack "
        f"{_percent(rates, sample, 'before repair')} of their client's as drawn "
        f"({_percent(rates, sample, 'natural')} in the data), {_percent(rates, sample, 'after repair')} in the end; "
        f"{_range(counts, f'{count}clients given a modality back')} clients and "
        f"{_range(counts, f'{count}samples given a modality back')} samples were given one back, "
        f"{_range(counts, f'{count}samples dropped for want of a modality')} samples dropped"
    )


def _percent(rates: Sequence[Mapping[str, Mapping[str, float]]], axis: str, stage: str) -> str:
    return f"{_mean(rates, axis, stage):.1%}".replace("%", " %")


def _mean(rates: Sequence[Mapping[str, Mapping[str, float]]], axis: str, stage: str) -> float:
    values = [one[axis][stage] for one in rates if axis in one]
    return sum(values) / len(values) if values else 0.0


def _range(counts: Sequence[Mapping[str, int]], name: str) -> str:
    """The count, or the least and the largest where splits differ."""
    values = [one.get(name, 0) for one in counts]
    return str(min(values)) if min(values) == max(values) else f"{min(values)}-{max(values)}"
