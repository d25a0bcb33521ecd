"""Solvers of entropic Gromov–Wasserstein problems: POT as the oracle, honest flags, and independence within a batch."""

import bisect
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest

from fedjax_mm.objectives.coupling import Sinkhorn, starts
from fedjax_mm.objectives.ott_solver import OTT

N = 30
BOTH = [Sinkhorn(), pytest.param(OTT(), marks=pytest.mark.slow)]


def name(value):
    return type(value).__name__


def costs(points):
    cost = np.square(points[:, None] - points[None]).sum(axis=-1)
    n = len(points)
    return cost * (n * (n - 1)) / cost.sum() if cost.any() else cost


def pad(cost, size=N):
    wide = np.zeros((size, size), cost.dtype)
    wide[: len(cost), : len(cost)] = cost
    return wide


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def problem(x, y, size=N, dtype=np.float32):
    return pad(costs(x), size).astype(dtype), pad(costs(y), size).astype(dtype), np.arange(size) < len(x)


def solved(solver):
    """From both starts."""

    def run(cost_x, cost_y, mask, epsilon):
        return jax.vmap(lambda start: solver(cost_x, cost_y, mask, epsilon, start))(starts(mask, cost_x.dtype))

    return run


def quadratic(cost_x, cost_y, coupling):
    gaps = np.square(cost_x[:, None, :, None] - cost_y[None, :, None, :])
    return np.einsum("ijkl,ij,kl->", gaps, coupling, coupling, optimize=True)


def objective(cost_x, cost_y, coupling, epsilon):
    t = np.asarray(coupling, float)
    return quadratic(cost_x, cost_y, t) + epsilon * np.sum(t * np.log(np.where(t > 0, t, 1)))


def marginal_error(coupling, mask):
    p = mask / max(mask.sum(), 1)
    coupling = np.asarray(coupling, float)
    return np.abs(coupling.sum(0) - p).sum() + np.abs(coupling.sum(1) - p).sum()


def test_starts_of_two_points_of_three():
    begin = starts(jnp.asarray([True, False, True]), jnp.float32)
    np.testing.assert_array_equal(begin.coupling[0], [[0.25, 0, 0.25], [0, 0, 0], [0.25, 0, 0.25]])
    near = [[0.475, 0, 0.025], [0, 0, 0], [0.025, 0, 0.475]]
    np.testing.assert_allclose(begin.coupling[1], near, rtol=1e-6)
    np.testing.assert_array_equal(begin.f, 0)
    np.testing.assert_array_equal(begin.g, 0)
    assert not begin.converged.any()
    np.testing.assert_array_equal(starts(jnp.zeros(3, bool), jnp.float32).coupling, 0)


@functools.cache
def by_pot(n, epsilon):
    cost_x, cost_y, _ = problem(normal(n, n, 3), normal(n + 1, n, 4), n, float)
    options = {"max_iter": 300, "tol": 1e-9, "numItermax": 1000, "stopThr": 1e-10}
    return ot.gromov.entropic_gromov_wasserstein(cost_x, cost_y, loss_fun="square_loss", epsilon=epsilon, **options)


@pytest.mark.parametrize(
    "solver", [Sinkhorn(500, 50, 1e-9), pytest.param(OTT(100, 2000, 1e-7), marks=pytest.mark.slow)], ids=name
)
def test_couplings_and_costs_are_those_of_pot(solver):
    with jax.enable_x64(True):
        run = jax.jit(solved(solver))
        for n, epsilon in [(5, 0.5), (10, 0.2), (20, 0.3), (30, 0.2), (30, 0.15)]:
            cost_x, cost_y, mask = problem(normal(n, n, 3), normal(n + 1, n, 4), dtype=np.float64)
            cut = cost_x[:n, :n], cost_y[:n, :n]
            expected = by_pot(n, epsilon)
            assert np.abs(expected.sum(axis=0) - 1 / n).sum() < 1e-5
            coupling = np.asarray(run(cost_x, cost_y, mask, epsilon).coupling[0])
            np.testing.assert_array_equal(coupling[~(mask[:, None] & mask)], 0)
            coupling = coupling[:n, :n]
            np.testing.assert_allclose(coupling, expected, atol=1e-3 * expected.max())
            np.testing.assert_allclose(quadratic(*cut, coupling), quadratic(*cut, expected), rtol=1e-3)


def spaces(n):
    x = normal(n, n, 3)
    yield x, x
    yield x, x + 1e-4 * normal(n + 1, n, 3)
    yield np.eye(n), np.eye(n)
    yield np.arange(float(n))[:, None], np.arange(float(n))[:, None]
    yield np.repeat(x, 2, axis=0)[:n], np.repeat(x, 2, axis=0)[:n]


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_on_the_same_space_the_better_coupling_is_no_worse_than_the_identity(solver):
    sizes = (2, 3, 5, 10, 20, 30) if isinstance(solver, Sinkhorn) else (2, 5, 30)
    run = jax.jit(lambda *problems: jax.lax.map(lambda p: solved(solver)(*p), problems))
    cases = [(n, x, y, epsilon) for n in sizes for x, y in spaces(n) for epsilon in (0.02, 0.01)]
    problems = [(*problem(x, y), np.float32(epsilon)) for _, x, y, epsilon in cases]
    solutions = run(*(np.stack(parts) for parts in zip(*problems, strict=True)))
    flags = np.asarray(solutions.converged)
    for index, (n, _, _, epsilon) in enumerate(cases):
        cost_x, cost_y, mask, _ = problems[index]
        cut = cost_x[:n, :n].astype(float), cost_y[:n, :n].astype(float)
        couplings = np.asarray(solutions.coupling[index])[:, :n, :n]
        assert min(objective(*cut, coupling, epsilon) for coupling in couplings) < -epsilon * np.log(n) + 1e-4
        for coupling, flag in zip(solutions.coupling[index], flags[index], strict=True):
            assert not flag or marginal_error(coupling, mask) < 1.01 * (solver.tolerance or 1.2e-4)
    assert flags.mean() > 0.9


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_equal_costs_of_zero_are_solved_by_the_product(solver):
    mask = np.arange(5) < 3
    solution = jax.jit(solved(solver))(*(jnp.zeros((2, 5, 5))), mask, 0.02)
    np.testing.assert_allclose(solution.coupling, np.broadcast_to(np.outer(mask, mask) / 9, (2, 5, 5)), atol=1e-6)
    assert solution.converged.all()


