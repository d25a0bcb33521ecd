"""The encoder of Flux's health-sensing data; inputs, masks and results are those of `DNN`.

The paper says "1D CNN encoders" and no more. Widths, windows and dropout are our choice: those of a network that is
usual for such data (Saeed et al. 2019, three convolutions under a global maximum), with halving in between.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.cnn import as_sequence
from fedjax_mm.models.convolution import Convolution, halve
from fedjax_mm.models.layers import dropout, linear

Array = jax.Array
CHANNELS = (32, 64, 96)
WINDOWS = (24, 16, 8)
DROPOUT = 0.1


class Sensing(nnx.Module):
    """Three times Conv1d-ReLU-dropout, the first two halved by max-pooling; then the largest value over time.

    Convolutions have no padding; a window is never longer than what is left of the time series, so any length works.
    The feature is the 96 maxima themselves if d is 96; else a Linear(96, d) follows.
    """

    def __init__(self, shape: tuple[int, ...], dim: int, *, dtype: Any, rngs: nnx.Rngs):
        length, before = as_sequence(shape)
        layers = []
        for window, after in zip(WINDOWS, CHANNELS, strict=True):
            window = min(window, length)
            layers.append(Convolution((window,), before, after, dtype=dtype, rngs=rngs))
            length, before = max((length - window + 1) // 2, 1), after
        self.convolutions = nnx.List(layers)
        self.last = None if dim == CHANNELS[-1] else linear(CHANNELS[-1], dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, time, ...]`; rows where `mask` `[B]` is False may be anything."""
        x = x.reshape(x.shape[0], *as_sequence(x.shape[1:]))
        x = jnp.where(mask[:, None, None], x, 0)
        for position, layer in enumerate(self.convolutions):
            x = layer(x, padding="VALID")
            # ReLU after the maximum is the same, and less work.
            x = halve(x) if position < len(CHANNELS) - 1 else x
            x = jax.nn.relu(x + layer.bias[...])
            x = dropout(x, DROPOUT, jax.random.fold_in(key, position)) if train else x
        x = jnp.max(x, axis=1)
        return x if self.last is None else self.last(x)
