import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_mm.metrics.comparison import paired, sign_flip


def test_three_seeds_by_hand():
    result = paired({0: 0.9, 1: 0.8, 2: 0.7}, {2: 0.4, 1: 0.6, 0: 0.8})
    assert result.seeds == (0, 1, 2)
    assert result.mean == pytest.approx(0.2)
    assert result.std == pytest.approx(0.1)
    # t(0.975, 2) = 4.302653, from a table.
    assert result.interval == pytest.approx((0.2 - 4.302653 * 0.1 / 3**0.5, 0.2 + 4.302653 * 0.1 / 3**0.5), rel=1e-6)
    assert result.p == result.p_min == 2 / 8
    assert result.exact


def test_one_seed_has_no_spread():
    result = paired({0: 0.5}, {0: 0.25})
    assert (result.mean, result.std, result.interval, result.p, result.p_min) == (0.25, None, None, None, None)
    assert paired({0: 0.5}, {1: 0.5}).mean is None


def test_only_shared_and_defined_seeds_are_compared():
    result = paired({0: 0.5, 1: None, 2: 0.7, 3: 0.5}, {0: 0.4, 1: 0.4, 2: float("nan"), 3: 0.3, 9: 1.0})
    assert result.seeds == (0, 3)
    assert result.mean == pytest.approx(0.15)


def test_equal_methods():
    result = paired({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert (result.mean, result.std, result.interval, result.p) == (0.0, 0.0, (0.0, 0.0), 1.0)


def test_sums_that_tie_exactly_tie_after_rounding():
    # 0.1 + 0.2 - 0.3 is 2.8e-17 in floats, and so is its mirror; every |sum| is at least 0.
    assert sign_flip(np.array([0.1, 0.2, -0.3])) == 1.0
    # In tenths the observed sum is -4, and some other patterns have exactly 4, too; in floats they miss it.
    tenths = (-4, 6, 3, -9)
    sums = [abs(np.dot(signs, tenths)) for signs in itertools.product((1, -1), repeat=4)]
    assert sign_flip(np.array(tenths) / 10) == np.mean(np.array(sums) >= 4) == 14 / 16


@given(st.lists(st.integers(-40, 40), min_size=2, max_size=8).filter(sum))
def test_agrees_with_scipy_where_both_are_exact(values):
    differences = np.array(values) / 64
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=10_000, vectorized=False
    )
    assert sign_flip(differences) == pytest.approx(expected.pvalue)


def test_many_seeds_are_sampled_with_a_fixed_generator():
    rng = np.random.default_rng(3)
    first = dict(enumerate(rng.normal(0.1, 0.2, 20)))
    zero = dict.fromkeys(range(20), 0.0)
    result = paired(first, zero)
    assert not result.exact
    assert result.p_min == 2 / 100_000
    assert result == paired(first, zero)
    # Independent of permutations: for 20 normal differences the t test says nearly the same.
    assert result.p == pytest.approx(stats.ttest_1samp(list(first.values()), 0).pvalue, abs=0.02)
