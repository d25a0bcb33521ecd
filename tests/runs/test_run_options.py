import typing

import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.runs.options import as_json, convert, keywords, seeds

WIDTHS = tuple[tuple[int, ...], ...] | None


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        (np.int64(3), int, 3),
        (" 0.5", float, 0.5),
        (2, float, 2.0),
        (np.float32(0.5), float, 0.5),
        ("true", bool, True),
        ("false", bool, False),
        ("none", float | None, None),
        (None, typing.Optional[float], None),  # noqa: UP045
        ("1", float | int, 1),
        ("1.0", float | int, 1.0),
        (1, float | int, 1),
        (1.0, float | int, 1.0),
        ("iid", float | str, "iid"),
        ("dnn,dnn_bn", tuple[str, ...], ("dnn", "dnn_bn")),
        (["dnn"], tuple[str, ...], ("dnn",)),
        ("2,1,1", tuple[int, ...], (2, 1, 1)),
        ("none,128,256-64", WIDTHS, ((), (128,), (256, 64))),
        ("128", WIDTHS, ((128,),)),
        ("none", WIDTHS, None),
        ("none,", WIDTHS, ((),)),
        ([[], [256, 64]], WIDTHS, ((), (256, 64))),
    ],
)
def test_values_come_out_as_declared(value, kind, expected):
    found = convert(value, kind, "it")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("False", bool, "true or false"),
        ("0", bool, "true or false"),
        (1, bool, "true or false"),
        (True, int, "an integer"),
        (3.0, int, "an integer"),
        ("3.0", int, "an integer"),
        (True, float, "a finite number"),
        ("nan", float, "a finite number"),
        (float("inf"), float, "a finite number"),
        ("", float | None, "a finite number or none"),
        (3, str, "text"),
        ("a,b", tuple[int, ...], "a list, each an integer"),
        (3, tuple[int, ...], "a list, each an integer"),
        (None, str, "text"),
        ("-5", WIDTHS, "a list, each an integer, several joined by -, or none or none"),
        ("128,-", WIDTHS, "a list, each an integer, several joined by -, or none or none"),
        ([128], WIDTHS, "a list, each an integer, several joined by -, or none or none"),
    ],
)
def test_other_values_are_refused_in_words(value, kind, words):
    # T87b: "False" is never true.
    with pytest.raises(UsageError, match=rf"^it is .*, must be {words}$"):
        convert(value, kind, "it")


def test_unknown_names_meet_the_nearest():
    with pytest.raises(UsageError, match="unknown setting 'epoch'; did you mean epochs"):
        keywords({"epoch": 3}, {"epochs": int, "lr": float}, what="setting")


@pytest.mark.parametrize(
    ("value", "expected"), [(2, (0, 1)), ("5", (0, 1, 2, 3, 4)), ("0,3,7", (0, 3, 7)), ("3,", (3,)), ([3], (3,))]
)
def test_seeds(value, expected):
    assert seeds(value) == expected


def test_numpy_and_range_seeds():
    assert seeds(np.array([4, 5])) == (4, 5)
    assert seeds(range(2)) == (0, 1)


@pytest.mark.parametrize("value", [0, "0", "-1", "a", 1.5, "1,x", None])
def test_wrong_seeds(value):
    with pytest.raises(UsageError, match="seeds is"):
        seeds(value)


def test_tuples_are_lists_in_json():
    assert as_json(("a", ("b",))) == ["a", ["b"]]
    assert as_json(0.5) == 0.5
