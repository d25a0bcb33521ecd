"""Convolutional encoders; inputs, masks and results are those of `DNN`.

What Table 4 leaves open: 16 channels; kernels of 5 (CNN1D), 3 by 3 (CNN2D), and 3, 4 and 5 (TextCNN). CNN2D has no
pooling there, which would leave nearly all parameters in the first dense layer: it strides while the image is large.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.convolution import POSITIONS, Convolution, convolve, pool
from fedjax_mm.models.dnn import DNN

Array = jax.Array
CHANNELS = 16
WINDOW_1D = 5
WINDOW_2D = 3
WINDOWS_TEXT = (3, 4, 5)
SMALL = 8
"""CNN2D halves the image while both its sides are larger than this."""


def as_sequence(shape: tuple[int, ...]) -> tuple[int, int]:
    """Length and channels of an input seen as a sequence: `[d]` has one channel, of `[time, ...]` the rest are."""
    return shape[0], math.prod(shape[1:])


class CNN1D(nnx.Module):
    """Per width Conv1d-ReLU-pooling to 16 positions; then `DNN`."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], dim: int, *, dtype: Any, rngs: nnx.Rngs):
        length, before = as_sequence(shape)
        self.convolutions = nnx.List(
            Convolution((WINDOW_1D,), CHANNELS if position else before, CHANNELS, dtype=dtype, rngs=rngs)
            for position in range(len(widths))
        )
        features = min(length, POSITIONS) * CHANNELS if widths else length * before
        self.dense = DNN(features, widths, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, *shape]`."""
        x = x.reshape(x.shape[0], *as_sequence(x.shape[1:]))
        for layer in self.convolutions:
            x = jax.nn.relu(pool(layer(x)) + layer.bias[...])
        return self.dense(x, mask=mask, key=key, train=train)


class TextCNN(nnx.Module):
    """Side by side Conv1d-ReLU-pooling to 16 positions with windows of 3, 4 and 5, concatenated; then `DNN`."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], dim: int, *, dtype: Any, rngs: nnx.Rngs):
        length, before = as_sequence(shape)
        self.branches = nnx.List(
            Convolution((window,), before, CHANNELS, dtype=dtype, rngs=rngs) for window in WINDOWS_TEXT
        )
        features = min(length, POSITIONS) * CHANNELS * len(WINDOWS_TEXT)
        self.dense = DNN(features, widths, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, *shape]`."""
        x = x.reshape(x.shape[0], *as_sequence(x.shape[1:]))
        # One convolution with the windows of all branches, filled up with zeros to the widest, in place of three.
        widest = max(WINDOWS_TEXT)
        kernels = [branch.kernel[...] for branch in self.branches]
        gaps = [((widest - 1) // 2 - (len(kernel) - 1) // 2, widest // 2 - len(kernel) // 2) for kernel in kernels]
        filled = [jnp.pad(kernel, (gap, (0, 0), (0, 0))) for kernel, gap in zip(kernels, gaps, strict=True)]
        x = pool(convolve(x, jnp.concatenate(filled, axis=-1)))
        x = jax.nn.relu(x + jnp.concatenate([branch.bias[...] for branch in self.branches]))
        return self.dense(x, mask=mask, key=key, train=train)


class CNN2D(nnx.Module):
    """Per width Conv2d-ReLU, of stride 2 while both sides are larger than 8; then `DNN`."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], dim: int, *, dtype: Any, rngs: nnx.Rngs):
        self.strides = _strides(shape[:2], len(widths))
        window = (WINDOW_2D, WINDOW_2D)
        before = math.prod(shape[2:])
        self.convolutions = nnx.List(
            Convolution(window, CHANNELS if position else before, CHANNELS, dtype=dtype, rngs=rngs)
            for position in range(len(widths))
        )
        shrink = math.prod(self.strides)
        features = math.prod(-(-side // shrink) for side in shape[:2]) * (CHANNELS if widths else before)
        self.dense = DNN(features, widths, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, height, width]` or `[B, height, width, channels]`."""
        x = x.reshape(*x.shape[:3], -1)
        for layer, stride in zip(self.convolutions, self.strides, strict=True):
            x = jax.nn.relu(layer(x, stride=stride) + layer.bias[...])
        return self.dense(x, mask=mask, key=key, train=train)


def _strides(sides: tuple[int, ...], depth: int) -> tuple[int, ...]:
    strides = []
    for _ in range(depth):
        strides.append(2 if min(sides) > SMALL else 1)
        sides = tuple(-(-side // strides[-1]) for side in sides)
    return tuple(strides)
