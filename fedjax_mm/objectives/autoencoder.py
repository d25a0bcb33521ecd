"""Server autoencoder: one encoder per modality and a shared decoder, over prototypes instead of samples."""

import jax
import jax.numpy as jnp
from jax.nn.initializers import lecun_uniform

from fedjax_mm.objectives.prototypes import merge_prototypes

Array = jax.Array


def init_autoencoder(key: Array, modalities: int, dim: int, dtype: jnp.dtype) -> dict[str, dict[str, Array]]:
    """Parameters of the encoders Phi_m and the decoder psi.

    Args:
        key: PRNG key.
        modalities: M.
        dim: d, dimension of a prototype.
        dtype: Floating.

    Returns:
        `encoders`: kernel `[M, d, h]`, bias `[M, h]`; `decoder`: kernel `[h, d]`, bias `[d]`, with h = max(d // 2, 1).
        Kernels are LeCun-uniform, each encoder by its own d inputs; biases are 0.
    """
    hidden = max(dim // 2, 1)
    first, second = jax.random.split(key)
    return {
        "encoders": {
            "kernel": lecun_uniform(batch_axis=0)(first, (modalities, dim, hidden), dtype),
            "bias": jnp.zeros((modalities, hidden), dtype),
        },
        "decoder": {"kernel": lecun_uniform()(second, (hidden, dim), dtype), "bias": jnp.zeros(dim, dtype)},
    }


def project(params: dict[str, dict[str, Array]], prototypes: Array, held: Array) -> Array:
    """Prototypes in the space all modalities share: P = psi(ReLU(Phi_m(E))).

    MFedPBA, Eq. 7.

    Args:
        params: As `init_autoencoder` returns them.
        prototypes: E, `[..., M, C, d]`; may be anything where not held.
        held: Bool `[..., M, C]`.

    Returns:
        P, `[..., M, C, d]`; 0 where not held.
    """
    encoders, decoder = params["encoders"], params["decoder"]
    safe = jnp.where(held[..., None], prototypes, 0)
    hidden = jax.nn.relu(jnp.einsum("...mcd,mdh->...mch", safe, encoders["kernel"]) + encoders["bias"][:, None])
    return jnp.where(held[..., None], hidden @ decoder["kernel"] + decoder["bias"], 0)


def aggregate(projected: Array, held: Array, old: Array, present: Array) -> tuple[Array, Array]:
    """Global feature prototypes: the mean over the clients that hold the modality and class.

    MFedPBA, Eq. 8.

    Args:
        projected: P of every cohort member `[K, M, C, d]`; may be anything where not held.
        held: Bool `[K, M, C]`.
        old: Previous global prototypes `[M, C, d]`, kept where nobody holds the class.
        present: Bool `[M, C]`, which of them are valid.

    Returns:
        Prototypes `[M, C, d]` and their validity, bool `[M, C]`.
    """
    return jax.vmap(merge_prototypes, in_axes=(1, 1, 0, 0))(projected, held.astype(projected.dtype), old, present)


def reconstruction(projected: Array, prototypes: Array, held: Array, members: Array | int) -> Array:
    """Squared distance of projected from uploaded prototypes, summed, per cohort member.

    MFedPBA, Eq. 9: 1/|K| sum_kmc ||P_kmc - E_kmc||^2.

    Args:
        projected: P, `[K, M, C, d]`; may be anything where not held.
        prototypes: E, `[K, M, C, d]`; may be anything where not held.
        held: Bool `[K, M, C]`.
        members: |K|, number of cohort members, scalar; those that hold nothing count too.

    Returns:
        Scalar, at least 0; 0 without members.
    """
    gap = jnp.where(held[..., None], projected - prototypes, 0)
    count = jnp.asarray(members, projected.dtype)
    return jnp.where(count > 0, jnp.sum(jnp.square(gap)) / jnp.maximum(count, 1), 0)
