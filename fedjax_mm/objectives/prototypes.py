"""Class prototypes: means of features, distances to them."""

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.masked import masked_mean, weighted_mean

Array = jax.Array


def class_sums(features: Array, y: Array, valid: Array, classes: int) -> tuple[Array, Array]:
    """Per-class sums of features and counts; additive over batches.

    Args:
        features: `[B, d]`; may be anything where not valid.
        y: Class ids in 0..C-1, integer `[B]`.
        valid: Bool `[B]`.
        classes: C.

    Returns:
        Sums `[C, d]` and counts `[C]`, dtype of `features`.
    """
    member = (y[:, None] == jnp.arange(classes)) & valid[:, None]
    member = member.astype(features.dtype)
    return member.T @ jnp.where(valid[:, None], features, 0), jnp.sum(member, axis=0)


def class_means(sums: Array, counts: Array) -> Array:
    """Prototypes from sums: `[C, d]` over `[C]`; 0 for a class without samples (mask by `counts > 0`)."""
    return sums / jnp.maximum(counts, 1)[:, None]


def merge_prototypes(prototypes: Array, weights: Array, old: Array, present: Array) -> tuple[Array, Array]:
    """Global prototypes: per class the weighted mean over the clients that hold it.

    FedProto (Tan et al. 2022), Eq. 6 with weights |D_{i,j}|.

    Args:
        prototypes: `[K, C, d]`; may be anything where the weight is 0.
        weights: `[K, C]`, at least 0; 0 where the client does not hold the class.
        old: Previous global prototypes `[C, d]`, kept where nobody holds the class.
        present: Bool `[C]`, which of them are valid.

    Returns:
        Prototypes `[C, d]` and their validity, bool `[C]`.
    """
    merged = jax.vmap(weighted_mean, in_axes=(1, 1, 0))(prototypes, weights, old)
    return merged, present | (jnp.sum(weights, axis=0) > 0)


def pull_to_prototype(features: Array, y: Array, valid: Array, prototypes: Array, present: Array) -> Array:
    """Mean over samples and dimensions of the squared distance to the prototype of the sample's class.

    FedProto (Tan et al. 2022), the regulariser as its authors' code computes it: samples whose class has no prototype
    contribute 0 but count in the denominator. No gradient reaches the prototypes.

    Args:
        features: `[B, d]`.
        y: Class ids `[B]`.
        valid: Bool `[B]`.
        prototypes: `[C, d]`; may be anything where not present.
        present: Bool `[C]`.

    Returns:
        Scalar, at least 0; 0 if no sample is valid.
    """
    targets = jax.lax.stop_gradient(jnp.where(present[:, None], prototypes, 0))
    known = present[y] & valid
    gap = jnp.where(known[:, None], features - targets[y], 0)
    return masked_mean(jnp.mean(jnp.square(gap), axis=1), valid)[0]


def nearest_prototype_scores(features: Array, prototypes: Array, present: Array) -> Array:
    """Negative squared distances to the prototypes, finite everywhere.

    Args:
        features: `[B, d]`.
        prototypes: `[C, d]`; may be anything where not present.
        present: Bool `[C]`.

    Returns:
        `[B, C]`. A class without prototype scores below every class that has one, by a finite margin that leaves it
        practically no probability; if no class has a prototype all scores are 0.
    """
    safe = jnp.where(present[:, None], prototypes, 0)
    scores = -jnp.sum(jnp.square(features[:, None, :] - safe), axis=-1)
    lowest = jnp.min(jnp.where(present, scores, jnp.inf), axis=1, keepdims=True)
    # The relative part keeps the margin above rounding where distances are huge.
    floor = lowest - 100.0 - 1e-3 * jnp.abs(lowest)
    return jnp.where(jnp.any(present), jnp.where(present, scores, floor), 0.0)
