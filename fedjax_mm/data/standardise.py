"""Zero mean and unit variance, learnt from training samples only."""

import numpy as np

from fedjax_mm.data.dataset import KINDS
from fedjax_mm.errors import UsageError, choose

ABSOLUTE = 1e-12
MOST = 2**25
"""So many numbers are held in float64 at once, where features can be taken apart."""
RELATIVE = 16 * float(np.finfo(np.float32).eps)


def fit(inputs: np.ndarray, kind: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The affine map under which the given samples have mean 0 and standard deviation 1: `(x - shift) * scale`.

    Statistics are per feature for `[n, d]`; per channel, over samples and time or pixels, for `[n, time, channels]` and
    `[n, height, width, channels]`; over everything for images `[n, height, width]`. They are population statistics,
    accumulated in float64. uint8 images are read as 0..1 first, which is folded into the map: it takes the raw values.

    A feature whose standard deviation is below 1e-12, or so small that 32-bit rounding of its mean (16 units in the
    last place) could make it, is taken as constant: its scale is 1, so training samples become 0 and others keep their
    distance.

    Args:
        inputs: The modality, numbers `[n, ...]`.
        kind: One of `KINDS`.
        rows: The training samples in which the modality is observed, integers `[k]`. No others are read. With k = 0
            the map leaves values as they are (uint8 images: as 0..1).

    Returns:
        `shift` and `scale`, float32, of shape `[d]`, `[channels]` or `[]`: they broadcast against one sample.

    Raises:
        UsageError: The modality is text, which has no mean.
    """
    choose("kind", kind, KINDS)
    if inputs.dtype.kind == "U":
        raise UsageError("text cannot be standardised; only numeric modalities can")
    axes = tuple(range(inputs.ndim if kind == "image" and inputs.ndim == 3 else inputs.ndim - 1))
    unit = 255.0 if inputs.dtype == np.uint8 else 1.0
    if len(rows) == 0:
        shape = inputs.shape[len(axes) :]
        return np.zeros(shape, np.float32), np.full(shape, 1 / unit, np.float32)
    mean, deviation = _moments(inputs, rows, axes, unit)
    constant = deviation <= np.maximum(ABSOLUTE, RELATIVE * np.abs(mean))
    scale = 1 / np.where(constant, 1.0, deviation)
    return np.asarray(mean * unit, np.float32), np.asarray(scale / unit, np.float32)


def _moments(inputs: np.ndarray, rows: np.ndarray, axes: tuple[int, ...], unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over `axes` of the rows, each counted as often as it is named."""
    weights = None
    if len(rows) > len(inputs):
        counts = np.bincount(rows, minlength=len(inputs))
        rows = np.flatnonzero(counts)
        weights = counts[rows].astype(np.float64).reshape((-1,) + (1,) * (inputs.ndim - 1))
    if inputs.ndim != 2:
        return _moments_of(inputs[rows].astype(np.float64) / unit, axes, weights)
    # One column alone would be summed in another order.
    width = max(2, MOST // len(rows))
    parts = [
        _moments_of(inputs[rows, start : start + width].astype(np.float64) / unit, axes, weights)
        for start in range(0, inputs.shape[1], width)
    ]
    mean, deviation = (np.concatenate(part) for part in zip(*parts, strict=True))
    return mean, deviation


def _moments_of(values: np.ndarray, axes: tuple[int, ...], weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    if weights is None:
        return values.mean(axis=axes), values.std(axis=axes)
    total = weights.sum() * np.prod([values.shape[axis] for axis in axes[1:]])
    mean = (values * weights).sum(axis=axes) / total
    centred = np.square(values - mean)
    return mean, np.sqrt((centred * weights).sum(axis=axes) / total)
