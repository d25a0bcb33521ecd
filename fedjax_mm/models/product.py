"""The matrix product of every layer, with a gradient that XLA's CPU backend computes quickly under `vmap`.

JAX's own gradient of the kernel, once vectorised, is computed as its transpose and turned round while the kernel is
updated, which takes longer than the product. Written out, it comes in the kernel's order.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

Array = jax.Array


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """`x` `[..., rows, inputs]` times `kernel` `[..., inputs, outputs]`; differentiable in reverse only."""
    return x @ kernel


def _forward(x: Any, kernel: Any) -> tuple[Array, tuple[Array, Array | None]]:
    # Inputs of the first layer have no gradient, and it would be half of the work.
    return x.value @ kernel.value, (x.value, kernel.value if x.perturbed else None)


def _backward(kept: tuple[Array, Array | None], gradient: Any) -> tuple[Array | None, Array]:
    x, kernel = kept
    if isinstance(gradient, SymbolicZero):
        gradient = jnp.zeros(gradient.shape, x.dtype)
    rows, last = x.ndim - 2, x.ndim - 1
    stacked = tuple(range(rows))
    of_x = None
    if kernel is not None:
        of_x = jax.lax.dot_general(gradient, kernel, (((last,), (last,)), (stacked, stacked)))
    return of_x, jax.lax.dot_general(x, gradient, (((rows,), (rows,)), (stacked, stacked)))


product.defvjp(_forward, _backward, symbolic_zeros=True)


def dense_product(x: Array, kernel: Array, dimension_numbers: Any, **_: Any) -> Array:
    """`product` in the form Flax's dense layer wants: over the last axis of `x` `[..., inputs]`."""
    return product(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[-1])
