"""The residual encoder; inputs, masks and results are those of `DNN`."""

import itertools
from typing import Any

import jax
from flax import nnx

from fedjax_mm.models.layers import MaskedBatchNorm, linear

Array = jax.Array


class Block(nnx.Module):
    """ReLU(BatchNorm(Linear(x))) + x, with a Linear without bias in place of x where the width changes."""

    def __init__(self, before: int, after: int, *, dtype: Any, rngs: nnx.Rngs):
        # Without a bias, as in front of every BatchNorm; see `DNN`.
        self.linear = linear(before, after, dtype=dtype, rngs=rngs, bias=False)
        self.norm = MaskedBatchNorm(after, dtype=dtype)
        self.skip = None if before == after else linear(before, after, dtype=dtype, rngs=rngs, bias=False)

    def __call__(self, x: Array, *, mask: Array, train: bool) -> Array:
        """`[B, after]` of `x` `[B, before]`."""
        change = jax.nn.relu(self.norm(self.linear(x), mask=mask, train=train))
        return change + (x if self.skip is None else self.skip(x))


class ResModel(nnx.Module):
    """Flatten, then a residual block per width, then Linear to d."""

    def __init__(self, features: int, widths: tuple[int, ...], dim: int, *, dtype: Any, rngs: nnx.Rngs):
        sizes = (features, *widths)
        self.blocks = nnx.List(
            Block(before, after, dtype=dtype, rngs=rngs) for before, after in itertools.pairwise(sizes)
        )
        self.last = linear(sizes[-1], dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, *shape]`."""
        x = x.reshape(x.shape[0], -1)
        for block in self.blocks:
            x = block(x, mask=mask, train=train)
        return self.last(x)
