"""What one evaluation leaves behind: additive counts, from which every classification metric follows."""

import dataclasses

import numpy as np

EVALUATED = ("validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """All clients of all seeds after one round, as sums.

    Attributes:
        round: The round after whose server step the clients were evaluated, 1..R.
        predictors: The P names of the method's predictors; the first is the primary one.
        confusion: Counts, int64 `[P, S, K, 2, C, C]` (2: `EVALUATED`; rows the truth, columns the prediction).
        loss: Sum of cross-entropies in nats over the samples, float64 `[P, S, K, 2]`.
    """

    round: int
    predictors: tuple[str, ...]
    confusion: np.ndarray
    loss: np.ndarray
