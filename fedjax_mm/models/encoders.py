"""Encoders: from one modality's input to a feature of d dimensions (MFedPBA, Table 4)."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import MaskedBatchNorm, linear

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """An encoder's architecture. Equal specs form a bucket.

    Attributes:
        kind: `dnn`, or `dnn_bn` with BatchNorm after each hidden layer.
        shape: Shape of one input.
        widths: Hidden widths, in order.
        dim: Width d of the feature.
    """

    kind: str
    shape: tuple[int, ...]
    widths: tuple[int, ...]
    dim: int

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """A fresh module."""
        return DNN(
            math.prod(self.shape), self.widths, self.dim, normalise=self.kind == "dnn_bn", dtype=dtype, rngs=rngs
        )

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape))}-{'-'.join(map(str, (*self.widths, self.dim)))}"


class DNN(nnx.Module):
    """Flatten, then Linear(-BatchNorm)-ReLU per width, then Linear to d."""

    def __init__(
        self, features: int, widths: tuple[int, ...], dim: int, *, normalise: bool, dtype: Any, rngs: nnx.Rngs
    ):
        sizes = (features, *widths)
        # A bias in front of BatchNorm has no gradient but rounding, which an adaptive optimiser would magnify.
        self.hidden = nnx.List(
            linear(before, after, dtype=dtype, rngs=rngs, bias=not normalise)
            for before, after in itertools.pairwise(sizes)
        )
        self.norms = nnx.List(MaskedBatchNorm(width, dtype=dtype) for width in widths if normalise)
        self.last = linear(sizes[-1], dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Array, *, mask: Array, key: Array, train: bool) -> Array:
        """Features `[B, d]` of inputs `[B, *shape]`; rows where `mask` `[B]` is False do not influence the others."""
        x = jnp.reshape(x, (x.shape[0], -1))
        for position, layer in enumerate(self.hidden):
            x = layer(x)
            if self.norms:
                x = self.norms[position](x, mask=mask, train=train)
            x = jax.nn.relu(x)
        return self.last(x)
