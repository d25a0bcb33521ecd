"""How far a model is from another."""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def squared_distance(params: Any, reference: Any) -> Array:
    """||w - w_t||^2 over all parameters (FedProx, Li et al. 2020, Eq. 2, without mu / 2).

    Args:
        params: Tree of floating arrays.
        reference: The same tree; no gradient flows into it.

    Returns:
        Scalar, at least 0; 0 for a tree without leaves.
    """
    gaps = jax.tree.map(lambda w, r: jnp.sum(jnp.square(w - jax.lax.stop_gradient(r))), params, reference)
    return sum(jax.tree.leaves(gaps), jnp.zeros(()))
