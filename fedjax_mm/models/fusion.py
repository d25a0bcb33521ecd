"""Fusion: from a sample's modality features to one feature."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import linear

Array = jax.Array
ATTENTION = "attention"


def fuse_sum(params: Any, features: Array, observed: Array) -> Array:
    """Sum over the observed modalities (MFedPBA, Appendix C.3).

    Args:
        params: Unused.
        features: `[M, B, d]`; may be anything where not observed.
        observed: Bool `[M, B]`.

    Returns:
        `[B, d]`; 0 for a sample without modality.
    """
    return jnp.sum(jnp.where(observed[..., None], features, 0), axis=0)


def fuse_mean(params: Any, features: Array, observed: Array) -> Array:
    """Mean over the observed modalities; arguments and shapes as `fuse_sum`."""
    count = jnp.maximum(jnp.sum(observed, axis=0), 1).astype(features.dtype)
    return fuse_sum(params, features, observed) / count[:, None]


def fuse_concat(params: Any, features: Array, observed: Array) -> Array:
    """Concatenation in modality order with 0 where not observed, `[B, M * d]`; arguments as `fuse_sum`."""
    kept = jnp.where(observed[..., None], features, 0)
    return jnp.moveaxis(kept, 0, 1).reshape(features.shape[1], -1)


FUSIONS: dict[str, Callable[[Any, Array, Array], Array]] = {
    "sum": fuse_sum,
    "mean": fuse_mean,
    "concat": fuse_concat,
}
"""Fusions without parameters."""
FUSION_NAMES = (*FUSIONS, ATTENTION)


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Additive attention over modalities (Bahdanau et al. 2015; the fusion module of Flux, F).

    Attributes:
        features: Width d of the features.
        hidden: Width of the score's hidden layer.
    """

    features: int
    hidden: int

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """A fresh module."""
        return Attention(self.features, self.hidden, dtype=dtype, rngs=rngs)

    def __str__(self) -> str:
        return f"attention {self.features}-{self.hidden}"


class Attention(nnx.Module):
    """sum_m a_m h_m with a the softmax, over the observed modalities, of v . tanh(W h_m + b)."""

    def __init__(self, features: int, hidden: int, *, dtype: Any, rngs: nnx.Rngs):
        self.hidden = linear(features, hidden, dtype=dtype, rngs=rngs)
        self.score = linear(hidden, 1, dtype=dtype, rngs=rngs, bias=False)

    def __call__(self, features: Array, observed: Array) -> Array:
        """Fused features `[B, d]`; arguments as `fuse_sum`."""
        features = jnp.where(observed[..., None], features, 0)
        scores = self.score(jnp.tanh(self.hidden(features)))[..., 0]
        return jnp.sum(masked_softmax(scores, observed)[..., None] * features, axis=0)


def masked_softmax(scores: Array, mask: Array) -> Array:
    """Softmax over the leading axis, of the unmasked entries.

    Args:
        scores: Floating `[M, ...]`; may be anything where masked.
        mask: Bool of the same shape.

    Returns:
        Same shape; 0 where masked, so all 0 where everything is.
    """
    # The largest entry becomes exp(0), so whatever is not empty sums to at least 1.
    top = jnp.max(jax.lax.stop_gradient(scores), axis=0, where=mask, initial=-jnp.inf)
    shares = jnp.where(mask, jnp.exp(jnp.where(mask, scores - top, 0)), 0)
    total = jnp.sum(shares, axis=0)
    return shares / jnp.where(total > 0, total, 1)
