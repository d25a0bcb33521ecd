"""Small linear systems, solved in plain array operations."""

import jax
import jax.numpy as jnp

Array = jax.Array
FEW = 16
"""Up to so many unknowns the steps of elimination are written out; there are as many as unknowns."""


def solve_definite(matrix: Array, right: Array) -> Array:
    """The x of A x = b, for a symmetric positive definite A; `vmap`able.

    By Gauss-Jordan elimination, which such a matrix lets go without pivoting; with more than `FEW` unknowns by
    `jnp.linalg.solve`. On a CPU that calls LAPACK, which keeps a program from several devices
    (`fedjax_mm.simulation.waits`).

    Args:
        matrix: A, `[n, n]`.
        right: b, `[n]`.

    Returns:
        x, `[n]`; not finite, or wrong, where A is not positive definite in its precision.
    """
    size = matrix.shape[0]
    if size > FEW:
        return jnp.linalg.solve(matrix, right)
    system = jnp.concatenate([matrix, right[:, None]], axis=1)
    for k in range(size):
        pivot = system[k] / system[k, k]
        factors = jnp.where(jnp.arange(size) == k, 0, system[:, k])
        system = (system - factors[:, None] * pivot[None, :]).at[k].set(pivot)
    return system[:, -1]
