"""From clients to one number: the three populations a metric can be taken over."""

import numpy as np

from fedjax_mm.metrics.classification import classification, ratio, samples
from fedjax_mm.metrics.evaluation import Sums

POPULATIONS = ("pooled", "client_mean", "sample_weighted")


def populations(sums: Sums) -> dict[str, np.ndarray]:
    """Every metric over every population.

    `pooled` is the metric of all clients' samples together, from their sums; `client_mean` the mean over the clients
    that have samples, each counting the same; `sample_weighted` the mean over clients weighted by their samples. For
    accuracy, loss and Brier score the last equals the first up to rounding, for macro-F1 and calibration error it does
    not.

    Args:
        sums: Sums per client, leading axes `[..., K]`; ignored for clients without samples.

    Returns:
        `<metric>/<population>` -> float64 `[...]`, metrics in the order of `classification.METRICS`, each over
        `POPULATIONS`; NaN where no client has samples.
    """
    counts = samples(sums.confusion)
    has, axis = counts > 0, counts.ndim - 1

    def together(leaf: np.ndarray) -> np.ndarray:
        return np.where(has.reshape(has.shape + (1,) * (leaf.ndim - has.ndim)), leaf, 0).sum(axis)

    pooled = classification(sums.map(together))
    result = {}
    for metric, values in classification(sums).items():
        values = np.where(has, values, 0.0)
        result[f"{metric}/pooled"] = pooled[metric]
        result[f"{metric}/client_mean"] = ratio(values.sum(-1), has.sum(-1))
        result[f"{metric}/sample_weighted"] = ratio((values * counts).sum(-1), counts.sum(-1))
    return result
