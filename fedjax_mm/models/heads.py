"""Heads: from the fused feature to scores."""

import dataclasses
import itertools
from typing import Any

import jax
from flax import nnx

from fedjax_mm.models.layers import linear

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class HeadSpec:
    """A multilayer perceptron.

    Attributes:
        features: Width of the input.
        widths: Hidden widths; empty for a linear head.
        outputs: Width of the output.
    """

    features: int
    widths: tuple[int, ...]
    outputs: int

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """A fresh module."""
        return MLP(self.features, self.widths, self.outputs, dtype=dtype, rngs=rngs)

    def __str__(self) -> str:
        return "mlp " + "-".join(map(str, (self.features, *self.widths, self.outputs)))


class MLP(nnx.Module):
    """Linear-ReLU per hidden width, then Linear."""

    def __init__(self, features: int, widths: tuple[int, ...], outputs: int, *, dtype: Any, rngs: nnx.Rngs):
        sizes = (features, *widths, outputs)
        self.layers = nnx.List(
            linear(before, after, dtype=dtype, rngs=rngs) for before, after in itertools.pairwise(sizes)
        )

    def __call__(self, x: Array) -> Array:
        """Scores `[B, outputs]` of `x` `[B, features]`."""
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)
