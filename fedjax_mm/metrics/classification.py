"""Classification metrics from additive sums, on the host in float64."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedjax_mm.metrics.evaluation import Sums

METRICS = ("accuracy", "macro_f1", "macro_f1_all", "loss", "ece", "brier")


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Divides where there is something to divide by.

    Args:
        part: Numerators, any shape `[...]`.
        whole: Denominators, at least 0, shape `[...]`.

    Returns:
        `part / whole`, float64 `[...]`; NaN where `whole` is 0.
    """
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def samples(confusion: np.ndarray) -> np.ndarray:
    """The number of samples behind each confusion matrix: integers `[..., C, C]` -> `[...]`."""
    return confusion.sum((-2, -1))


def accuracy(confusion: np.ndarray) -> np.ndarray:
    """The share of right predictions.

    Args:
        confusion: Counts, rows the truth, columns the prediction, integers `[..., C, C]`.

    Returns:
        Accuracy in [0, 1], float64 `[...]`; NaN where there are no samples.
    """
    return ratio(np.trace(confusion, axis1=-2, axis2=-1), samples(confusion))


def macro_f1(confusion: np.ndarray, *, absent: bool = False) -> np.ndarray:
    """The unweighted mean over classes of F1 = 2 TP / (true + predicted).

    A class that is never right has F1 0, also where its precision and recall are both 0 or undefined.

    Args:
        confusion: Counts, rows the truth, columns the prediction, integers `[..., C, C]`.
        absent: Whether a class absent from both truth and prediction counts, with F1 0. By default the mean is over
            the classes present in at least one of the two.

    Returns:
        Macro-F1 in [0, 1], float64 `[...]`; NaN where there are no samples.
    """
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    return macro_f1_of(right, confusion.sum(-1) + confusion.sum(-2), absent=absent)


def macro_f1_of(right: np.ndarray, marginals: np.ndarray, *, absent: bool = False) -> np.ndarray:
    """`macro_f1` from what it needs of the confusion matrix.

    Args:
        right: Right predictions per class, integers `[..., C]`.
        marginals: Samples truly of each class plus samples predicted to be, integers `[..., C]`.
        absent: As in `macro_f1`.

    Returns:
        Macro-F1 in [0, 1], float64 `[...]`; NaN where there are no samples.
    """
    total = np.nan_to_num(ratio(2 * right, marginals)).sum(-1)
    present = np.count_nonzero(marginals, axis=-1)
    counted = np.where(present > 0, right.shape[-1], 0) if absent else present
    return ratio(total, counted)


def expected_calibration_error(bins: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """How far confidence and accuracy are apart: sum_b n_b / n |accuracy_b - mean confidence_b| over bins b.

    Guo et al., On Calibration of Modern Neural Networks, Eq. 3; 15 bins of equal width over the largest probability.

    Args:
        bins: Samples by bin, predicted (wrongly, rightly), integers `[..., 15, 2]`.
        confidence: Sums of confidences by bin, float64 `[..., 15]`.

    Returns:
        The error in [0, 1], float64 `[...]`; NaN where there are no samples.
    """
    return ratio(np.abs(bins[..., 1] - confidence).sum(-1), bins.sum((-2, -1)))


def classification(sums: "Sums") -> dict[str, np.ndarray]:
    """Every metric of `METRICS`.

    Args:
        sums: Sums over the same samples, with any leading axes `[...]`.

    Returns:
        Metric name -> float64 `[...]`, NaN where there are no samples: `accuracy`; `macro_f1` over the classes present
        in truth or prediction; `macro_f1_all` over all C classes, absent ones counting 0; `loss`, the mean
        cross-entropy in nats or negative log-likelihood, NaN or infinite where the sum is; `ece`, the expected
        calibration error; `brier`, the mean Brier score in [0, 2].
    """
    n = samples(sums.confusion)
    return {
        "accuracy": accuracy(sums.confusion),
        "macro_f1": macro_f1(sums.confusion),
        "macro_f1_all": macro_f1(sums.confusion, absent=True),
        "loss": ratio(sums.loss, n),
        "ece": expected_calibration_error(sums.bins, sums.confidence),
        "brier": ratio(sums.brier, n),
    }
