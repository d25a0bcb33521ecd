"""Entropic Gromov–Wasserstein alignment of class prototypes with logit prototypes (MFedPBA, Eq. 11).

The coupling comes from a solver (`fedjax_mm.objectives.coupling`) under a stop-gradient; the objective is computed from
it here. At a stationary coupling the gradient is then exact by the envelope theorem, and no solver has to be
differentiable.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_mm.errors import choose
from fedjax_mm.objectives.coupling import Solution, Solver, dot, starts

Array = jax.Array
COST_SCALES = ("mean", "max", "none")
TIE = 2e-3
"""Objectives that differ by less than this times ε are equal."""


class Alignment(NamedTuple):
    """How well the classes' geometry agrees between two spaces; of several problems, with leading axes.

    Attributes:
        value: Σ (Cx_ik - Cy_jl)^2 T_ij T_kl + ε Σ T_ij log T_ij, floating `[]`; 0 with fewer than two classes.
        quadratic: Its first part, at least 0 but for rounding.
        solution: Both solutions it was chosen from (begun at p qᵀ and near the identity), leaves `[2, ...]`.
        converged: Whether the chosen one met the solver's tolerance and the value is finite, bool `[]`; true with fewer
            than two classes.
    """

    value: Array
    quadratic: Array
    solution: Solution
    converged: Array


def scaled_cost(points: Array, mask: Array, *, scale: str = "mean") -> Array:
    """Squared Euclidean distances between valid points, relative to their size.

    Args:
        points: `[N, d]`; may be anything where masked.
        mask: Bool `[N]`.
        scale: What the distances are divided by: their `mean` or `max` over pairs of different valid points, or `none`.
            Where that is 0, or there is no pair, nothing.

    Returns:
        `[N, N]`, at least 0, 0 on the diagonal and where a point is masked.
    """
    choose("cost_scale", scale, COST_SCALES)
    safe = jnp.where(mask[:, None], points, 0)
    pair = mask[:, None] & mask[None, :]
    if scale != "none":
        # Relative distances do not care about the unit. Without this, those of tiny points would underflow.
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(safe), initial=0))
        safe = safe / jnp.where(largest > 0, largest, 1)
    cost = jnp.where(pair, jnp.sum(jnp.square(safe[:, None, :] - safe[None, :, :]), axis=-1), 0)
    if scale == "none":
        return cost
    n = jnp.sum(mask)
    pairs = jnp.maximum(n * (n - 1), 1).astype(cost.dtype)
    size = jnp.sum(cost) / pairs if scale == "mean" else jnp.max(cost, initial=0)
    return cost / jnp.where(size > 0, size, 1)


def quadratic_cost(cost_x: Array, cost_y: Array, coupling: Array) -> Array:
    """Σ_ijkl (Cx_ik - Cy_jl)^2 T_ij T_kl, in O(N^3).

    Args:
        cost_x: `[N, N]`.
        cost_y: `[N, N]`.
        coupling: `[N, N]`, at least 0; whatever its marginals are.

    Returns:
        Scalar, at least 0 but for rounding.
    """
    rows, columns = jnp.sum(coupling, axis=1), jnp.sum(coupling, axis=0)
    cross = dot(dot(cost_x, coupling), cost_y.T)
    own = dot(rows, dot(jnp.square(cost_x), rows)) + dot(columns, dot(jnp.square(cost_y), columns))
    return own - 2 * jnp.sum(cross * coupling)


def negative_entropy(coupling: Array) -> Array:
    """Σ T log T, 0 log 0 = 0; a scalar."""
    return jnp.sum(coupling * jnp.log(jnp.where(coupling > 0, coupling, 1)))


def gromov_wasserstein(
    cost_x: Array, cost_y: Array, mask: Array, epsilon: Array | float, solver: Solver, start: Solution | None = None
) -> Alignment:
    """The entropic Gromov–Wasserstein discrepancy of two spaces over the same points, uniformly weighted.

    MFedPBA, Eq. 11, with the sign of its last line: min_T Σ (Cx_ik - Cy_jl)^2 T_ij T_kl + ε Σ T_ij log T_ij over
    couplings of p = q = 1/n. It is solved from p qᵀ and from 0.9 identity + 0.1 p qᵀ, and the lower objective is kept:
    p qᵀ is stationary when all points are equidistant. `epsilon` is POT's, twice OTT's. The problem is not convex: a
    coupling is a local minimum, and Gromov–Wasserstein of a space with itself is not 0 at a blurring ε.

    Args:
        cost_x: Distances in the first space, `[N, N]`, symmetric; may be anything where masked.
        cost_y: Distances in the second.
        mask: Bool `[N]`, the points that exist.
        epsilon: Weight of the entropy, above 0, on the scale of the squared costs.
        solver: How couplings are found.
        start: Earlier solutions to start from, leaves `[2, ...]`. One that is not finite or of other points gives way
            to the start above, as all do by default.

    Returns:
        The alignment. Gradients reach the costs (not `epsilon`), through the objective at a fixed coupling.
    """
    pair = mask[:, None] & mask[None, :]
    cost_x, cost_y = jnp.where(pair, cost_x, 0), jnp.where(pair, cost_y, 0)
    frozen = jax.lax.stop_gradient((cost_x, cost_y))
    epsilon = jnp.asarray(epsilon, cost_x.dtype)
    begin = starts(mask, cost_x.dtype)
    if start is not None:
        begin = _usable(start, begin, mask)
    solutions = jax.lax.stop_gradient(jax.vmap(lambda s: solver(*frozen, mask, epsilon, s))(begin))

    def objective(coupling: Array) -> Array:
        return quadratic_cost(*frozen, coupling) + epsilon * negative_entropy(coupling)

    values = jax.vmap(objective)(solutions.coupling)
    values = jnp.where(jnp.isfinite(values), values, jnp.inf)
    # Both starts often end in one coupling, up to the tolerance: rounding must not decide which of them is taken.
    best = jnp.where(values[1] < values[0] - TIE * epsilon, 1, 0)
    coupling = solutions.coupling[best]
    enough = jnp.sum(mask) >= 2
    quadratic = jnp.where(enough, quadratic_cost(cost_x, cost_y, coupling), 0)
    value = quadratic + jnp.where(enough, jax.lax.stop_gradient(epsilon * negative_entropy(coupling)), 0)
    converged = (solutions.converged[best] & jnp.isfinite(value)) | ~enough
    return Alignment(value, quadratic, solutions, converged)


def align_geometry(
    prototypes: Array,
    logits: Array,
    both: Array,
    epsilon: Array | float,
    solver: Solver,
    start: Solution | None = None,
    *,
    scale: str = "mean",
) -> Alignment:
    """Alignment of each modality's class prototypes with the logit prototypes (MFedPBA, Eq. 11 is the sum of values).

    Args:
        prototypes: Global feature prototypes `[M, C, d]`; may be anything where not in both.
        logits: Global logit prototypes `[C, J]`; likewise.
        both: Bool `[M, C]`, classes valid in both spaces; fewer than two: 0.
        epsilon: As in `gromov_wasserstein`, on the scale of the scaled costs.
        solver: How couplings are found.
        start: Earlier solutions of the same problems, leaves `[M, 2, ...]`.
        scale: As in `scaled_cost`.

    Returns:
        The alignments, leaves `[M, ...]`.
    """

    def one(points: Array, mask: Array, begin: Solution | None) -> Alignment:
        cost_x, cost_y = scaled_cost(logits, mask, scale=scale), scaled_cost(points, mask, scale=scale)
        return gromov_wasserstein(cost_x, cost_y, mask, epsilon, solver, begin)

    return jax.vmap(one, in_axes=(0, 0, None if start is None else 0))(prototypes, both, start)


def _usable(start: Solution, default: Solution, mask: Array) -> Solution:
    rows = jnp.sum(start.coupling, axis=2)
    fits = jnp.isfinite(rows) & jnp.isfinite(start.f) & jnp.isfinite(start.g) & ((rows > 0) == mask)
    fits = jnp.all(fits, axis=1)
    return jax.tree.map(
        lambda own, other: jnp.where(fits.reshape((-1,) + (1,) * (own.ndim - 1)), own, other), start, default
    )
