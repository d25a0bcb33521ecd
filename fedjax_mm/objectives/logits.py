"""Logit prototypes: the entropy of a prediction, weights by confidence, alignment by divergence."""

import jax
import jax.numpy as jnp

from fedjax_mm.errors import choose
from fedjax_mm.objectives.masked import masked_mean

Array = jax.Array


def entropy(logits: Array) -> Array:
    """Entropy of the softmax, in nats: H = -sum_j p_j log p_j.

    MFedPBA, Eq. 5.

    Args:
        logits: Finite scores `[..., C]`.

    Returns:
        `[...]`, from 0 (one class has all the probability) to log C.
    """
    top = jnp.argmax(logits, axis=-1, keepdims=True)
    shifted = logits - jnp.take_along_axis(logits, top, axis=-1)
    odds = jnp.exp(shifted)
    # The largest entry is exactly 1. Summed apart from it, the others keep their digits: in single precision the
    # entropy of a confident prediction would otherwise be rounding error, and Eq. 6 divides by it.
    rest = jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == top, 0, odds), axis=-1)
    return jnp.log1p(rest) - jnp.sum(odds * shifted, axis=-1) / (1 + rest)


def entropy_weights(prototypes: Array, held: Array, *, epsilon: float = 1e-8) -> Array:
    """Weights of the clients in a global logit prototype: the inverse of their entropy, over its sum.

    MFedPBA, Eq. 6: q_kc = (H(I_kc) + epsilon)^-1 / sum_k' (H(I_k'c) + epsilon)^-1, over the clients that hold class c.

    Args:
        prototypes: Logit prototypes `[K, C, J]`; may be anything where not held.
        held: Bool `[K, C]`, which client holds which class.
        epsilon: Added to the entropy, nats, above 0.

    Returns:
        `[K, C]`, each class summing to 1; 0 where not held, all 0 for a class that nobody holds.
    """
    inverse = 1 / (entropy(jnp.where(held[..., None], prototypes, 0)) + epsilon)
    inverse = jnp.where(held, inverse, 0)
    total = jnp.sum(inverse, axis=0)
    return inverse / jnp.where(total > 0, total, 1)


def align_logits(local: Array, target: Array, both: Array, *, class_mean: str = "all") -> Array:
    """Mean over classes of the divergence KL(softmax(target_c) || softmax(local_c)), in nats.

    MFedPBA, Eq. 14. No gradient reaches the targets.

    Args:
        local: Logit prototypes of the client `[C, C]`, class by logit; may be anything where not in both.
        target: Global logit prototypes `[C, C]`; may be anything where not in both.
        both: Bool `[C]`, the classes that have a local and a global prototype; the others contribute 0.
        class_mean: Divide by `all` classes (paper) or by the number `present` in both.

    Returns:
        Scalar, at least 0; 0 if no class is in both.

    Raises:
        UsageError: Unknown `class_mean`.
    """
    choose("class mean", class_mean, ("all", "present"))
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(jnp.where(both[:, None], target, 0)))
    log_q = jax.nn.log_softmax(jnp.where(both[:, None], local, 0))
    divergence = jnp.where(both, jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1), 0)
    return jnp.mean(divergence) if class_mean == "all" else masked_mean(divergence, both)[0]
