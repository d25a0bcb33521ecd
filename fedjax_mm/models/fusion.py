"""Fusion: from a sample's modality features to one feature."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


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
