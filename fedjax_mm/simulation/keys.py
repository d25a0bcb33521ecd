"""Every random number of a simulation: a key is a function of (seed, purpose, round, client)."""

import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

Array = jax.Array


def seed_keys(seeds: Sequence[int]) -> Array:
    """One key per seed, `[S]`."""
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def derive(key: Array, purpose: str, *path: Array | int) -> Array:
    """The key of a purpose along a path.

    Args:
        key: A seed's key.
        purpose: What the numbers are for; equal purposes give methods that are compared the same numbers.
        *path: Integers such as round and client id, int32 scalars or Python ints.

    Returns:
        A key.
    """
    key = jax.random.fold_in(key, zlib.crc32(purpose.encode()))
    for step in path:
        key = jax.random.fold_in(key, step)
    return key