@pytest.mark.parametrize("solver", BOTH, ids=name)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_cost_that_is_not_finite_never_converges(solver, bad):
    cost_x, cost_y, mask = problem(normal(0, 4, 2), normal(1, 4, 2), 5)
    cost_x[1, 2] = cost_x[2, 1] = bad
    assert not jax.jit(solved(solver))(cost_x, cost_y, mask, 0.02).converged.any()


@pytest.mark.parametrize("solver", [Sinkhorn(1, 1), OTT(3, 10, 1e-4)], ids=name)
def test_too_few_iterations_are_flagged(solver):
    solution = jax.jit(solved(solver))(*problem(normal(0, 9, 2), normal(1, 9, 2), 10), 0.01)
    assert not solution.converged.any()
    assert np.isfinite(solution.coupling).all()


def test_the_flag_says_that_marginals_and_stationarity_are_right_to_the_tolerance():
    cost_x, cost_y, mask = problem(normal(0, 6, 2), normal(1, 6, 2), 6)
    solution = jax.jit(solved(Sinkhorn()))(cost_x, cost_y, mask, 0.2)
    assert solution.converged.all()
    for coupling in np.asarray(solution.coupling, float):
        assert marginal_error(coupling, mask) < 1.01e-4
        kernel = np.exp(4 * cost_x.astype(float) @ coupling @ cost_y.astype(float) / 0.2)
        v = np.ones(6)
        for _ in range(5000):
            u = 1 / 6 / (kernel @ v)
            v = 1 / 6 / (kernel.T @ u)
        assert np.abs(u[:, None] * kernel * v - coupling).sum() < 3e-4


def test_the_last_step_allowed_counts_and_more_of_them_change_nothing():
    cost_x, cost_y, mask = problem(normal(0, 5, 2), normal(1, 5, 2), 5)

    begin = jax.tree.map(lambda leaf: leaf[0], starts(jnp.asarray(mask), jnp.float32))

    @functools.cache
    def run(outer):
        return jax.jit(Sinkhorn(outer))(cost_x, cost_y, mask, 0.5, begin)

    steps = bisect.bisect_left(range(64), True, key=lambda outer: bool(run(outer).converged))
    assert 2 < steps < 64
    assert not run(steps - 1).converged
    assert run(steps).converged
    np.testing.assert_array_equal(run(steps).coupling, run(steps + 50).coupling)


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_float32_stays_float32_where_float64_is_allowed(solver):
    with jax.enable_x64(True):
        epsilon = jnp.asarray(0.1, jnp.float64)
        solution = jax.jit(solved(solver))(*problem(normal(0, 4, 2), normal(1, 4, 2), 5), epsilon)
    assert {leaf.dtype.name for leaf in solution[:3]} == {"float32"}


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_a_batch_of_mixed_difficulty_is_solved_as_its_problems_alone(solver):
    sizes = itertools.product((2, 4, 7, 10), (0.3, 0.05))
    with jax.enable_x64(True):
        problems = [(*problem(normal(n, n, 2), normal(n + 1, n, 3), 10, float), epsilon) for n, epsilon in sizes]
        batch = [np.stack(parts) for parts in zip(*problems, strict=True)]
        together, alone = jax.jit(jax.vmap(solved(solver))), jax.jit(solved(solver))
        solutions = together(*batch)
        for index, one in enumerate(problems):
            np.testing.assert_allclose(solutions.coupling[index], alone(*one).coupling, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_what_else_is_in_a_batch_changes_no_bit(solver):
    together = jax.jit(jax.vmap(solved(solver)))
    mine, easy, hard = (problem(normal(n, n, 2), normal(n + 1, n, 3), 10) for n in (7, 2, 10))
    broken = (np.full_like(mine[0], np.nan), *mine[1:])
    batches = [
        together(*(np.stack(parts) for parts in zip(mine, *others, strict=True)), np.float32([0.05, *epsilon]))
        for others, epsilon in [((easy, easy), (1, 1)), ((hard, broken), (0.01, 0.02))]
    ]
    np.testing.assert_array_equal(batches[0].coupling[0], batches[1].coupling[0])
    np.testing.assert_array_equal(batches[0].converged[0], batches[1].converged[0])


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_another_epsilon_does_not_recompile_and_is_used(solver):
    traces = []

    @jax.jit
    def run(epsilon):
        traces.append(1)
        return solved(solver)(cost_x, cost_y, mask, epsilon).coupling[0]

    cost_x, cost_y, mask = problem(normal(0, 4, 2), normal(1, 4, 2), 5)
    sharp, blurred = run(0.05), run(1.0)
    assert len(traces) == 1
    entropy = [-np.sum(np.where(t > 0, t * np.log(np.where(t > 0, t, 1)), 0)) for t in np.asarray([sharp, blurred])]
    assert entropy[1] > entropy[0] + 0.1
