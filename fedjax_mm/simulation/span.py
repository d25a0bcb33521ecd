"""First layers, trained in the span of their samples.

Under SGD a dense layer that reads data changes by combinations of its client's samples alone: with the samples X
`[n, inputs]`, its kernel is always W0 + X^T D for some D `[n, outputs]`. Hence X W = X W0 + (X X^T) D, and a step on a
batch adds to the rows of D that belong to the batch. What a step moves is n x outputs numbers instead of
inputs x outputs; W0 is read once and W written once a round, in products large enough to be fast. Nothing is
approximated: only the order of additions changes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
STEP_PASSES = 30
"""What moving a kernel through memory in a step costs, in operations for each of its numbers."""
MOST_SAMPLES = 4
"""X takes at most so many times the memory of the kernel it stands for."""


class Span(NamedTuple):
    """What the first layers in a bucket need to know of their samples.

    Attributes:
        gram: X X^T of each slot, `[slots, n, n]`.
        bases: View -> X W0 of each slot, `[slots, n, outputs]`.
    """

    gram: Array
    bases: Mapping[str, Array]


def pays(inputs: int, outputs: int, samples: int, *, batch: int, steps: float) -> bool:
    """Whether a first layer is trained faster in the span of its samples, in memory of like size.

    Args:
        inputs: Width of what it reads.
        outputs: Width of what it makes.
        samples: Rows that X and D have.
        batch: Samples in a step.
        steps: Steps in a round, on average.

    Returns:
        The answer.
    """
    once = (4 * outputs + 2 * samples) * samples * inputs

    def stepping(rows: int) -> float:
        return steps * (4 * min(batch, samples) + STEP_PASSES) * rows * outputs

    return samples <= MOST_SAMPLES * outputs and once + stepping(samples) < stepping(inputs)


def gram(x: Array) -> Array:
    """X X^T, `[slots, n, n]`, of samples `[slots, n, inputs]`."""
    return jax.lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))))


def kernel_of(start: Array, x: Array, coefficients: Array) -> Array:
    """The kernels W0 + X^T D.

    Args:
        start: W0, `[slots, inputs, outputs]`.
        x: X, `[slots, n, inputs]`.
        coefficients: D, `[slots, n, outputs]`.

    Returns:
        `[slots, inputs, outputs]`.
    """
    return start + jax.lax.dot_general(x, coefficients, (((1,), (1,)), ((0,), (0,))))


def outputs_at(span: Span, view: str, coefficients: Array | None, places: Array) -> Array:
    """X W for a batch, differentiable in reverse: the gradient of D is such that SGD moves W as it should.

    That is, the gradient G of the kernel is given by its own coefficients, G = X^T (the value returned).

    Args:
        span: The samples.
        view: Whose W0.
        coefficients: D, `[slots, n, outputs]`; None for zero.
        places: Which of the n samples the batch has, int32 `[slots, B]`; of an entry outside 0..n-1 the output is
            finite and the gradient is dropped.

    Returns:
        `[slots, B, outputs]`.
    """
    start = _rows(span.bases[view], places)
    return start if coefficients is None else start + _moved(_rows(span.gram, places), places, coefficients)


@jax.custom_vjp
def _moved(grams: Array, places: Array, coefficients: Array) -> Array:
    return grams @ coefficients


def _forward(grams: Array, places: Array, coefficients: Array) -> tuple[Array, tuple[Array, Array]]:
    return grams @ coefficients, (grams, places)


def _backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Any, Any, Array]:
    grams, places = kept
    # A product rather than a scatter: a batch may name a sample twice, and scatters are slow on CPUs.
    chosen = (places[..., None] == jnp.arange(grams.shape[2])).astype(gradient.dtype)
    return None, None, jax.lax.dot_general(chosen, gradient, (((1,), (1,)), ((0,), (0,))))


_moved.defvjp(_forward, _backward)


def _rows(table: Array, places: Array) -> Array:
    return jnp.take_along_axis(table, places[..., None], axis=1, mode="clip")
