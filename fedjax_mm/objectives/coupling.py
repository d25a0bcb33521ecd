"""Solvers of entropic Gromov–Wasserstein problems: from costs to a coupling."""

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_mm.objectives.elimination import solve_definite

Array = jax.Array
FAR = -1e30
"""Log of nothing: so low that its exponential is 0, and finite, so that differences of it are no NaN."""
LOOSE = 10
"""Marginals this many times worse than the tolerance do for the next linearisation."""


class Solution(NamedTuple):
    """A coupling and how it was reached.

    Attributes:
        coupling: `[N, N]`, at least 0, 0 where masked.
        f: Row potentials over ε, `[N]`.
        g: Column potentials over ε, `[N]`.
        converged: Whether marginals and coupling met the tolerance, bool.
    """

    coupling: Array
    f: Array
    g: Array
    converged: Array


class Solver(Protocol):
    """Finds a stationary coupling of one problem; pure, and `vmap`able."""

    def __call__(self, cost_x: Array, cost_y: Array, mask: Array, epsilon: Array | float, start: Solution) -> Solution:
        """Minimises Σ (Cx_ik - Cy_jl)^2 T_ij T_kl + ε Σ T log T from a start.

        Args:
            cost_x: `[N, N]`, symmetric, 0 where masked.
            cost_y: `[N, N]`, likewise.
            mask: Bool `[N]`; both marginals are uniform over it.
            epsilon: Above 0.
            start: Where to start.

        Returns:
            The solution.
        """
        ...


