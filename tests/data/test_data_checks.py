"""Every thing that can be wrong with arrays gets one error that names it, whatever file they came from."""

import numpy as np
import pytest

from fedjax_mm.data import load_data
from fedjax_mm.data.checks import assemble, guess_kind
from fedjax_mm.errors import UsageError


def good():
    return {
        "x.a": np.arange(12, dtype=np.float32).reshape(6, 2),
        "x.b": np.arange(36, dtype=np.float64).reshape(6, 3, 2),
        "x.words": np.array(["a", "b c", "", "d", "e", "f"]),
        "observed.b": np.array([True, True, False, True, True, True]),
        "y": np.array([0, 1, 0, 1, 0, 1]),
        "classes": np.array(["no", "yes"]),
        "client": np.array(["k", "k", "k", "l", "l", "l"]),
        "order": np.array([0, 1, 2, 0, 1, 2]),
        "group": np.array([0, 0, 1, 1, 2, 2]),
        "extra": np.array([3, 7, 3, 7, 7, 3]),
    }


def changed(**changes):
    arrays = good() | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in arrays.items() if value is not None}


def test_good_arrays():
    data = assemble(good(), where="here", name="name")
    assert data.modalities == ("a", "b", "words")
    assert data.kinds == {"a": "vector", "b": "time-series", "words": "language"}
    assert data.inputs["a"].dtype == data.inputs["b"].dtype == np.float32
    np.testing.assert_array_equal(data.observed[2], [True, False, True])
    assert data.observed.sum() == 17
    assert data.labels.dtype == np.int32 and data.classes == ("no", "yes")
    assert set(data.other_labels) == {"extra"}


NAN_AT_3 = np.where(np.arange(6)[:, None] == 3, np.nan, np.ones((6, 2)))
INF_AT_4 = np.where(np.arange(6)[:, None] >= 4, [1.0, -np.inf], 1.0)

ERRORS = {
    "no labels": ({"y": None}, "has no labels.*pick another label array: extra"),
    "no modality": ({"x__a": None, "x__b": None, "x__words": None, "observed__b": None}, "here has no modality"),
    "modality without a name": ({"x__": np.ones((6, 2))}, "has no modality"),
    "rows": ({"x__a": np.ones((5, 2))}, r"'x.a' in here has shape \(5, 2\).* 6 labels"),
    "rows of the client": ({"client": np.array(["k"] * 7)}, "'client' in here has shape"),
    "rows of another array": ({"extra": np.arange(4)}, "'extra' in here has shape"),
    "scalar modality": ({"x__a": np.float32(1)}, "'x.a' in here has shape"),
    "no feature axis": ({"x__a": np.ones(6)}, r"features are \[n, d\]"),
    "no features": ({"x__a": np.ones((6, 0))}, "nothing empty"),
    "five axes": ({"x__a": np.ones((6, 1, 1, 1, 1))}, "has shape"),
    "text of two axes": ({"x__words": np.array([["a", "b"]] * 6)}, "text is one string per sample"),
    "objects": ({"x__a": np.array([{}] * 6)}, "'x.a' in here is an array of type object"),
    "complex": ({"x__a": np.ones((6, 2), complex)}, "'x.a' in here is an array of type complex128"),
    "ragged": ({"x__a": [[1, 2], [3], [4], [5], [6], [7]]}, "'x.a' in here is not an array"),
    "nan": ({"x__a": NAN_AT_3}, "'x.a' in here has 2 NaN or infinite .* first in sample 3 .*'observed.a'"),
    "inf": ({"x__a": INF_AT_4}, "'x.a' in here has 2 NaN or infinite .* first in sample 4"),
    "too large": ({"x__a": np.full((6, 2), 1e300)}, "12 values beyond 32-bit floats"),
    "labels of two axes": ({"y": np.zeros((6, 1), int)}, r"'y' in here has shape \(6, 1\)"),
    "floating labels": ({"y": np.array([0.0, 1, 0, 1, 0, 1])}, "'y' in here holds float64"),
    "label too large": ({"y": np.array([0, 1, 0, 2, 0, 1])}, r"label 2 at sample 3; ids are 0\.\.1"),
    "negative label": ({"y": np.array([0, -1, 0, 1, 0, 1])}, "label -1 at sample 1"),
    "label of no class": ({"y": np.array(["no", "on"] * 3)}, "label 'on' at sample 1; the classes are no, yes"),
    "one class": ({"y": np.zeros(6, int)}, "'y' in here has fewer than two classes"),
    "one class without names": ({"y": np.zeros(6, int), "classes": None}, "fewer than two classes"),
    "no samples": (
        {key.replace(".", "__"): value[:0] for key, value in good().items() if key != "classes"},
        "fewer than two classes among its 0 samples",
    ),
    "equal class names": ({"classes": np.array(["no", "no"])}, "class names of 'y' in here are not distinct"),
    "floating class names": ({"classes": np.array([0.5, 1.5])}, "'classes' in here must be class names"),
    "observed without x": ({"observed__aa": np.ones(6, bool)}, "it has no 'x.aa'.*did you mean a"),
    "type without x": ({"type__wards": "language"}, "it has no 'x.wards'.*did you mean words"),
    "unknown prefix": ({"obs__a": np.ones(6, bool)}, "prefix of 'obs.a' in here.*did you mean observed"),
    "observed of another type": (
        {"observed__a": np.ones(6, int)},
        r"'observed.a' in here must be bool \[6\]; it is int",
    ),
    "observed of another shape": ({"observed__a": np.ones((6, 1), bool)}, r"'observed.a' in here must be bool \[6\]"),
    "unknown kind": ({"type__b": "tme-series"}, "kind of modality 'b' in here.*did you mean time-series"),
    "kind of two strings": ({"type__b": np.array(["image", "audio"])}, "'type.b' in here must be one string"),
    "text that is no language": (
        {"type__words": "vector"},
        "'type.words' in here is vector, but 'x.words' holds strings",
    ),
    "vector of three axes": ({"type__b": "vector"}, r"'type.b' in here is vector, but 'x.b' has shape \(6, 3, 2\)"),
    "ties": ({"order": np.array([0, 1, 2, 0, 5, 5])}, "samples 4 and 5 of client 'l' both have 5"),
    "ties without clients": ({"client": None}, "samples 0 and 3 both have 0"),
    "floating order": ({"order": np.arange(6.0)}, "'order' in here must be integers"),
    "floating client": ({"client": np.arange(6.0)}, "'client' in here must be integers or strings"),
    "group and series": ({"series": np.arange(6)}, "both 'group' and 'series'"),
    "licence that is no text": ({"licence": np.arange(6)}, "'licence' in here must be one string"),
}


