"""Dense layers: an encoder of its own, and the end of the convolutional ones."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import MaskedBatchNorm, linear

Array = jax.Array


class DNN(nnx.Module):
    """Flatten, then Linear(-BatchNorm)-ReLU per width, then Linear to d; with `activate` a ReLU after that one too."""

    def __init__(
        self,
        features: int,
        widths: tuple[int, ...],
        dim: int,
        *,
        dtype: Any,
        rngs: nnx.Rngs,
        normalise: bool = False,
        activate: bool = False,
    ):
        sizes = (features, *widths)
        # A bias in front of BatchNorm has no gradient but rounding, which an adaptive optimiser would magnify.
        self.hidden = nnx.List(
            linear(before, after, dtype=dtype, rngs=rngs, bias=not normalise)
            for before, after in itertools.pairwise(sizes)
        )
        self.norms = nnx.List(MaskedBatchNorm(width, dtype=dtype) for width in widths if normalise)
        self.last = linear(sizes[-1], dim, dtype=dtype, rngs=rngs)
        self.activate = activate

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, *shape]`; rows where `mask` `[B]` is False do not influence the others."""
        x = jnp.reshape(x, (x.shape[0], -1))
        for position, layer in enumerate(self.hidden):
            x = layer(x)
            if self.norms:
                x = self.norms[position](x, mask=mask, train=train)
            x = jax.nn.relu(x)
        x = self.last(x)
        return jax.nn.relu(x) if self.activate else x
