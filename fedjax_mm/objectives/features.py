"""Feature prototypes per modality: alignment of a client's with the global ones."""

import jax
import jax.numpy as jnp

from fedjax_mm.errors import choose
from fedjax_mm.objectives.masked import masked_mean

Array = jax.Array


def align_features(
    local: Array, target: Array, both: Array, modalities: Array, *, norm: str = "sum", class_mean: str = "all"
) -> Array:
    """Mean over modalities and classes of the squared distance to the global prototype.

    MFedPBA, Eq. 13: 1/|M_k| sum_m 1/C sum_c ||target_mc - local_mc||^2. No gradient reaches the targets.

    Args:
        local: Feature prototypes of the client `[M, C, d]`; may be anything where not in both.
        target: Global feature prototypes `[M, C, d]`; may be anything where not in both.
        both: Bool `[M, C]`, the classes that have a local and a global prototype; the others contribute 0.
        modalities: Bool `[M]`, what the client holds; the others contribute 0 and are not counted.
        norm: `sum` over the d dimensions, the squared Euclidean norm (the equation), or their `mean`, the mean squared
            error (the text), smaller by the factor d.
        class_mean: Divide by `all` classes (paper) or by the number `present` in both, per modality.

    Returns:
        Scalar, at least 0; 0 if the client holds no modality.

    Raises:
        UsageError: Unknown `norm` or `class_mean`.
    """
    choose("norm", norm, ("sum", "mean"))
    choose("class mean", class_mean, ("all", "present"))
    both = both & modalities[:, None]
    gap = jnp.where(both[..., None], jax.lax.stop_gradient(target) - local, 0)
    distance = (jnp.sum if norm == "sum" else jnp.mean)(jnp.square(gap), axis=-1)
    over_classes = jnp.mean(distance, axis=-1) if class_mean == "all" else jax.vmap(masked_mean)(distance, both)[0]
    return masked_mean(over_classes, modalities)[0]
