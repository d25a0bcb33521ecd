"""Paired comparison of two methods over the seeds they share."""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
from scipy import stats

EXACT_SEEDS = 16
RESAMPLES = 99_999


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How much better the first method is than the second, seed by seed.

    Attributes:
        seeds: The n seeds that both methods have a value for, ascending.
        mean: Mean difference, first minus second; None without a seed.
        std: Sample standard deviation of the differences; None with fewer than two seeds, like all that follows.
        interval: Student's t confidence interval of the mean difference.
        p: Two-sided p value of the sign-flip test, in (0, 1].
        p_min: The smallest p this test can give with n seeds: 2 / 2^n where exact.
        exact: Whether all 2^n sign patterns were counted (n up to 16) or a fixed random sample of them.
    """

    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    interval: tuple[float, float] | None
    p: float | None
    p_min: float | None
    exact: bool


def paired(
    first: Mapping[int, float | None], second: Mapping[int, float | None], *, confidence: float = 0.95
) -> Comparison:
    """Compares two methods on the seeds for which both have a value.

    Args:
        first: Seed -> value of a metric; None or NaN where undefined.
        second: The same of the other method.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        The comparison.
    """
    shared = sorted(first.keys() & second.keys())
    # NumPy turns None into NaN here.
    values = np.array([(first[seed], second[seed]) for seed in shared], np.float64).reshape(-1, 2)
    differences = values[:, 0] - values[:, 1]
    defined = np.isfinite(differences)
    seeds = tuple(np.array(shared, np.int64)[defined].tolist())
    return _compare(seeds, differences[defined], confidence)


def _compare(seeds: tuple[int, ...], differences: np.ndarray, confidence: float) -> Comparison:
    n = len(seeds)
    exact = n <= EXACT_SEEDS
    mean = float(differences.mean()) if n else None
    if mean is None or n < 2:
        return Comparison(seeds, mean, std=None, interval=None, p=None, p_min=None, exact=exact)
    std = float(differences.std(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * std / n**0.5
    p = sign_flip(differences)
    return Comparison(seeds, mean, std=std, interval=(mean - half, mean + half), p=p, p_min=smallest_p(n), exact=exact)


def smallest_p(n: int) -> float:
    """The smallest p that `sign_flip` can give for n differences, n at least 1."""
    return 2 / 2**n if n <= EXACT_SEEDS else 2 / (RESAMPLES + 1)


def sign_flip(differences: np.ndarray) -> float:
    """The sign-flip permutation test of a zero mean, two-sided.

    Under the null hypothesis each difference could as well have had the other sign; p is the share of the 2^n sign
    patterns whose absolute mean is at least the observed one. Above 16 differences, of which 2^n is too many to count,
    p is estimated from 99,999 random patterns of a fixed generator by `scipy.stats.permutation_test`.

    Args:
        differences: One per pair, finite, float64 `[n]`, n at least 1.

    Returns:
        p in (0, 1].
    """
    if len(differences) > EXACT_SEEDS:
        result = stats.permutation_test(
            (differences,),
            lambda sample, axis: sample.mean(axis),
            permutation_type="samples",
            n_resamples=RESAMPLES,
            vectorized=True,
            rng=np.random.default_rng(0),
        )
        return float(result.pvalue)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(differences))))
    sums = np.abs(signs @ differences)
    # Differences of accuracies are often equal fractions: sums that tie exactly must tie after rounding, too.
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(differences).sum()))
