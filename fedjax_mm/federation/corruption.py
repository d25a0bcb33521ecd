"""Noise on inputs, in proportion to how much a client's training data vary (Flux, Section 4, input corruption)."""

import math
import numbers

import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.federation.federation import Federation


def corrupt(inputs: np.ndarray, alpha: float, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """X + η with η ~ N(0, (α σ_k)^2), independent for every number (Flux, Section 4, input corruption).

    Args:
        inputs: Raw numbers of one modality, `[n, ...]`; integers are taken as they are.
        alpha: α, at least 0; with 0 the values stay as they are.
        sigma: σ_k, at least 0, in the units of the inputs: an entry of `training_deviations`.
        rng: One standard normal number is drawn for each value, whatever α is: severities differ in scale only. A
            stream for a client and modality is `seeding.generator(seed, seeding.CORRUPTION, client, modality)`.

    Returns:
        Float32, of the shape of `inputs`.

    Raises:
        UsageError: The inputs are text, or α or σ is negative or not finite.

    Example:
        >>> corrupt(np.zeros((2, 3)), 0.5, 2.0, np.random.default_rng(0)).shape
        (2, 3)
    """
    if inputs.dtype.kind not in "biuf":
        raise UsageError("text cannot be corrupted by noise; only numeric modalities can")
    for name, value in {"alpha": alpha, "sigma": sigma}.items():
        if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
            raise UsageError(f"{name} must be a finite number of at least 0, not {value!r}")
    noise = rng.standard_normal(inputs.shape)
    return (inputs.astype(np.float64) + float(alpha) * float(sigma) * noise).astype(np.float32)


def training_deviations(federation: Federation) -> np.ndarray:
    """σ_k of each client and modality: the standard deviation of all numbers in its training samples.

    Args:
        federation: The federation. Only values that the client may read are.

    Returns:
        Float64 `[K, M]`, in the units of the raw inputs; 0 for text and where a client has no training sample with the
        modality.
    """
    data = federation.data
    sigma = np.zeros((federation.size, len(data.modalities)))
    for client, m in np.argwhere(federation.holds):
        values = data.inputs[data.modalities[m]]
        rows = federation.train.of(client)
        rows = rows[federation.observed[rows, m]]
        if len(rows) and values.dtype.kind != "U":
            sigma[client, m] = values[rows].astype(np.float64).std()
    return sigma
