"""Which operations make a device of a CPU wait for XLA's threads.

XLA runs a device's work on the threads of one pool. The batched routines of LAPACK divide their batch among the threads
of that same pool and wait until all parts are done, on a thread of the pool. With no more threads than devices, every
thread may come to wait for parts that none is left to take: the program stands still for ever.
"""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

WAITING = frozenset(
    {"cholesky", "cholesky_update", "eig", "eigh", "fft", "geqp3", "geqrf", "hessenberg", "householder_product", "lu"}
    | {"ormqr", "qr", "schur", "svd", "sylvester", "triangular_solve", "tridiagonal", "tridiagonal_solve"}
)
"""JAX primitives that become calls of LAPACK, or of another library that divides its work among the pool's threads."""


def traced(function: Any, *arguments: Any) -> tuple[frozenset[str], Any]:
    """Traces a function on shapes alone.

    Args:
        function: The function.
        *arguments: Arrays or shapes.

    Returns:
        The primitives in `WAITING` that it calls, and the shapes of its result.
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return frozenset(_primitives(program.jaxpr)) & WAITING, shapes


def _primitives(program: Jaxpr) -> Iterator[str]:
    for equation in program.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if isinstance(inner, ClosedJaxpr):
                yield from _primitives(inner.jaxpr)
            elif isinstance(inner, Jaxpr):
                yield from _primitives(inner)


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)
