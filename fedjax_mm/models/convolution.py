"""Convolution and pooling over one or two axes, in the form each backend is quick at.

XLA's quick CPU convolution is not used inside compiled loops, where all training happens: there, gathering each
position's neighbourhood by shifted slices and one matrix product is many times faster. So it is for a single channel,
where shifted multiply-adds were no faster. Accelerators take XLA's own convolution.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import lecun_uniform

Array = jax.Array
POSITIONS = 16
"""Pooling leaves at most so many positions."""


class Convolution(nnx.Module):
    """A convolution without its bias, which is added after pooling: the maximum is the same, the work is less."""

    def __init__(self, window: tuple[int, ...], before: int, after: int, *, dtype: Any, rngs: nnx.Rngs):
        self.kernel = nnx.Param(lecun_uniform(rngs.params(), (*window, before, after), dtype))
        self.bias = nnx.Param(jnp.zeros(after, dtype))

    def __call__(self, x: Array, *, stride: int = 1) -> Array:
        """`convolve` with this kernel."""
        return convolve(x, self.kernel[...], stride=stride)


def convolve(x: Array, kernel: Array, *, stride: int = 1, native: bool | None = None) -> Array:
    """Cross-correlation with zero padding that keeps the size (up to the stride), as `SAME` in XLA.

    Args:
        x: `[B, length, before]` or `[B, height, width, before]`.
        kernel: `[*window, before, after]`, floating.
        stride: Step along every axis.
        native: Whether to use XLA's convolution; None for everywhere but on a CPU.

    Returns:
        `[B, ceil(length / stride), after]`, or the same with two axes.
    """
    window, sizes = kernel.shape[:-2], x.shape[1:-1]
    if jax.default_backend() != "cpu" if native is None else native:
        axes = "HW"[: len(window)]
        form = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
        return jax.lax.conv_general_dilated(x, kernel, (stride,) * len(window), "SAME", dimension_numbers=form)
    out = [-(-size // stride) for size in sizes]
    spans = [(count - 1) * stride + 1 for count in out]
    missing = [max(span - 1 + width - size, 0) for span, width, size in zip(spans, window, sizes, strict=True)]
    x = jnp.pad(x, [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing), (0, 0)])
    shifted = [
        x[:, *(slice(start, start + span, stride) for start, span in zip(corner, spans, strict=True))]
        for corner in itertools.product(*map(range, window))
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, math.prod(kernel.shape[:-1]))
    return (patches @ kernel.reshape(-1, kernel.shape[-1])).reshape(x.shape[0], *out, kernel.shape[-1])


def pool(x: Array) -> Array:
    """The largest values over bins of positions, as adaptive max-pooling to 16.

    Bins do not overlap and differ in size by at most one, the larger ones first; up to 16 positions stay as they are.

    Args:
        x: `[B, length, channels]`.

    Returns:
        `[B, min(length, 16), channels]`.
    """
    size, larger = divmod(x.shape[1], POSITIONS)
    if x.shape[1] <= POSITIONS:
        return x
    border = larger * (size + 1)
    parts = (x[:, :border], larger, size + 1), (x[:, border:], POSITIONS - larger, size)
    pooled = [part.reshape(x.shape[0], n, width, x.shape[2]).max(axis=2) for part, n, width in parts if n]
    return jnp.concatenate(pooled, axis=1)
