import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_mm.data import load_data
from fedjax_mm.data.labels import decode, encode
from fedjax_mm.errors import UsageError


def test_arbitrary_integers():
    ids, classes = encode(np.array([7, 3, 3, 10, 7]), what="it")
    assert ids.dtype == np.int32 and ids.tolist() == [1, 0, 0, 2, 1]
    assert classes == ("3", "7", "10")


def test_names_in_the_order_of_classes():
    ids, classes = encode(np.array(["a", "b", "a"]), what="it", classes=["b", "a", "unused"])
    assert ids.tolist() == [1, 0, 1] and classes == ("b", "a", "unused")


def test_bools():
    ids, classes = encode(np.array([True, False]), what="it")
    assert ids.tolist() == [1, 0] and classes == ("False", "True")


values = st.lists(st.integers(-(10**12), 10**12), min_size=1) | st.lists(st.text("ab01-", max_size=3), min_size=1)


@given(values)
def test_decode_gives_what_encode_reads_the_same(raw):
    raw = np.array(raw)
    ids, classes = encode(raw, what="it")
    assert [classes[index] for index in ids] == [str(value) for value in raw]
    assert len(set(classes)) == len(classes)
    again, same = encode(decode(ids, classes), what="it")
    np.testing.assert_array_equal(again, ids)
    assert same == classes


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(
        path,
        **{"x.a": np.eye(4), "y": np.array([1, 0, 0, 1]), "classes": np.array(["well", "ill"])},
        number=np.array([7, 3, 7, 3]),
        word=np.array(["u", "v", "w", "u"]),
        age=np.array([0.5, 1.5, 2.5, 3.5]),
        same=np.array([5, 5, 5, 5]),
    )
    return path


def test_another_label_array(file):
    data = load_data(file, label="word")
    assert data.label == "word" and data.classes == ("u", "v", "w") and data.labels.tolist() == [0, 1, 2, 0]
    assert set(data.other_labels) == {"y", "number", "age", "same"}
    assert data.other_labels["y"].tolist() == ["ill", "well", "well", "ill"]
    numbers = load_data(file, label="number")
    assert numbers.classes == ("3", "7") and numbers.labels.tolist() == [1, 0, 1, 0]


def test_labels_that_cannot_be_used(file):
    with pytest.raises(UsageError, match="'wrod'; did you mean word"):
        load_data(file, label="wrod")
    with pytest.raises(UsageError, match="valid: y, number, word, age, same"):
        load_data(file, label="zzzzzzz")
    with pytest.raises(UsageError, match=r"'age' in .* holds float64"):
        load_data(file, label="age")
    with pytest.raises(UsageError, match=r"'same' in .* has fewer than two classes"):
        load_data(file, label="same")


def test_only_one_class_in_y_does_not_matter_where_another_is_picked(tmp_path):
    np.savez(tmp_path / "set.npz", **{"x.a": np.eye(2), "y": np.zeros(2, int), "word": np.array(["u", "v"])})
    assert load_data(tmp_path / "set.npz", label="word").classes == ("u", "v")
