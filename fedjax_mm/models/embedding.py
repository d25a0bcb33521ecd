"""Learned vectors for ids, in front of any encoder of numbers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import lecun_uniform

Array = jax.Array
WIDTH = 32


class Embedded(nnx.Module):
    """Embeds ids `[B, length]` in 32 dimensions, then runs an encoder on `[B, length, 32]`.

    Id 0, padding, is the zero vector and has no parameters. The others start with variance 1, as standardised inputs
    have.
    """

    def __init__(self, vocabulary: int, encoder: nnx.Module, *, dtype: Any, rngs: nnx.Rngs):
        ids = vocabulary - 1
        self.vectors = nnx.Param(lecun_uniform(rngs.params(), (1, ids * WIDTH), dtype).reshape(ids, WIDTH))
        self.encoder = encoder

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of ids `[B, length]`, int32 from 0 to vocabulary - 1."""
        vectors = self.vectors[...][jnp.maximum(x - 1, 0)]
        return self.encoder(jnp.where(x[..., None] > 0, vectors, 0), mask=mask, key=key, train=train)