def dot(a: Array, b: Array) -> Array:
    """Matrix product in full precision; less, the default of some accelerators, stalls or biases transport problems."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def uniform(mask: Array, dtype: jnp.dtype) -> Array:
    """Equal weights of the unmasked entries of `[N]`, that sum to 1; 0 where masked."""
    return mask.astype(dtype) / jnp.maximum(jnp.sum(mask), 1).astype(dtype)


def starts(mask: Array, dtype: jnp.dtype) -> Solution:
    """The two starts, leaves `[2, ...]`: p qᵀ, and 0.9 identity + 0.1 p qᵀ."""
    weights = uniform(mask, dtype)
    product = weights[:, None] * weights[None, :]
    zeros = jnp.zeros((2, mask.shape[0]), dtype)
    return Solution(jnp.stack([product, 0.9 * jnp.diag(weights) + 0.1 * product]), zeros, zeros, jnp.zeros(2, bool))


@dataclasses.dataclass(frozen=True)
class Sinkhorn:
    """Projected mirror descent (Peyré et al. 2016) over Sinkhorn iterations in the log domain.

    A step is `inner` Sinkhorn iterations and one Newton step, from the potentials of the step before. Whenever the
    marginals are nearly right, the quadratic cost is linearised anew; with squared Euclidean costs it is concave over
    couplings, so that the objective then falls. The Newton step is for couplings that are nearly permutations, as at a
    small ε, where Sinkhorn iterations alone crawl. All is done in the dtype of the costs; a problem stops when it is
    done, whatever others in the same batch need.

    Attributes:
        outer: Most steps.
        inner: Sinkhorn iterations a step.
        tolerance: Largest sum of absolute errors of both marginals, and of absolute differences between a coupling and
            the one it was linearised around. None is a third of the square root of the dtype's precision: 1e-4 in
            float32, which may never get below about 1e-5, and 5e-9 in float64.
    """

    outer: int = 100
    inner: int = 5
    tolerance: float | None = None

    def __call__(self, cost_x: Array, cost_y: Array, mask: Array, epsilon: Array | float, start: Solution) -> Solution:
        """See `Solver`."""
        epsilon = jnp.asarray(epsilon, cost_x.dtype)
        tolerance = self.tolerance or float(jnp.finfo(cost_x.dtype).eps) ** 0.5 / 3
        (inner_x, mean_x), (inner_y, mean_y) = _centred(cost_x, mask), _centred(cost_y, mask)

        def advance(carry: tuple[Array, Array, Solution]) -> tuple[Array, Array, Solution]:
            count, around, last = carry
            # The gradient, but for terms of one index: potentials absorb them, and over ε they would eat the digits.
            cross = dot(dot(inner_x, around), inner_y) + mean_x[:, None] * mean_y[None, :]
            plan = _Plan(4 * cross / epsilon, mask)
            g = jax.lax.fori_loop(0, self.inner, lambda _, g: plan.columns(plan.rows(g)), last.g)
            f, g, coupling, error = plan.newton(g)
            change = jnp.sum(jnp.abs(coupling - around))
            # Not a number is not small.
            solution = Solution(coupling, f, g, jnp.maximum(error, change) <= tolerance)
            return count + 1, jnp.where(error <= LOOSE * tolerance, coupling, around), solution

        def unfinished(carry: tuple[Array, Array, Solution]) -> Array:
            return (carry[0] < self.outer) & ~carry[2].converged

        first = start._replace(converged=jnp.zeros((), bool))
        return jax.lax.while_loop(unfinished, advance, (jnp.zeros((), jnp.int32), start.coupling, first))[2]


def _centred(cost: Array, mask: Array) -> tuple[Array, Array]:
    """A cost without its means over rows and columns, and the means of its rows less their mean; 0 where masked."""
    weights = uniform(mask, cost.dtype)
    rows = dot(cost, weights)
    mean = jnp.sum(weights * rows)
    pair = mask[:, None] & mask[None, :]
    return jnp.where(pair, cost - rows[:, None] - rows[None, :] + mean, 0), jnp.where(mask, rows - mean, 0)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Couplings exp(kernel + f + g) of uniform marginals; each method sees to one of the two."""

    kernel: Array
    mask: Array

    @property
    def marginal(self) -> Array:
        return uniform(self.mask, self.kernel.dtype)

    def rows(self, g: Array) -> Array:
        return self._fit(self.kernel + g[None, :], 1)

    def columns(self, f: Array) -> Array:
        return self._fit(self.kernel + f[:, None], 0)

    def _fit(self, exponent: Array, axis: int) -> Array:
        pair = self.mask[:, None] & self.mask[None, :]
        total = jax.nn.logsumexp(jnp.where(pair, exponent, FAR), axis=axis)
        return jnp.where(self.mask, jnp.log(jnp.where(self.mask, self.marginal, 1)) - total, 0)

    def reach(self, g: Array) -> tuple[Array, Array, Array, Array]:
        """Potentials with right rows, their coupling, and the error of its marginals."""
        f = self.rows(g)
        pair = self.mask[:, None] & self.mask[None, :]
        coupling = jnp.where(pair, jnp.exp(jnp.where(pair, self.kernel + f[:, None] + g[None, :], FAR)), 0)
        errors = jnp.abs(jnp.stack([jnp.sum(coupling, axis=0), jnp.sum(coupling, axis=1)]) - self.marginal)
        return f, g, coupling, jnp.sum(errors)

    def newton(self, g: Array) -> tuple[Array, Array, Array, Array]:
        """The same after one Newton step of the dual problem, unless that is no better."""
        before = self.reach(g)
        coupling, marginal = before[2], self.marginal
        columns = jnp.sum(coupling, axis=0)
        # With right rows, the Hessian in g alone is diag(c) - Tᵀ diag(1/p) T. Its null space are the constants, which
        # change nothing: p pᵀ makes it regular.
        own = jnp.diag(jnp.where(self.mask, columns, 1)) + marginal[:, None] * marginal[None, :]
        hessian = own - dot(coupling.T, coupling) * jnp.sum(self.mask).astype(coupling.dtype)
        after = self.reach(g + solve_definite(hessian, marginal - columns))
        # A step that is not finite is not better.
        return jax.tree.map(lambda new, old: jnp.where(after[3] < before[3], new, old), after, before)
