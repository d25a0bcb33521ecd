"""What one evaluation leaves behind: additive sums, from which every classification metric follows."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_mm.metrics.subsets import Subsets

EVALUATED = ("validation", "test")
BINS = 15
"""Bins of equal width over the confidence, (b / 15, (b + 1) / 15] for b in 0..14."""


class Sums(NamedTuple):
    """Sums over samples; the leading axes `[...]` are the same in all.

    A sample's confidence is the probability, in (0, 1], of the class it is predicted to be; the probabilities are the
    softmax of the scores. A sample with a score that is not finite counts at its worst: wrongly predicted, confidence
    1, Brier score 2. Its cross-entropy is what it is, NaN or infinite.

    Attributes:
        confusion: Counts, rows the truth, columns the prediction, integers `[..., C, C]`.
        loss: Cross-entropies in nats, floats `[...]`.
        brier: Brier scores, sum_c (p_c - 1[y = c])^2 in [0, 2], floats `[...]`; NaN where they were not recorded.
        bins: Samples by bin of confidence, predicted (wrongly, rightly), integers `[..., 15, 2]`.
        confidence: Confidences by bin, floats `[..., 15]`; NaN where they were not recorded.
    """

    confusion: Any
    loss: Any
    brier: Any
    bins: Any
    confidence: Any

    def map(self, function: Callable[[Any], Any]) -> "Sums":
        """`function` of every array."""
        return Sums(*map(function, self))


def unrecorded(confusion: np.ndarray, loss: np.ndarray) -> Sums:
    """Sums of which only confusion counts and losses are known: calibration is undefined."""
    shape = (*loss.shape, BINS)
    return Sums(confusion, loss, np.full(loss.shape, np.nan), np.zeros((*shape, 2), np.int64), np.full(shape, np.nan))


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """All clients of all seeds after one round, as sums.

    Attributes:
        round: The round after whose server step the clients were evaluated, 1..R.
        predictors: The P names of the method's predictors; the first is the primary one.
        sums: Sums with the leading axes `[P, S, K, 2]` (2: `EVALUATED`), int64 and float64.
        subsets: Answers of the primary predictor on test samples by observed modalities; None where not recorded.
    """

    round: int
    predictors: tuple[str, ...]
    sums: Sums
    subsets: Subsets | None = None

    @property
    def confusion(self) -> np.ndarray:
        """Confusion counts, int64 `[P, S, K, 2, C, C]`."""
        return self.sums.confusion

    @property
    def loss(self) -> np.ndarray:
        """Sums of cross-entropies in nats, float64 `[P, S, K, 2]`."""
        return self.sums.loss
