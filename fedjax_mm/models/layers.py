"""Layers that are total under masks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from fedjax_mm.models.product import dense_product

Array = jax.Array


def lecun_uniform(key: Array, shape: tuple[int, ...], dtype: Any) -> Array | np.ndarray:
    """Uniform in ±sqrt(3 / fan_in), variance 1 / fan_in; the last axis is the output.

    Drawn on the host by Philox from the key: compiling a generator per layer shape takes far longer than all the draws,
    and the bits do not depend on what else is drawn. Under tracing, where only shapes matter, it is JAX's own.

    Args:
        key: A key.
        shape: Shape of the kernel.
        dtype: Floating dtype.

    Returns:
        An array of that shape and dtype.
    """
    if isinstance(key, Tracer):
        return jax.nn.initializers.lecun_uniform()(key, shape, dtype)
    return drawn_uniform(np.asarray(jax.random.key_data(key)), shape, dtype)


def drawn_uniform(words: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What `lecun_uniform` draws from a key, whose words these are."""
    limit = math.sqrt(3 / max(math.prod(shape[:-1]), 1))
    bits = words.astype(np.uint64).reshape(-1)
    return np.random.Generator(np.random.Philox(key=bits[:2])).uniform(-limit, limit, shape).astype(dtype)


def linear(before: int, after: int, *, dtype: Any, rngs: nnx.Rngs, bias: bool = True) -> nnx.Linear:
    """A dense layer, its bias (if any) zero at first, parameters and arithmetic in `dtype`."""
    return nnx.Linear(
        before,
        after,
        use_bias=bias,
        dtype=dtype,
        param_dtype=dtype,
        kernel_init=lecun_uniform,
        dot_general=dense_product,
        rngs=rngs,
    )


def dropout(x: Array, rate: float, key: Array) -> Array:
    """Sets entries to 0 with probability `rate` and scales the others so that the mean stays.

    Which entries of a row are dropped does not depend on how many rows follow it.

    Args:
        x: `[B, ...]`, floating.
        rate: In [0, 1); rounded to a multiple of 2^-16, for which random numbers of 16 bits suffice.
        key: A key.

    Returns:
        As `x`.
    """
    size, dropped = math.prod(x.shape[1:]), round(rate * 2**16)
    words = jax.random.bits(key, (x.shape[0], -(-size // 2)), jnp.uint32)
    draws = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(x.shape[0], -1)[:, :size].reshape(x.shape)
    return jnp.where(draws >= dropped, x * (2**16 / (2**16 - dropped)), 0)


class MaskedBatchNorm(nnx.Module):
    """BatchNorm over the unmasked rows of a batch.

    Flax's own layer gives NaN gradients when masked rows hold NaN and NaN statistics when all rows are masked. Here a
    batch of fewer than two rows, whose variance says nothing, is normalised by the running statistics and leaves them
    as they are.

    Attributes:
        momentum: Share of the running statistics that is kept at each update.
        epsilon: Added to the variance.
    """

    def __init__(self, features: int, *, dtype: Any, momentum: float = 0.9, epsilon: float = 1e-5):
        self.scale = nnx.Param(jnp.ones(features, dtype))
        self.bias = nnx.Param(jnp.zeros(features, dtype))
        self.mean = nnx.BatchStat(jnp.zeros(features, dtype))
        self.var = nnx.BatchStat(jnp.ones(features, dtype))
        self.momentum = momentum
        self.epsilon = epsilon

    def __call__(self, x: Array, *, mask: Array, train: bool) -> Array:
        """Normalises `x` `[B, features]` over the rows where `mask` `[B]` holds; masked rows may be anything."""
        x = jnp.where(mask[:, None], x, 0)
        mean, var = self.mean[...], self.var[...]
        if train:
            count = jnp.sum(mask)
            enough = count >= 2
            share = jnp.maximum(count, 1).astype(x.dtype)
            batch_mean = jnp.sum(x, axis=0) / share
            batch_var = jnp.sum(jnp.where(mask[:, None], jnp.square(x - batch_mean), 0), axis=0) / share
            keep = jnp.where(enough, self.momentum, 1.0).astype(x.dtype)
            self.mean[...] = keep * mean + (1 - keep) * jax.lax.stop_gradient(batch_mean)
            self.var[...] = keep * var + (1 - keep) * jax.lax.stop_gradient(batch_var)
            mean, var = jnp.where(enough, batch_mean, mean), jnp.where(enough, batch_var, var)
        return (x - mean) * jax.lax.rsqrt(var + self.epsilon) * self.scale[...] + self.bias[...]
