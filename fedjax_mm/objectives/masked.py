"""The one masked mean: every average of the package that may be over nothing goes through here."""

import jax
import jax.numpy as jnp

Array = jax.Array


def masked_mean(values: Array, mask: Array) -> tuple[Array, Array]:
    """Mean of the unmasked entries.

    Args:
        values: Floating array; entries that are masked may be anything.
        mask: Bool of the same shape.

    Returns:
        The mean, 0 over nothing, and the number of unmasked entries, both scalars of the dtype of `values`.
    """
    count = jnp.sum(mask, dtype=values.dtype)
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(count, 1), count


def weighted_mean(values: Array, weights: Array, old: Array) -> Array:
    """Mean over the leading axis, or the old value where there is no weight.

    Args:
        values: `[N, ...]`; where the weight is 0 they may be anything.
        weights: `[N]`, at least 0.
        old: `[...]`, what stays where all weights are 0.

    Returns:
        `[...]`, dtype of `old`. Integer leaves are counters, not quantities: they keep their old value.
    """
    return finish_mean(*weighted_sum(values, weights), old)


def weighted_sum(values: Array, weights: Array) -> tuple[Array, Array]:
    """Sum of weighted values and of weights over the leading axis; partial sums of one mean may be added up.

    Args:
        values: `[N, ...]`; where the weight is 0 they may be anything.
        weights: `[N]`, at least 0.

    Returns:
        `[...]` and a scalar, at least float32.
    """
    dtype = jnp.promote_types(values.dtype, jnp.float32)
    spread = weights.astype(dtype).reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.sum(jnp.where(spread > 0, values, 0) * spread, axis=0), jnp.sum(weights, dtype=dtype)


def finish_mean(summed: Array, total: Array, old: Array) -> Array:
    """A weighted mean from its sums.

    Args:
        summed: Sum of weighted values, `[...]`.
        total: Sum of weights, scalar.
        old: `[...]`, what stays where there is no weight.

    Returns:
        `[...]`, dtype of `old`; integer leaves keep their old value.
    """
    if not jnp.issubdtype(old.dtype, jnp.inexact):
        return old
    return jnp.where(total > 0, summed / jnp.where(total > 0, total, 1), old).astype(old.dtype)
