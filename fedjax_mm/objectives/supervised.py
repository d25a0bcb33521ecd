"""Supervised losses over masked batches."""

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.masked import masked_mean

Array = jax.Array

ABSENT = -1e4
"""Stands for the logarithm of a count of 0: it leaves a class no probability, and a loss finite."""


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


def balanced_cross_entropy(logits: Array, y: Array, valid: Array, counts: Array) -> tuple[Array, Array]:
    """Mean balanced-softmax cross-entropy over the valid samples, in nats.

    The cross-entropy of logits + log counts (Ren et al. 2020, Eq. 4; Chen and Chao 2022, Eq. 6): what was learned from
    the client's classes serves classes that are all as frequent. Counts matter up to a factor only.

    Args:
        logits: Scores `[B, C]`; may be anything where not valid.
        y: Class ids in 0..C-1, integer `[B]`.
        valid: Bool `[B]`.
        counts: Samples per class, `[C]`, at least 0.

    Returns:
        The mean (0 if no sample is valid) and the number of valid samples, floating scalars.
    """
    held = counts > 0
    offset = jnp.where(held, jnp.log(jnp.where(held, counts, 1).astype(logits.dtype)), ABSENT)
    return cross_entropy(logits + offset, y, valid)
