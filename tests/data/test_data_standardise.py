import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedjax_mm.data import load_data, standardise
from fedjax_mm.data.standardise import fit
from fedjax_mm.errors import UsageError


def test_vectors_as_scikit_learn():
    data = load_data("mfeat")
    rows = np.arange(0, 2000, 3)
    for modality, inputs in data.inputs.items():
        shift, scale = fit(inputs, data.kinds[modality], rows)
        assert shift.dtype == scale.dtype == np.float32 and shift.shape == scale.shape == inputs.shape[1:]
        expected = StandardScaler().fit(inputs[rows].astype(np.float64)).transform(inputs.astype(np.float64))
        np.testing.assert_allclose((inputs - shift) * scale, expected, rtol=1e-4, atol=1e-4)


def test_sequences_per_channel():
    inputs = np.random.default_rng(0).normal([1, -2, 30], [1, 2, 0.5], (20, 7, 3)).astype(np.float32)
    rows = np.arange(12)
    shift, scale = fit(inputs, "time-series", rows)
    assert shift.shape == (3,)
    values = ((inputs - shift) * scale)[rows].reshape(-1, 3)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-5)
    flat = StandardScaler().fit(inputs[rows].reshape(-1, 3).astype(np.float64))
    np.testing.assert_allclose(shift, flat.mean_, rtol=1e-6)


def test_images_by_hand():
    inputs = np.zeros((3, 2, 2, 2), np.uint8)
    inputs[0, ..., 0] = [[0, 255], [0, 255]]  # mean 127.5 and deviation 127.5 of the raw values
    inputs[..., 1] = 51  # constant: 0.2 of the range
    inputs[2] = 200  # not a training row
    shift, scale = fit(inputs, "image", np.array([0]))
    np.testing.assert_allclose(shift, [127.5, 51])
    np.testing.assert_allclose(scale, [1 / 127.5, 1 / 255])
    np.testing.assert_allclose(((inputs - shift) * scale)[0, 0], [[-1, 0], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(((inputs - shift) * scale)[2, 0, 0, 1], (200 - 51) / 255, rtol=1e-6)


def test_images_without_channels_have_one_mean():
    inputs = np.arange(2 * 3 * 4, dtype=np.float16).reshape(2, 3, 4)
    shift, scale = fit(inputs, "image", np.arange(2))
    assert shift.shape == scale.shape == ()
    assert shift == 11.5 and scale == pytest.approx(1 / np.arange(24).std())


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([("vector", (9, 4)), ("time-series", (9, 5, 2)), ("image", (9, 3, 3))])
)
def test_other_rows_have_no_influence(seed, case):
    kind, shape = case
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=shape).astype(np.float32)
    rows = np.flatnonzero(generator.random(9) < 0.6)
    other = inputs.copy()
    other[np.setdiff1d(np.arange(9), rows)] = generator.choice([0, 1e6, np.nan, np.inf])
    for ours, theirs in zip(fit(inputs, kind, rows), fit(other, kind, rows), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_constant_and_nearly_constant_features_become_zero():
    noise = np.array([-1, 1, -1, 1])
    inputs = np.stack(
        [
            np.full(4, 7.0),
            1000 + noise * np.spacing(np.float32(1000)),  # rounding noise of a constant
            noise * 1e-30,
            np.zeros(4),
            1000 + noise,  # a small but real deviation
            noise * 1e-9,  # as real, in a small unit
        ],
        axis=1,
    ).astype(np.float32)
    shift, scale = fit(inputs, "vector", np.arange(4))
    np.testing.assert_allclose(scale, [1, 1, 1, 1, 1, 1e9], rtol=1e-5)
    values = (inputs - shift) * scale
    np.testing.assert_allclose(values[:, :4], 0, atol=1e-3)
    np.testing.assert_allclose(values[:, 4:], np.stack([noise, noise], axis=1), rtol=1e-5)


def test_large_values_do_not_overflow():
    inputs = np.array([[6e4], [-6e4]], np.float16)
    shift, scale = fit(np.repeat(inputs, 500, axis=0), "vector", np.arange(1000))
    assert shift == 0 and scale == pytest.approx(1 / 6e4, rel=1e-3)


def test_mean_is_exact_far_from_zero():
    inputs = (1e6 + np.arange(100_000) % 10)[:, None].astype(np.float32)
    shift, scale = fit(inputs, "vector", np.arange(len(inputs)))
    assert shift == np.float32(1e6 + 4.5) and scale == pytest.approx(1 / np.sqrt(8.25), rel=1e-6)


def test_no_rows():
    none = np.array([], int)
    for inputs, kind, unit in (
        (np.ones((3, 2), np.float32), "vector", 1),
        (np.ones((3, 4, 2), np.float16), "audio", 1),
        (np.ones((3, 4, 4, 2), np.uint8), "image", 1 / 255),
    ):
        shift, scale = fit(inputs, kind, none)
        np.testing.assert_array_equal(shift, np.zeros(2, np.float32))
        np.testing.assert_array_equal(scale, np.full(2, unit, np.float32))


def test_bags_of_words_are_numbers_but_text_has_no_mean():
    counts = np.array([[0, 2], [2, 0]], np.float32)
    shift, scale = fit(counts, "language", np.arange(2))
    np.testing.assert_array_equal((counts - shift) * scale, [[-1, 1], [1, -1]])
    with pytest.raises(UsageError, match="text cannot be standardised"):
        fit(np.array(["a", "b"]), "language", np.arange(2))


def test_rows_named_again_and_again_count_as_often_and_columns_may_be_taken_apart(monkeypatch):
    rng = np.random.default_rng(0)
    for shape, kind in (((50, 7), "vector"), ((30, 20, 5), "time-series")):
        values, rows = rng.normal(2, 3, shape), rng.integers(0, shape[0], 400)
        long, expected = standardise.fit(values, kind, rows), values[rows].reshape(-1, shape[-1])
        np.testing.assert_allclose(long[0], expected.mean(0), rtol=1e-6)
        np.testing.assert_allclose(long[1], 1 / expected.std(0), rtol=1e-6)
        few = rows[:20]
        whole = standardise.fit(values, kind, few)
        with monkeypatch.context() as patch:
            patch.setattr(standardise, "MOST", 60)
            apart = standardise.fit(values, kind, few)
        np.testing.assert_array_equal(whole[0], apart[0])
        np.testing.assert_array_equal(whole[1], apart[1])
