"""Contrast: between the prototypes of different modalities, and between models."""

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.masked import masked_mean

Array = jax.Array

SHORTEST = 1e-12
"""A vector no longer than this has no direction: its cosine with any other is 0, with gradient 0."""


def intermodal_contrast(prototypes: Array, present: Array, *, temperature: Array | float) -> Array:
    """Pulls a class together across modalities and different classes apart; a sum, in nats.

    MFedPBA, Eq. 10: -sum over ordered pairs m != m' and classes c valid in both of
    log(exp(sim(P_c^m, P_c^m') / temperature) / sum_c' exp(sim(P_c^m, P_c'^m') / temperature)), with c' over the classes
    valid in m' and sim the cosine.

    Args:
        prototypes: Global feature prototypes `[M, C, d]`; may be anything where not present.
        present: Bool `[M, C]`.
        temperature: Scalar, above 0.

    Returns:
        Scalar, at least 0; 0 if no class is valid in two modalities.
    """
    units = _directions(jnp.where(present[..., None], prototypes, 0))
    scores = jnp.einsum("mcd,nkd->mnck", units, units) / jnp.asarray(temperature, prototypes.dtype)
    different = ~jnp.eye(present.shape[0], dtype=bool)
    valid = different[..., None] & present[:, None] & present[None]
    # A row that is not valid may compare with nothing; it gets every class, so that its logarithm is finite.
    compared = present[None, :, None] | ~valid[..., None]
    matching = jnp.diagonal(scores, axis1=-2, axis2=-1)
    return jnp.sum(jnp.where(valid, jax.nn.logsumexp(scores, axis=-1, where=compared) - matching, 0))


def model_contrast(
    z: Array, positive: Array, negative: Array, valid: Array, *, temperature: Array | float
) -> tuple[Array, Array]:
    """Pulls each sample's feature towards one model's and away from another's; a mean, in nats.

    MOON (Li et al. 2021, Eq. 3): -log(exp(s+ / temperature) / (exp(s+ / temperature) + exp(s- / temperature))) with s+
    and s- the cosines of z with the positive and with the negative feature, to which no gradient flows.

    Args:
        z: Features `[B, d]`; like the others they may be anything where not valid.
        positive: Features of the same samples, `[B, d]`.
        negative: Features of the same samples, `[B, d]`.
        valid: Bool `[B]`.
        temperature: Scalar, above 0.

    Returns:
        The mean (0 if no sample is valid) and the number of valid samples, floating scalars. Where both features are
        equal it is log 2 with gradient exactly 0.
    """
    own, near, far = (_directions(jnp.where(valid[:, None], rows, 0)) for rows in (z, positive, negative))
    gap = jnp.sum(own * jax.lax.stop_gradient(far - near), axis=-1) / jnp.asarray(temperature, z.dtype)
    return masked_mean(jax.nn.softplus(gap), valid)


def _directions(vectors: Array) -> Array:
    """Vectors `[..., d]` at length 1, or 0 where they have no direction."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    long = squared > SHORTEST**2
    return jnp.where(long, vectors, 0) / jnp.sqrt(jnp.where(long, squared, 1))
