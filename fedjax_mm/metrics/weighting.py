"""From clients to one number: the three populations a metric can be taken over."""

import numpy as np

from fedjax_mm.metrics.classification import classification, ratio, samples

POPULATIONS = ("pooled", "client_mean", "sample_weighted")


def populations(confusion: np.ndarray, loss: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric over every population.

    `pooled` is the metric of all clients' samples together, from the sum of the counts; `client_mean` the mean over the
    clients that have samples, each counting the same; `sample_weighted` the mean over clients weighted by their
    samples. For accuracy and loss the last equals the first up to rounding, for macro-F1 it does not.

    Args:
        confusion: Counts per client, integers `[..., K, C, C]`.
        loss: Sums of cross-entropies per client in nats, float64 `[..., K]`; ignored for clients without samples.

    Returns:
        `<metric>/<population>` -> float64 `[...]`, metrics in the order of `classification.METRICS`, each over
        `POPULATIONS`; NaN where no client has samples.
    """
    counts = samples(confusion)
    has = counts > 0
    loss = np.where(has, loss, 0.0)
    pooled = classification(confusion.sum(-3), loss.sum(-1))
    result = {}
    for metric, values in classification(confusion, loss).items():
        values = np.where(has, values, 0.0)
        result[f"{metric}/pooled"] = pooled[metric]
        result[f"{metric}/client_mean"] = ratio(values.sum(-1), has.sum(-1))
        result[f"{metric}/sample_weighted"] = ratio((values * counts).sum(-1), counts.sum(-1))
    return result
