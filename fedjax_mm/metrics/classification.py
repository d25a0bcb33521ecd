"""Classification metrics from confusion counts, on the host in float64."""

import numpy as np

METRICS = ("accuracy", "macro_f1", "macro_f1_all", "loss")


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
    marginals = confusion.sum(-1) + confusion.sum(-2)
    total = np.nan_to_num(ratio(2 * right, marginals)).sum(-1)
    present = np.count_nonzero(marginals, axis=-1)
    counted = np.where(present > 0, confusion.shape[-1], 0) if absent else present
    return ratio(total, counted)


def classification(confusion: np.ndarray, loss: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric of `METRICS`.

    Args:
        confusion: Counts, rows the truth, columns the prediction, integers `[..., C, C]`.
        loss: Sums of cross-entropies over the same samples in nats, float64 `[...]`.

    Returns:
        Metric name -> float64 `[...]`, NaN where there are no samples: `accuracy`; `macro_f1` over the classes present
        in truth or prediction; `macro_f1_all` over all C classes, absent ones counting 0; `loss`, the mean
        cross-entropy in nats, NaN or infinite where the sum is.
    """
    return {
        "accuracy": accuracy(confusion),
        "macro_f1": macro_f1(confusion),
        "macro_f1_all": macro_f1(confusion, absent=True),
        "loss": ratio(loss, samples(confusion)),
    }
