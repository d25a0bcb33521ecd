"""OTT-JAX's Gromov–Wasserstein solver behind the contract of `coupling.Solver`."""

import dataclasses

import jax
import jax.numpy as jnp
from ott.geometry import geometry
from ott.initializers.quadratic.initializers import QuadraticInitializer
from ott.problems.quadratic.quadratic_problem import QuadraticProblem
from ott.solvers.linear.sinkhorn import Sinkhorn
from ott.solvers.quadratic.gromov_wasserstein import GromovWasserstein

from fedjax_mm.objectives.coupling import Solution, uniform

Array = jax.Array
EPSILON = 1.0
"""The ε that OTT sees. OTT keeps it as structure, not as a number: costs are rescaled instead, so that nothing
recompiles when ε changes."""


@dataclasses.dataclass(frozen=True)
class OTT:
    """`GromovWasserstein` over log-domain `Sinkhorn`, warm-started from one linearisation to the next.

    OTT linearises half of the quadratic cost, so its `epsilon` is half of MFedPBA's and POT's. Nothing of what would
    leak padding is used (relative epsilon, `scale_cost`), and none of its costs: in float32 they can be nonsense while
    `converged` is true.

    Attributes:
        outer: Most linearisations.
        inner: Most Sinkhorn iterations per linearisation.
        tolerance: Largest sum of absolute errors of both marginals, and largest relative change of the cost between
            linearisations.
    """

    outer: int = 50
    inner: int = 2000
    tolerance: float = 1e-3

    def __call__(self, cost_x: Array, cost_y: Array, mask: Array, epsilon: Array | float, start: Solution) -> Solution:
        """See `Solver`; the potentials of a start are not used, nor are there any in the solution."""
        weights = uniform(mask, cost_x.dtype)
        # The objective is homogeneous: costs times s, ε times s^2.
        unit = jnp.sqrt(2 * EPSILON / jnp.asarray(epsilon, cost_x.dtype))
        problem = QuadraticProblem(
            geometry.Geometry(cost_matrix=cost_x * unit),
            geometry.Geometry(cost_matrix=cost_y * unit),
            a=weights,
            b=weights,
        )
        solver = GromovWasserstein(
            linear_solver=Sinkhorn(lse_mode=True, threshold=self.tolerance, max_iterations=self.inner),
            epsilon=EPSILON,
            initializer=QuadraticInitializer(start.coupling),
            warm_start=True,
            threshold=self.tolerance,
            max_iterations=self.outer,
        )
        result = solver(problem)
        assert result.linear_state is not None
        # Not `result.matrix`: that is rescaled by a ratio of masses, for unbalanced problems.
        coupling = jnp.where(mask[:, None] & mask[None, :], result.linear_state.matrix, 0).astype(cost_x.dtype)
        errors = jnp.stack([jnp.sum(coupling, axis=0), jnp.sum(coupling, axis=1)]) - weights
        # OTT's own flag says nothing of the marginals it left, and is not to be trusted where something is not finite.
        close = jnp.sum(jnp.abs(errors)) <= self.tolerance
        zeros = jnp.zeros_like(start.f)
        return Solution(coupling, zeros, zeros, result.converged & close)
