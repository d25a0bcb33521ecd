"""What users write for a missingness."""

import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.federation import federate
from fedjax_mm.federation.regimes import CHAINS, PROTOCOLS, Regime, canonical, listing, parse


@pytest.mark.parametrize(
    ("text", "protocol", "beta", "chain"),
    [
        ("hom,none", "sensing", None, None),
        ("none", "sensing", None, None),
        ("hom", "adni", None, None),
        ("mod,high", "sensing", (45, 20), (0.9, 0.9)),
        ("high , mod", "sensing", (45, 45), (0.8, 0.95)),
        ("mod", "adni", (17, 3), None),
        ("high,none", "adni", (6, 14), None),
        ("2:0.5,none", "sensing", (2, 0.5), None),
        ("hom,0.25:1", "sensing", None, (0.25, 1)),
        ("hom,0:0", "sensing", None, (0, 0)),
    ],
)
def test_regimes(text, protocol, beta, chain):
    # The Beta parameters are those of Flux, Appendix B.
    assert parse(text, protocol) == Regime(beta, chain)


def test_every_listed_regime_can_be_used():
    for axis, name, _ in listing():
        for protocol in PROTOCOLS:
            parse(f"{name},none" if axis == "client" else f"hom,{name}", protocol)
    assert {name for axis, name, _ in listing() if axis == "sample"} == {"none", *CHAINS}
    assert canonical("mod") == "mod,none" and canonical(" mod , high") == "mod,high"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hgih,none", "unknown regime of the client axis in missing 'hgih'; did you mean high"),
        ("hom,hgih", "unknown regime of the sample axis in missing 'hgih'; did you mean high"),
        ("mod,high,none", "missing is 'mod,high,none', must be CLIENT,SAMPLE such as mod,high"),
        ("", "missing is '', must be CLIENT,SAMPLE"),
        (",none", "must be CLIENT,SAMPLE"),
        (0.5, "missing is 0.5, must be CLIENT,SAMPLE"),
        ("hom,0.5:1.5", r"'0.5:1.5': p00 and p11, .* must be in \[0, 1\] and not both 1"),
        ("hom,-0.1:0.5", r"must be in \[0, 1\]"),
        ("hom,1:1", "not both 1"),
        ("hom,nan:0.5", r"must be a name or p00:p11, probabilities in \[0, 1\]"),
        ("hom,0.5:x", "must be a name or p00:p11"),
        ("hom,0.5:0.5:0.5", "must be a name or p00:p11"),
        ("0:5,none", "parameters of a Beta distribution are above 0"),
        ("-1:5,none", "parameters of a Beta distribution are above 0"),
        ("1e308:1e308,none", "their sum finite"),
        ("inf:5,none", "must be a name or a:b"),
    ],
)
def test_bad_regimes(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text, "sensing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "hom,mod"}, "missing 'hom,mod' lets modalities fail along the order .* 'tiny' has no order"),
        ({"test_missing": "hom,mod"}, "test_missing 'hom,mod' lets modalities fail"),
        ({"test_missing": "bad"}, "unknown regime of the client axis in test_missing 'bad'"),
        ({"missing_protocol": "andi"}, "unknown missing_protocol 'andi'; did you mean adni"),
        ({"missing": "mod", "empty": "fix"}, "unknown way to treat empty samples: 'fix'.*repair, drop"),
    ],
)
def test_what_does_not_fit_the_data(make, options, message):
    with pytest.raises(UsageError, match=message):
        federate(make([0, 1] * 20), partition="all", **options)


def test_one_modality_has_nothing_to_miss(make):
    data = make([0, 1] * 20, modalities=1, order=range(40))
    assert federate(data, partition="all", missing="hom,none").size == 1
    for options in ({"missing": "mod"}, {"missing": "hom,high"}, {"test_missing": "high"}):
        with pytest.raises(UsageError, match="needs at least two modalities, and 'tiny' has only one"):
            federate(data, partition="all", **options)
