import hashlib

import numpy as np
import pytest

from fedjax_mm.data import load_data
from fedjax_mm.errors import UsageError

GOOD = {
    "acc.csv": "ax,ay\n1,2\n3,4\n,\n7,8.5\n",
    "pulse.csv": "60\n\n80\n90\n",
    "labels.csv": "activity,client,order,group,mood\nwalk,01,0,a,3\nrun,01,1,a,7\nwalk,1,0,b,3\nrun,1,1,b,7\n",
}


@pytest.fixture
def load(tmp_path):
    def load(label="y", **changes):
        for name, text in (GOOD | {f"{key}.csv": text for key, text in changes.items()}).items():
            if text is not None:
                (tmp_path / name).write_text(text)
        return load_data(tmp_path, label=label)

    return load


def test_good_folder(load, tmp_path):
    data = load()
    assert data.name == tmp_path.name and data.source == str(tmp_path)
    assert data.modalities == ("acc", "pulse") and data.classes == ("run", "walk")
    np.testing.assert_array_equal(data.observed, [[True, True], [True, False], [False, True], [True, True]])
    np.testing.assert_array_equal(data.inputs["acc"][[0, 1, 3]], [[1, 2], [3, 4], [7, 8.5]])
    np.testing.assert_array_equal(data.inputs["pulse"][[0, 2, 3]], [[60], [80], [90]])
    assert data.client is not None and data.client.tolist() == ["01", "01", "1", "1"]
    assert data.order is not None and data.order.tolist() == [0, 1, 0, 1]
    assert data.group is not None and data.group.tolist() == ["a", "a", "b", "b"]
    assert data.labels.tolist() == [1, 0, 1, 0] and data.other_labels["mood"].tolist() == [3, 7, 3, 7]
    mood = load(label="mood")
    assert mood.classes == ("3", "7") and mood.other_labels["y"].tolist() == ["walk", "run", "walk", "run"]


def test_header_is_optional_and_a_first_row_may_be_empty(load):
    for text in (",\n1,2\n3,4\n5,6\n", "ax,2\n,\n1,2\n3,4\n5,6\n", "NA,NaN\n1,2\n3,4\n5,6\n"):
        data = load(acc=text)
        assert data.observed[:, 0].tolist() == [False, True, True, True]
        np.testing.assert_array_equal(data.inputs["acc"][1:], [[1, 2], [3, 4], [5, 6]])


def test_column_y_is_the_label_wherever_it_stands(load):
    data = load(labels="mood,y\n3,4\n3,5\n7,4\n7,5\n")
    assert data.classes == ("4", "5") and set(data.other_labels) == {"mood"}


def test_class_names_that_look_like_missing_values(load):
    assert load(labels="y\nNA\nnan\nNA\nnull\n").classes == ("NA", "nan", "null")


def test_digest_is_of_names_and_contents(load, tmp_path):
    first = load().sha256
    lines = [f"{name} {hashlib.sha256(GOOD[name].encode()).hexdigest()}\n" for name in sorted(GOOD)]
    assert first == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert load(pulse="61\n\n80\n90\n").sha256 != first
    (tmp_path / "notes.txt").write_text("not data")
    assert load().sha256 == first


ERRORS = {
    "no labels": ({"labels": None}, r"has no labels: labels\.csv"),
    "only labels": ({"acc": None, "pulse": None}, "has no modality"),
    "rows": ({"acc": "1,2\n3,4\n5,6\n"}, r"'x.acc' in .* has shape \(3, 2\).* 4 labels"),
    "no rows": ({"acc": "ax,ay\n"}, r"acc\.csv cannot be read"),
    "empty file": ({"acc": ""}, r"acc\.csv cannot be read"),
    "text cell": (
        {"acc": "1,2\n3,four\n5,6\n7,8\n"},
        r"acc\.csv has 'four' in row 1, column 1 .*; features are numbers",
    ),
    "text below a header": ({"acc": "a,b\n1,2\n3,4\n5,x\n7,8\n"}, "'x' in row 2, column 1 "),
    "partly empty": ({"acc": "1,2\n3,\n5,6\n7,\n"}, r"acc\.csv has 2 rows .* the first is row 1"),
    "short row": ({"acc": "a,b\n1,2\n3\n5,6\n7,8\n"}, r"acc\.csv has 1 rows .* the first is row 1"),
    "long row": ({"acc": "1,2\n3,4,5\n5,6\n7,8\n"}, r"acc\.csv cannot be read"),
    "rows longer than the header": (
        {"acc": "a\n1,2\n3,4\n5,6\n7,8\n"},
        r"acc\.csv has 1 cells in its header, but 2 in the rows",
    ),
    "inf": ({"acc": "1,2\n3,inf\n5,6\n7,8\n"}, "'x.acc' in .* infinite .* sample 1 "),
    "labels without header": ({"labels": "0\n1\n0\n1\n"}, r"labels\.csv must begin with a header"),
    "empty label": ({"labels": "y,client\na,k\n,k\na,l\nb,l\n"}, r"labels\.csv has an empty cell in row 2 .*'y'"),
    "missing label cell": (
        {"labels": "y,client\na,k\nb\na,l\nb,l\n"},
        r"labels\.csv has an empty cell in row 2 .*'client'",
    ),
    "no label column": ({"labels": "client,order\na,0\na,1\nb,0\nb,1\n"}, "has no labels"),
    "reserved column": ({"labels": "y,classes\na,0\nb,1\nb,0\nb,1\n"}, r"labels\.csv cannot have .*'classes'"),
    "floating order": ({"labels": "y,order\na,0\nb,0.5\nb,1\nb,2\n"}, "'order' in .* must be integers"),
    "row names": ({"acc": "a,b\n0,1,2\n1,3,4\n2,5,6\n3,7,8\n"}, "2 cells in its header, but 3 in the rows"),
    "two columns of one name": ({"labels": "y,y\na,a\nb,b\nb,b\na,a\n"}, r"labels\.csv .* distinct column names"),
    "unnamed column": ({"labels": ",y\n0,a\n1,b\n2,b\n3,a\n"}, r"labels\.csv has an empty cell in row 0"),
    "long label row": ({"labels": "y\na\nb,c\nb\na\n"}, r"labels\.csv cannot be read"),
    "one class": ({"labels": "y\na\na\na\na\n"}, "fewer than two classes"),
}


@pytest.mark.parametrize("changes,message", ERRORS.values(), ids=ERRORS)
def test_error(load, changes, message):
    with pytest.raises(UsageError, match=message):
        load(**changes)


def test_spreadsheet_exports_begin_with_a_byte_order_mark(load):
    data = load(acc="\ufeff1,2\n3,4\n5,6\n7,8\n", labels="\ufeffy\r\na\r\nb\r\nb\r\na\r\n")
    assert data.inputs["acc"].shape == (4, 2) and data.classes == ("a", "b") and data.label == "y"


def test_bytes_that_are_no_text(load, tmp_path):
    (tmp_path / "image.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(UsageError, match=r"image\.csv cannot be read"):
        load()


def test_empty_folder(tmp_path):
    with pytest.raises(UsageError, match=r"has no \.csv files"):
        load_data(tmp_path)
