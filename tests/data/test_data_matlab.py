"""Hand-made MATLAB files in the layouts that multi-view data sets are shared in."""

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from fedjax_mm.data import load_data
from fedjax_mm.errors import UsageError

N = 6
A = np.arange(N * 3, dtype=float).reshape(N, 3)
B = -np.arange(N * 2, dtype=float).reshape(N, 2)
Y = np.array([2, 1, 2, 3, 1, 3])


def cell(*entries, column=False):
    array = np.empty((len(entries), 1) if column else (1, len(entries)), object)
    for index, entry in enumerate(entries):
        array.flat[index] = entry
    return array


@pytest.fixture
def load(tmp_path):
    def load(pick="y", **variables):
        scipy.io.savemat(tmp_path / "set.mat", variables)
        return load_data(tmp_path / "set.mat", label=pick)

    return load


def check(data, names=("view1", "view2")):
    assert data.modalities == tuple(names)
    np.testing.assert_array_equal(data.inputs[names[0]], A)
    np.testing.assert_array_equal(data.inputs[names[1]], B)
    assert set(data.kinds.values()) == {"vector"} and data.observed.all()
    assert data.labels.tolist() == [1, 0, 1, 2, 0, 2]


@pytest.mark.parametrize("views", ["X", "data", "fea", "views", "my_cells"])
@pytest.mark.parametrize("labels", ["Y", "y", "gt", "gnd", "label", "labels", "truth", "true_label"])
def test_names_of_variables(load, views, labels):
    data = load(**{views: cell(A, B), labels: Y[:, None]})
    check(data)
    assert data.classes == ("1", "2", "3") and data.name == "set"


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("transposed", [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("labels", [Y[:, None], Y[None, :].astype(float)], ids=["column", "row of doubles"])
def test_layouts(load, column, transposed, sparse, labels):
    views = [view.T if flip else view for view, flip in zip((A, B), transposed, strict=True)]
    views = [scipy.sparse.csc_matrix(view) if sparse else view for view in views]
    check(load(X=cell(*views, column=column), Y=labels))


def test_several_matrices_keep_their_names(load):
    data = load(colour=A, shape=B.T, gt=Y, count=3)
    assert set(data.modalities) == {"colour", "shape"}
    check(data, ("colour", "shape"))


def test_names_cell(load):
    check(load(X=cell(A, B), Y=Y, names=cell("colour", "shape")), ("colour", "shape"))
    check(load(X=cell(A, B), Y=Y, view_names=cell("colour", "shape", column=True)), ("colour", "shape"))
    check(load(X=cell(A, B), Y=Y, names=np.array(["colour", "shape"])), ("colour", "shape"))
    for wrong in (cell("one"), cell("same", "same"), cell(1.0, 2.0)):
        with pytest.raises(UsageError, match=r"names in .* must hold 2 different strings"):
            load(X=cell(A, B), Y=Y, names=wrong)


@pytest.mark.parametrize("sparse", [False, True])
def test_one_hot_labels_count_classes_from_one(load, sparse):
    onehot = np.eye(4)[Y - 1]  # the fourth class has no sample
    for matrix in (onehot, onehot.T):
        data = load(X=cell(A, B), Y=scipy.sparse.csc_matrix(matrix) if sparse else matrix)
        check(data)
        assert data.classes == ("1", "2", "3")


def test_labels_of_text_and_any_integers(load):
    assert load(X=cell(A, B), Y=cell(*"bababa", column=True)).classes == ("a", "b")
    assert load(X=cell(A, B), Y=np.array(["dog", "cat "] * 3)).classes == ("cat", "dog")
    data = load(X=cell(A, B), Y=np.array([-5, 100, -5, 7, 100, 7]))
    assert data.classes == ("-5", "7", "100") and data.labels.tolist() == [0, 2, 0, 1, 2, 1]


def test_a_square_view_is_read_by_rows(load):
    square = np.arange(N * N, dtype=float).reshape(N, N)
    np.testing.assert_array_equal(load(X=cell(square, A), Y=Y).inputs["view1"], square)


def test_a_single_feature_and_images_with_samples_last(load):
    images = np.arange(4 * 5 * N, dtype=float).reshape(4, 5, N)
    data = load(X=cell(np.arange(N)[None, :], images), Y=Y)
    np.testing.assert_array_equal(data.inputs["view1"], np.arange(N)[:, None])
    np.testing.assert_array_equal(data.inputs["view2"][2], images[:, :, 2])


def test_matrices_named_x_and_y_beside_labels(load):
    check(load(X=A, Y=B, gt=Y), ("X", "Y"))


def test_several_label_arrays(load):
    data = load(X=cell(A, B), Y=Y, labels=np.array([0, 1, 0, 1, 0, 1]))
    check(data)
    assert data.other_labels["labels"].tolist() == [0, 1, 0, 1, 0, 1]
    other = load("labels", X=cell(A, B), Y=Y, labels=np.array([0, 1, 0, 1, 0, 1]))
    assert other.classes == ("0", "1") and other.other_labels["y"].tolist() == Y.tolist()


ERRORS = {
    "no labels": ({"X": cell(A, B)}, "has no labels.*it has X"),
    "nothing": ({}, "has no labels.*it has no variables"),
    "no views": ({"Y": Y}, "has no views"),
    "fractions": ({"X": cell(A, B), "Y": Y + 0.5}, "Y in .* not whole numbers"),
    "nan label": ({"X": cell(A, B), "Y": np.array([1, 2, np.nan, 1, 2, 1])}, "Y in .* not whole numbers"),
    "rows": ({"X": cell(A, B[:5]), "Y": Y}, r"view view2 of .* has shape \(5, 2\), but there are 6 labels"),
    "rows of a matrix": ({"colour": A, "shape": B[:5], "Y": Y}, "view shape of .* has shape"),
    "text among the views": ({"X": cell(A, "b"), "Y": Y}, r"X\{2\} in .* is not a numeric matrix"),
    "cell among the views": ({"X": cell(A, cell(B, B)), "Y": Y}, r"X\{2\} in .* is not a numeric matrix"),
    "several cells": ({"X": cell(A), "fea": cell(B), "Y": Y}, "several cell arrays of matrices, X, fea"),
    "nan": ({"X": cell(A, B * np.nan), "Y": Y}, "'x.view2' in .* NaN"),
    "one class": ({"X": cell(A, B), "Y": np.ones(N)}, "fewer than two classes"),
}


@pytest.mark.parametrize("variables,message", ERRORS.values(), ids=ERRORS)
def test_error(load, variables, message):
    with pytest.raises(UsageError, match=message):
        load(**variables)


def test_version_7_3_is_named(tmp_path):
    path = tmp_path / "set.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(400))
    with pytest.raises(UsageError, match=r"7\.3 \(HDF5\) file.*-v7"):
        load_data(path)


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.6, 0.95])
def test_damaged_file(tmp_path, keep):
    path = tmp_path / "set.mat"
    scipy.io.savemat(path, {"X": cell(A, B), "Y": Y}, do_compression=True)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(UsageError, match=f"{path}"):
        load_data(path)
