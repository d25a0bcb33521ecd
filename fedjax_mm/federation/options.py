"""The options of a federation, checked against the data and with every default filled in."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.errors import UsageError, choose
from fedjax_mm.federation.modalities import GIVEN, PARTITIONS
from fedjax_mm.federation.patterns import group_by_mask
from fedjax_mm.federation.regimes import EMPTY, NOTHING, PROTOCOLS, Regime, canonical, parse

SPLIT_RULES = {
    "random": "at random, every class in like proportions; every sample on its own, even where the data has groups",
    "chronological": "the earliest samples of each class train, the latest test",
    "grouped": "at random, samples of one group on one side",
}

SILOS = 5
GAPS = {"spar": 1, "wisdm8": 1}
"""Data sets whose samples are windows cut one after another from a recording: neighbours are alike."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Everything `federate` was told or decided, besides the data.

    Attributes:
        partition: A name of `PARTITIONS`.
        clients: Number of clients K.
        alpha: Dirichlet concentration of a class over the clients, positive, or `"iid"`; `natural`, `masks` and
            `silos` do not use it.
        split: A name of `SPLIT_RULES`.
        split_seed: Seed of everything a federation draws.
        fractions: Shares of train, validation and test, positive, summing to 1.
        minimum: Least number of train, validation and test samples of a client.
        gap: Samples left out between two parts of a (client, class) cell, chronological split only.
        missing: `CLIENT,SAMPLE`, see `regimes.parse`.
        test_missing: The same for the test part.
        missing_protocol: A name of `PROTOCOLS`.
        empty: A name of `EMPTY`.
    """

    partition: str
    clients: int
    alpha: float | str
    split: str
    split_seed: int
    fractions: tuple[float, float, float]
    minimum: tuple[int, int, int]
    gap: int
    missing: str
    test_missing: str
    missing_protocol: str
    empty: str

    def regime(self, option: str = "missing") -> Regime:
        """What `"missing"` or `"test_missing"` says."""
        return parse(getattr(self, option), self.missing_protocol, option)

    def settings(self) -> Mapping[str, Any]:
        """The options as `federate` takes them, of JSON types only."""
        as_json = {"fractions": list(self.fractions), "minimum": list(self.minimum)}
        return dataclasses.asdict(self) | as_json


def resolve(
    data: MultimodalDataset,
    *,
    partition: str | None,
    clients: int | None,
    alpha: float | str,
    split: str | None,
    split_seed: int,
    fractions: Sequence[float],
    minimum: Sequence[int],
    gap: int | None,
    missing: str | None,
    test_missing: str | None,
    missing_protocol: str | None,
    empty: str | None,
) -> Options:
    """Fills in defaults and checks what can be checked before anything is drawn; arguments as in `federate`.

    Raises:
        UsageError: An option is unknown, out of range or does not fit the data.
    """
    partition = _partition(data, partition)
    split = _split(data, split)
    protocol = _protocol(data, missing_protocol)
    missing = _missing(data, "missing", NOTHING if missing is None else missing, protocol)
    return Options(
        partition=partition,
        clients=_clients(data, partition, clients),
        alpha=_alpha(alpha),
        split=split,
        split_seed=_integer("split_seed", split_seed, 0),
        fractions=_fractions(fractions),
        minimum=_minimum(minimum),
        gap=_gap(data, partition, split, gap),
        missing=missing,
        test_missing=missing if test_missing is None else _missing(data, "test_missing", test_missing, protocol),
        missing_protocol=protocol,
        empty=PROTOCOLS[protocol].empty if empty is None else choose("way to treat empty samples:", empty, EMPTY),
    )


def _partition(data: MultimodalDataset, partition: str | None) -> str:
    if partition is None:
        return "m1+" if data.client is None else "natural"
    choose("partition", partition, PARTITIONS)
    if partition == "natural" and data.client is None:
        others = ", ".join(name for name in PARTITIONS if name != "natural")
        raise UsageError(
            f"partition 'natural' needs data with clients, and {data.name!r} has none; use one of {others}"
        )
    if partition == "m2" and len(data.modalities) < 2:
        raise UsageError(f"partition 'm2' gives each client two modalities, and {data.name!r} has only one; use 'm1'")
    return partition


def _split(data: MultimodalDataset, split: str | None) -> str:
    if split is None:
        return "chronological" if data.order is not None else "grouped" if data.group is not None else "random"
    choose("split", split, SPLIT_RULES)
    if split == "chronological" and data.order is None:
        raise UsageError(f"split 'chronological' needs data with an order, and {data.name!r} has none; use 'random'")
    if split == "grouped" and data.group is None:
        raise UsageError(f"split 'grouped' needs data with groups, and {data.name!r} has none; use 'random'")
    return split


def _clients(data: MultimodalDataset, partition: str, clients: int | None) -> int:
    wanted = None if clients is None else _integer("clients", clients, 1)
    if partition not in GIVEN:
        default = SILOS if partition == "silos" else len(data.modalities)
        return default if wanted is None else wanted
    natural = partition == "natural"
    count = len(np.unique(np.asarray(data.client))) if natural else len(group_by_mask(data).names)
    if wanted not in (None, count):
        what = "natural clients" if natural else "natural masks that make a client"
        raise UsageError(
            f"{data.name!r} has {count} {what}, not {wanted}; leave clients out, or choose another partition"
        )
    return count


def _alpha(alpha: float | str) -> float | str:
    if isinstance(alpha, str) and alpha == "iid":
        return alpha
    if not isinstance(alpha, numbers.Real) or isinstance(alpha, bool) or not 0 < float(alpha) < math.inf:
        raise UsageError(f"alpha must be a positive finite number or 'iid', not {alpha!r}")
    return float(alpha)


def _fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(part) for part in fractions)
    except (TypeError, ValueError):
        raise UsageError(f"fractions must be three numbers (train, validation, test), not {fractions!r}") from None
    parts = (train, validation, test)
    if not all(part > 0 for part in parts) or not math.isclose(sum(parts), 1, abs_tol=1e-6):
        raise UsageError(
            f"fractions (train, validation, test) must be positive and sum to 1, not {parts} = {sum(parts):g}"
        )
    return parts


def _minimum(minimum: Sequence[int]) -> tuple[int, int, int]:
    try:
        train, validation, test = minimum
    except (TypeError, ValueError):
        raise UsageError(f"minimum must be three counts (train, validation, test), not {minimum!r}") from None
    return _integer("minimum", train, 1), _integer("minimum", validation, 0), _integer("minimum", test, 0)


def _gap(data: MultimodalDataset, partition: str, split: str, gap: int | None) -> int:
    if gap is None:
        return GAPS.get(data.name, 0) if partition == "natural" and split == "chronological" else 0
    samples = _integer("gap", gap, 0)
    if samples and split != "chronological":
        raise UsageError(f"a gap of {samples} needs split 'chronological', not {split!r}")
    return samples


def _protocol(data: MultimodalDataset, protocol: str | None) -> str:
    if protocol is None:
        return "adni" if data.order is None else "sensing"
    return choose("missing_protocol", protocol, PROTOCOLS)


def _missing(data: MultimodalDataset, option: str, text: str, protocol: str) -> str:
    text = canonical(text, option)
    regime = parse(text, protocol, option)
    if regime.chain is not None and data.order is None:
        raise UsageError(
            f"{option} {text!r} lets modalities fail along the order of the samples, and {data.name!r} has no order; "
            "use none for the sample axis"
        )
    if regime != Regime(None, None) and len(data.modalities) < 2:
        raise UsageError(f"{option} {text!r} needs at least two modalities, and {data.name!r} has only one")
    return text


def _integer(name: str, value: int, least: int) -> int:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} must be an integer of at least {least}, not {value!r}")
    return int(value)
