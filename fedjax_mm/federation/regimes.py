"""How much is missing: named regimes of the client axis and of the sample axis, and what a user wrote for them.

The numbers are those of Flux, Appendix B; those of the sample axis are not published, and are a choice.
"""

import dataclasses
import math
from collections.abc import Mapping

from fedjax_mm.errors import UsageError, choose

HOMOGENEOUS, COMPLETE = "hom", "none"
NOTHING = f"{HOMOGENEOUS},{COMPLETE}"
EMPTY = {
    "repair": "a sample left without any modality is given one back, drawn among those of its client",
    "drop": "a sample left without any modality is left out",
}

Pair = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What the regimes of the client axis mean.

    Attributes:
        beta: Regime -> (a, b) of q_k ~ Beta(a, b), the probability of each modality at client k.
        empty: What happens to a sample left without any modality unless the user decides, a name of `EMPTY`.
    """

    beta: Mapping[str, Pair]
    empty: str


PROTOCOLS = {
    "sensing": Protocol(beta={"mod": (45, 20), "high": (45, 45)}, empty="repair"),
    "adni": Protocol(beta={"mod": (17, 3), "high": (6, 14)}, empty="drop"),
}
CHAINS: Mapping[str, Pair] = {"mod": (0.8, 0.95), "high": (0.9, 0.9)}
"""Regime of the sample axis -> (p00, p11): the probabilities of staying missing and of staying observed."""


@dataclasses.dataclass(frozen=True)
class Regime:
    """What is missing beyond what the data lack.

    Attributes:
        beta: (a, b) of q_k ~ Beta(a, b), or None where every client keeps its modalities.
        chain: (p00, p11) of each modality along a recording, or None where every sample keeps its modalities.
    """

    beta: Pair | None
    chain: Pair | None


def parse(text: str, protocol: str, option: str = "missing") -> Regime:
    """Reads a regime.

    Args:
        text: `CLIENT,SAMPLE`. CLIENT: `hom`, a regime of the protocol, or `a:b`, the parameters of a Beta
            distribution. SAMPLE: `none`, a name of `CHAINS`, or `p00:p11`. One word alone is the client axis, with
            nothing missing on the sample axis (`none` alone: nothing missing at all).
        protocol: A name of `PROTOCOLS`.
        option: What the text was given for, for messages.

    Returns:
        The regime.

    Raises:
        UsageError: A name is unknown or a number out of range.

    Example:
        >>> parse("mod,high", "sensing")
        Regime(beta=(45, 20), chain=(0.9, 0.9))
    """
    client, sample = _axes(text, option)
    known = PROTOCOLS[protocol].beta
    beta = chain = None
    if ":" in client:
        beta = _pair(client, f"client axis of {option}", "a:b, parameters of a Beta distribution, both above 0")
        if min(beta) <= 0 or math.isinf(sum(beta)):
            raise UsageError(
                f"client axis of {option} is {client!r}: parameters of a Beta distribution are above 0, "
                "their sum finite"
            )
    elif choose(f"regime of the client axis in {option}", client, [HOMOGENEOUS, *known]) != HOMOGENEOUS:
        beta = known[client]
    if ":" in sample:
        chain = _pair(sample, f"sample axis of {option}", "p00:p11, probabilities in [0, 1]")
        if min(chain) < 0 or max(chain) > 1 or sum(chain) >= 2:
            raise UsageError(
                f"sample axis of {option} is {sample!r}: p00 and p11, the probabilities of staying missing and of "
                "staying observed, must be in [0, 1] and not both 1"
            )
    elif choose(f"regime of the sample axis in {option}", sample, [COMPLETE, *CHAINS]) != COMPLETE:
        chain = CHAINS[sample]
    return Regime(beta, chain)


def canonical(text: str, option: str = "missing") -> str:
    """`CLIENT,SAMPLE` for what a user wrote.

    Raises:
        UsageError: It is not one word or two.
    """
    return ",".join(_axes(text, option))


def listing() -> list[tuple[str, str, str]]:
    """Every named regime: axis, name and what it means."""
    rows = [("client", HOMOGENEOUS, "every client keeps its modalities")]
    for protocol, content in PROTOCOLS.items():
        for name, (a, b) in content.beta.items():
            rows.append(
                (
                    "client",
                    name,
                    f"{protocol}: a client has each modality with q ~ Beta({a}, {b}), mean {a / (a + b):.3g}",
                )
            )
    rows.append(("sample", COMPLETE, "every sample keeps its modalities"))
    for name, (p00, p11) in CHAINS.items():
        missing = (1 - p11) / (2 - p00 - p11)
        rows.append(
            ("sample", name, f"each modality fails along the order, p00 {p00}, p11 {p11}: {missing:.0%} missing")
        )
    return rows


def _axes(text: str, option: str) -> tuple[str, str]:
    words = [word.strip() for word in text.split(",")] if isinstance(text, str) else []
    if len(words) == 1 and words[0]:
        return (HOMOGENEOUS, COMPLETE) if words[0] == COMPLETE else (words[0], COMPLETE)
    if len(words) != 2 or not all(words):
        raise UsageError(
            f"{option} is {text!r}, must be CLIENT,SAMPLE such as mod,high: how many modalities clients lack, then "
            "how many their samples lack"
        )
    return words[0], words[1]


def _pair(text: str, what: str, form: str) -> Pair:
    try:
        first, second = (float(part) for part in text.split(":"))
    except ValueError:
        first = second = math.nan
    if not (math.isfinite(first) and math.isfinite(second)):
        raise UsageError(f"{what} is {text!r}, must be a name or {form}")
    return first, second
