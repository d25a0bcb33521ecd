"""Temperatures of Flux (Orzikulova et al., Section 3.1): from each modality's confidence to that of a sample."""

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.masked import masked_mean
from fedjax_mm.objectives.supervised import cross_entropy

Array = jax.Array


def temperature(nu: Array, mask: Array) -> Array:
    """The temperature of a log-scale, tau = exp(nu / 2) (Section 3.1).

    Args:
        nu: Floating; may be anything where masked.
        mask: Bool of the same shape.

    Returns:
        Same shape, above 0; 1 where masked.
    """
    return jnp.exp(jnp.where(mask, nu, 0) / 2)


def fuse_temperatures(tau: Array, observed: Array, epsilon: Array | float) -> Array:
    """The temperature of a sample, tau_f = (sum_m a_m / (tau_m^2 + epsilon) + epsilon)^(-1/2) (Eq. 3).

    Args:
        tau: Temperatures `[M, B]`, above 0; may be anything where not observed.
        observed: The masks a, bool `[M, B]`.
        epsilon: Scalar, above 0.

    Returns:
        `[B]`, above 0; epsilon^(-1/2) for a sample without modality.
    """
    precision = jnp.where(observed, 1 / (jnp.square(jnp.where(observed, tau, 1)) + epsilon), 0)
    return jax.lax.rsqrt(jnp.sum(precision, axis=0) + epsilon)


def unimodal_loss(logits: Array, tau: Array, y: Array, observed: Array) -> tuple[Array, Array]:
    """Mean of L_uni = (1 / N_a) sum_m a_m CE(z_m / tau_m, y) over samples, in nats (Eq. 2).

    Args:
        logits: Unimodal logits z `[M, B, C]`; may be anything where not observed.
        tau: Temperatures `[M, B]`, above 0; may be anything where not observed.
        y: Class ids in 0..C-1, integer `[B]`; may be anything for a sample without modality.
        observed: The masks a, bool `[M, B]`.

    Returns:
        The mean over the samples with a modality (0 if there is none) and their number, floating scalars.
    """
    some = jnp.any(observed, axis=0)
    safe = jnp.where(observed[..., None], logits, 0) / jnp.where(observed, tau, 1)[..., None]
    target = jnp.broadcast_to(jnp.where(some, y, 0), observed.shape)[..., None]
    nats = jax.nn.logsumexp(safe, axis=-1) - jnp.take_along_axis(safe, target, axis=-1)[..., 0]
    count = jnp.maximum(jnp.sum(observed, axis=0), 1).astype(safe.dtype)
    return masked_mean(jnp.sum(jnp.where(observed, nats, 0), axis=0) / count, some)


def tempered_cross_entropy(logits: Array, tau: Array, y: Array, valid: Array) -> tuple[Array, Array]:
    """Mean of CE(z / tau, y), with a temperature per sample, in nats (Eq. 6).

    Args:
        logits: Scores `[B, C]`; may be anything where not valid.
        tau: Temperatures `[B]`, above 0; may be anything where not valid.
        y: Class ids in 0..C-1, integer `[B]`.
        valid: Bool `[B]`.

    Returns:
        The mean (0 if no sample is valid) and the number of valid samples, floating scalars.
    """
    safe = jnp.where(valid[:, None], logits, 0) / jnp.where(valid, tau, 1)[:, None]
    return cross_entropy(safe, y, valid)
