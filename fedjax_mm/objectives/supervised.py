"""Supervised losses over masked batches."""

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.masked import masked_mean

Array = jax.Array


def cross_entropy(logits: Array, y: Array, valid: Array) -> tuple[Array, Array]:
    """Mean cross-entropy over the valid samples, in nats.

    Args:
        logits: Scores `[B, C]`; may be anything where not valid.
        y: Class ids in 0..C-1, integer `[B]`.
        valid: Bool `[B]`.

    Returns:
        The mean (0 if no sample is valid) and the number of valid samples, floating scalars.
    """
    safe = jnp.where(valid[:, None], logits, 0)
    picked = jnp.take_along_axis(safe, jnp.where(valid, y, 0)[:, None], axis=1)[:, 0]
    return masked_mean(jax.nn.logsumexp(safe, axis=1) - picked, valid)
