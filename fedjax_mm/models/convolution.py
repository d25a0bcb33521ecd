"""Convolution and pooling over one or two axes, in the form each backend is quick at.

XLA's quick CPU convolution is not used inside compiled loops, where all training happens: there, gathering each
position's neighbourhood by shifted slices and one matrix product is many times faster. So it is for a single channel,
where shifted multiply-adds were no faster. Under a long window neighbouring positions share a row of that product: less
is copied, and the product is wider. Accelerators take XLA's own convolution.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_mm.models.layers import lecun_uniform
from fedjax_mm.models.product import product

Array = jax.Array
POSITIONS = 16
"""Pooling leaves at most so many positions."""
BLOCK = 4
"""Positions per row of the product under a long window: more cost more in products with 0 than they save in copies."""


class Convolution(nnx.Module):
    """A convolution without its bias, which is added after pooling: the maximum is the same, the work is less."""

    def __init__(self, window: tuple[int, ...], before: int, after: int, *, dtype: Any, rngs: nnx.Rngs):
        self.kernel = nnx.Param(lecun_uniform(rngs.params(), (*window, before, after), dtype))
        self.bias = nnx.Param(jnp.zeros(after, dtype))

    def __call__(self, x: Array, *, stride: int = 1, padding: str = "SAME") -> Array:
        """`convolve` with this kernel."""
        return convolve(x, self.kernel[...], stride=stride, padding=padding)


def convolve(x: Array, kernel: Array, *, stride: int = 1, padding: str = "SAME", native: bool | None = None) -> Array:
    """Cross-correlation.

    Args:
        x: `[B, length, before]` or `[B, height, width, before]`.
        kernel: `[*window, before, after]`, floating.
        stride: Step along every axis.
        padding: `SAME`, zeros that keep the size (up to the stride), or `VALID`, none: the window, which must not be
            longer than the input, stays within it. Both as in XLA.
        native: Whether to use XLA's convolution; None for everywhere but on a CPU.

    Returns:
        `[B, ceil(length / stride), after]`, or the same with two axes; without padding the length is that less the
        window's plus 1.
    """
    window, sizes = kernel.shape[:-2], x.shape[1:-1]
    if jax.default_backend() != "cpu" if native is None else native:
        axes = "HW"[: len(window)]
        form = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
        return jax.lax.conv_general_dilated(x, kernel, (stride,) * len(window), padding, dimension_numbers=form)
    lost = [0 if padding == "SAME" else width - 1 for width in window]
    out = [-(-(size - less) // stride) for size, less in zip(sizes, lost, strict=True)]
    spans = [(count - 1) * stride + 1 for count in out]
    missing = [max(span - 1 + width - size, 0) for span, width, size in zip(spans, window, sizes, strict=True)]
    x = jnp.pad(x, [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing), (0, 0)])
    block = min(BLOCK, window[0] // 4, out[0])
    if len(window) == 1 and stride == 1 and block > 1:
        return _convolve_blocks(x, kernel, out[0], block)
    shifted = [
        x[:, *(slice(start, start + span, stride) for start, span in zip(corner, spans, strict=True))]
        for corner in itertools.product(*map(range, window))
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, math.prod(kernel.shape[:-1]))
    return product(patches, kernel.reshape(-1, kernel.shape[-1])).reshape(x.shape[0], *out, kernel.shape[-1])


def _convolve_blocks(x: Array, kernel: Array, out: int, block: int) -> Array:
    """The first `out` positions of a convolution without padding, `block` of them per row of the matrix product.

    A row holds all inputs of its positions; the matrix is the kernel once per position, each time further down.
    """
    window, before, after = kernel.shape
    rows, reach = -(-out // block), -(-(window + block - 1) // block)
    size = (rows + reach - 1) * block
    x = jnp.pad(x, ((0, 0), (0, max(size - x.shape[1], 0)), (0, 0)))[:, :size]
    x = x.reshape(-1, size // block, block * before)
    patches = jnp.concatenate([x[:, start : start + rows] for start in range(reach)], axis=-1)
    shifts = [((shift, reach * block - window - shift), (0, 0), (0, 0)) for shift in range(block)]
    matrix = jnp.stack([jnp.pad(kernel, shift) for shift in shifts], axis=2)
    rows_of = product(patches.reshape(-1, patches.shape[-1]), matrix.reshape(-1, block * after))
    return rows_of.reshape(-1, rows * block, after)[:, :out]


def halve(x: Array) -> Array:
    """The larger of each two neighbouring positions, as max-pooling by 2; a last odd one is left out.

    Args:
        x: `[B, length, channels]`.

    Returns:
        `[B, length // 2, channels]`; a single position stays.
    """
    if x.shape[1] == 1:
        return x
    half = x.shape[1] // 2
    pairs = x[:, : 2 * half].reshape(x.shape[0], half, 2, x.shape[2])
    # In the gradient much cheaper than a maximum over the axis.
    return jnp.maximum(pairs[:, :, 0], pairs[:, :, 1])


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