@pytest.mark.parametrize("changes,message", ERRORS.values(), ids=ERRORS)
def test_error(changes, message):
    with pytest.raises(UsageError, match=message):
        assemble(changed(**changes), where="here", name="name")


@pytest.mark.parametrize("key", ["x.a", "y", "client"])
def test_object_array_in_a_file(tmp_path, key):
    path = tmp_path / "set.npz"
    np.savez(path, **(good() | {key: np.array([{}] * 6)}))
    with pytest.raises(UsageError, match=rf"'{key}' in {path} is an object array"):
        load_data(path)


def test_values_of_unobserved_samples_do_not_matter():
    values = np.ones((6, 3, 2))
    values[2] = np.nan
    assert not assemble(changed(x__b=values), where="here", name="name").observed[2, 1]


def test_a_sample_without_any_modality_is_allowed():
    mask = np.array([True, True, False, True, True, True])
    data = assemble(changed(observed__a=mask, observed__words=mask), where="here", name="name")
    assert data.size == 6 and not data.observed[2].any()


def test_order_may_repeat_between_clients_but_clients_may_be_integers():
    data = assemble(changed(client=np.array([1, 1, 1, 2, 2, 2])), where="here", name="name")
    assert data.client is not None and data.client.tolist() == ["1", "1", "1", "2", "2", "2"]


def test_series_is_another_name_of_group():
    data = assemble(changed(group=None, series=np.arange(6)), where="here", name="name")
    np.testing.assert_array_equal(data.group, np.arange(6))
    assert "series" not in data.other_labels


@pytest.mark.parametrize(
    "array,kind",
    [
        (np.array(["a"]), "language"),
        (np.zeros((1, 4, 4), np.uint8), "image"),
        (np.zeros((1, 4, 4, 3), np.uint8), "image"),
        (np.zeros((1, 4), np.uint8), "vector"),
        (np.zeros((1, 4)), "vector"),
        (np.zeros((1, 4, 4)), "time-series"),
        (np.zeros((1, 4, 4, 3)), "image"),
    ],
)
def test_guessed_kind(array, kind):
    assert guess_kind(array) == kind


def test_numbers_become_float32_but_images_and_halves_stay():
    arrays = {
        "x.image": np.zeros((2, 4, 4), np.uint8),
        "x.pixels": np.array([[0, 255], [7, 8]], np.uint8),
        "x.half": np.ones((2, 3), np.float16),
        "x.swapped": np.ones((2, 3), ">f4"),
        "x.counts": np.array([[1], [2]], np.int64),
        "x.flags": np.array([[True], [False]]),
        "x.bytes": np.array([b"a", "é".encode()]),
        "x.objects": np.array(["a", "bc"], object),
        "y": np.array([0, 1]),
    }
    inputs = assemble(arrays, where="here", name="name").inputs
    types = {key: array.dtype for key, array in inputs.items()}
    assert types == {
        "image": np.uint8,
        "pixels": np.float32,
        "half": np.float16,
        "swapped": np.dtype("=f4"),
        "counts": np.float32,
        "flags": np.float32,
        "bytes": np.dtype("<U1"),
        "objects": np.dtype("<U2"),
    }
    assert types["swapped"].isnative
    np.testing.assert_array_equal(inputs["pixels"], [[0, 255], [7, 8]])
    assert inputs["bytes"].tolist() == ["a", "é"]
