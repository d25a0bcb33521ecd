import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as oracle

from fedjax_mm.metrics.classification import METRICS, accuracy, classification, macro_f1
from fedjax_mm.metrics.evaluation import Sums, unrecorded
from fedjax_mm.metrics.weighting import POPULATIONS, populations


def drawn(confusion):
    """The labels and predictions a confusion matrix counts."""
    rows, columns = np.indices(confusion.shape)
    return np.repeat(rows.ravel(), confusion.ravel()), np.repeat(columns.ravel(), confusion.ravel())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(hnp.arrays(np.int64, st.integers(2, 6).map(lambda c: (c, c)), elements=st.sampled_from([0, 0, 0, 1, 2, 7])))
def test_agrees_with_scikit_learn_whatever_classes_are_absent(confusion):
    values = classification(unrecorded(confusion, np.array(3.0)))
    if not confusion.any():
        assert all(np.isnan(value) for value in values.values())
        return
    truth, predicted = drawn(confusion)
    np.testing.assert_allclose(values["accuracy"], oracle.accuracy_score(truth, predicted), rtol=1e-12)
    np.testing.assert_allclose(
        values["macro_f1"], oracle.f1_score(truth, predicted, average="macro", zero_division=0), rtol=1e-12
    )
    every = oracle.f1_score(truth, predicted, average="macro", labels=np.arange(len(confusion)), zero_division=0)
    np.testing.assert_allclose(values["macro_f1_all"], every, rtol=1e-12)
    np.testing.assert_allclose(values["loss"], 3.0 / confusion.sum(), rtol=1e-12)


def test_stacked_confusions_are_the_single_ones():
    confusion = np.random.default_rng(0).integers(0, 5, (2, 3, 4, 4))
    loss = np.random.default_rng(1).random((2, 3))
    stacked = classification(sums := drawn_sums(confusion, loss))
    assert list(stacked) == list(METRICS)
    for index in np.ndindex(2, 3):
        for name, value in classification(sums.map(lambda leaf, index=index: leaf[index])).items():
            assert stacked[name][index] == value


def test_a_class_that_is_never_right_has_f1_zero():
    # T40: class 1 is in the truth twice, predicted once, never right: P + R = 0.
    confusion = np.array([[3, 1], [2, 0]])
    assert macro_f1(confusion) == (2 * 3 / 9 + 0) / 2


def test_an_absent_class_is_left_out_unless_asked_for():
    # T42: class 2 is in neither truth nor prediction.
    confusion = np.array([[2, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert macro_f1(confusion) == 1.0
    assert macro_f1(confusion, absent=True) == pytest.approx(2 / 3)


def test_a_class_that_is_only_predicted_counts():
    confusion = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert macro_f1(confusion) == pytest.approx((2 / 3 + 0) / 2)


def test_an_ignored_class_that_nobody_has_changes_nothing():
    # T41: all labels 0; classes 1 and 2 absent.
    alone, padded = np.array([[4]]), np.zeros((3, 3), np.int64)
    padded[0, 0] = 4
    assert macro_f1(padded) == macro_f1(alone) == 1.0
    assert accuracy(padded) == accuracy(alone) == 1.0


def drawn_sums(confusion, loss):
    """Sums over random confidences and Brier scores, as many as the confusion counts."""
    rng = np.random.default_rng(5)
    n = confusion.sum((-2, -1))
    split = rng.multinomial(n, np.full(30, 1 / 30)).reshape(*n.shape, 15, 2)
    return Sums(confusion, loss, 2 * n * rng.random(n.shape), split, split.sum(-1) * rng.random((*n.shape, 15)))


CONFUSION = np.array([[[1, 0], [0, 0]], [[0, 0], [2, 1]], [[0, 0], [0, 0]], [[3, 1], [1, 1]]])
LOSS = np.array([0.5, 6.0, np.nan, 3.0])


def test_three_populations_of_unequal_clients():
    # T44, T45b: clients of 1, 3, 0 and 6 samples; the empty one, and its NaN loss, count nowhere.
    values = populations(unrecorded(CONFUSION, LOSS))
    assert set(values) == {f"{metric}/{population}" for metric in METRICS for population in POPULATIONS}
    assert values["accuracy/pooled"] == pytest.approx(6 / 10)
    assert values["accuracy/client_mean"] == pytest.approx((1 + 1 / 3 + 4 / 6) / 3)
    assert values["accuracy/sample_weighted"] == pytest.approx(6 / 10)
    assert values["loss/pooled"] == pytest.approx(9.5 / 10)
    assert values["loss/client_mean"] == pytest.approx((0.5 + 2.0 + 0.5) / 3)
    # Client 1: class 0 only predicted (F1 0), class 1 has F1 2/(3+1). Client 3: 6/8 and 2/4.
    client = [1.0, (0 + 2 / 4) / 2, (6 / 8 + 2 / 4) / 2]
    assert values["macro_f1/client_mean"] == pytest.approx(np.mean(client))
    assert values["macro_f1/sample_weighted"] == pytest.approx((1 * client[0] + 3 * client[1] + 6 * client[2]) / 10)
    # Together: truth (5, 5), predicted (7, 3), right (4, 2).
    assert values["macro_f1/pooled"] == pytest.approx((8 / 12 + 4 / 8) / 2)
    # With both classes counted, client 0 has (1 + 0) / 2.
    assert values["macro_f1_all/client_mean"] == pytest.approx((0.5 + client[1] + client[2]) / 3)


def test_a_population_of_nobody_is_undefined():
    assert all(np.isnan(value) for value in populations(unrecorded(np.zeros((3, 2, 2), int), np.zeros(3))).values())


def test_a_loss_that_is_not_a_number_is_not_averaged_away():
    values = populations(unrecorded(CONFUSION, np.array([0.5, np.nan, 0.0, 3.0])))
    assert np.isnan([values["loss/pooled"], values["loss/client_mean"], values["loss/sample_weighted"]]).all()
    assert values["accuracy/pooled"] == pytest.approx(0.6)
