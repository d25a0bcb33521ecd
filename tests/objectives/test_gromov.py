"""Gromov–Wasserstein alignment: loops and finite differences as oracles, invariances, masks and degenerate spaces."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.objectives.coupling import Sinkhorn, starts
from fedjax_mm.objectives.gromov import (
    align_geometry,
    gromov_wasserstein,
    negative_entropy,
    quadratic_cost,
    scaled_cost,
)
from fedjax_mm.objectives.ott_solver import OTT

BOTH = [Sinkhorn(), pytest.param(OTT(), marks=pytest.mark.slow)]


def name(value):
    return type(value).__name__


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def aligned(solver, epsilon=0.1, scale="mean"):
    """Alignment of one modality, and its gradient to prototypes and logits."""

    def value(points, logits, mask):
        result = align_geometry(points[None], logits, mask[None], epsilon, solver, scale=scale)
        result = jax.tree.map(lambda leaf: leaf[0], result)
        return result.value, result

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1), has_aux=True))


def test_scaled_cost_of_0_3_and_1_on_a_line():
    points, mask = jnp.asarray([[0.0], [3.0], [jnp.nan], [1.0]]), jnp.asarray([True, True, False, True])
    plain = np.asarray([[0, 9, 0, 1], [9, 0, 0, 4], [0, 0, 0, 0], [1, 4, 0, 0]])
    np.testing.assert_array_equal(scaled_cost(points, mask, scale="none"), plain)
    np.testing.assert_allclose(scaled_cost(points, mask, scale="max"), plain / 9, rtol=1e-6)
    np.testing.assert_allclose(scaled_cost(points, mask), plain / (28 / 6), rtol=1e-6)


@pytest.mark.parametrize("scale", ["mean", "max"])
def test_scaled_cost_has_no_unit(scale):
    points, mask = normal(0, 5, 3), np.arange(5) < 4
    expected = scaled_cost(points, mask, scale=scale)
    for factor in (10, 0.1, 1e-6, 1e6, 1e-30, 1e30):
        np.testing.assert_allclose(scaled_cost(points * np.float32(factor), mask, scale=scale), expected, rtol=1e-5)


def test_an_unknown_scale_is_told():
    with pytest.raises(UsageError, match="cost_scale 'median'"):
        scaled_cost(jnp.zeros((2, 1)), jnp.ones(2, bool), scale="median")


def test_quadratic_cost_and_entropy_equal_loops_over_any_coupling():
    rng = np.random.default_rng(1)
    cost_x, cost_y, coupling = rng.random((4, 4)), rng.random((4, 4)), rng.random((4, 4))
    cost_x, cost_y = cost_x + cost_x.T, cost_y + cost_y.T
    coupling[1, 2] = coupling[3, 3] = 0
    expected, places = 0.0, range(4)
    for i in places:
        for j in places:
            for k in places:
                for l in places:
                    expected += (cost_x[i, k] - cost_y[j, l]) ** 2 * coupling[i, j] * coupling[k, l]
    entropy = sum(t * np.log(t) for t in coupling.ravel() if t > 0)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(array) for array in (cost_x, cost_y, coupling)]
        np.testing.assert_allclose(quadratic_cost(*arrays), expected, rtol=1e-12)
        np.testing.assert_allclose(negative_entropy(arrays[2]), entropy, rtol=1e-12)


def test_the_discrepancy_of_a_space_from_itself_is_not_negative():
    x, mask = normal(2, 8, 3), np.ones(8, bool)
    _, result = aligned(Sinkhorn(), 0.01)(x, x, mask)[0]
    assert -1e-5 < result.quadratic < 1e-3
    assert result.converged


def plain_cost(points, scale):
    cost = np.square(points[:, None] - points[None]).sum(axis=-1)
    n = len(points)
    return cost / {"mean": cost.sum() / (n * (n - 1)), "max": cost.max(), "none": 1.0}[scale]


@pytest.mark.parametrize("scale", ["mean", "max", "none"])
def test_gradient_equals_finite_differences_of_the_objective_with_the_coupling_solved_again(scale):
    solver, epsilon = Sinkhorn(2000, 20, 1e-11), {"mean": 0.2, "max": 0.05, "none": 5.0}[scale]
    points, logits = np.random.default_rng(3).normal(size=(5, 2)), np.random.default_rng(4).normal(size=(5, 3))
    with jax.enable_x64(True):
        mask = jnp.ones(5, bool)
        (value, result), gradients = aligned(solver, epsilon, scale)(points, logits, mask)
        assert result.converged
        couplings = jax.vmap(negative_entropy)(result.solution.coupling), result.solution.coupling
        costs = jnp.asarray(plain_cost(logits, scale)), jnp.asarray(plain_cost(points, scale))
        objectives = [quadratic_cost(*costs, t) + epsilon * entropy for entropy, t in zip(*couplings, strict=True)]
        np.testing.assert_allclose(value, min(objectives), rtol=1e-12)
        begin = jax.tree.map(lambda leaf: leaf[int(np.argmin(objectives))], result.solution)
        solve = jax.jit(lambda cost_x, cost_y: solver(cost_x, cost_y, mask, epsilon, begin))

        def objective(points, logits):
            cost_x, cost_y = plain_cost(logits, scale), plain_cost(points, scale)
            t = np.asarray(solve(cost_x, cost_y).coupling)
            gaps = np.square(cost_x[:, None, :, None] - cost_y[None, :, None, :])
            return np.einsum("ijkl,ij,kl->", gaps, t, t) + epsilon * np.sum(t * np.log(t))

        for which, gradient in enumerate(gradients):
            numeric = np.zeros(gradient.shape)
            for place in np.ndindex(gradient.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = [points.copy(), logits.copy()]
                    moved[which][place] += step
                    ends.append(objective(*moved))
                numeric[place] = (ends[0] - ends[1]) / 2e-5
            assert np.abs(numeric).max() > 0.01
            np.testing.assert_allclose(gradient, numeric, atol=1e-5 * np.abs(numeric).max())


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_padding_of_any_kind_changes_nothing_and_gets_no_gradient(solver):
    run = aligned(solver)
    points, logits, mask = normal(5, 4, 3), normal(6, 4, 5), np.arange(6) < 4
    (expected, _), gradients = run(points, logits, np.ones(4, bool))
    for filler in (0, 1e3, np.nan):
        wide = [np.concatenate([array, np.full_like(array[:2], filler)]) for array in (points, logits)]
        (value, result), padded = run(*wide, mask)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_array_equal(result.solution.coupling[:, ~(mask[:, None] & mask)], 0)
        for gradient, own in zip(padded, gradients, strict=True):
            np.testing.assert_array_equal(gradient[4:], 0)
            np.testing.assert_allclose(gradient[:4], own, atol=1e-4 * np.abs(own).max())


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_value_knows_neither_order_nor_rotation_nor_shift_nor_which_space_is_first(solver):
    run = aligned(solver)
    points, logits, mask = normal(7, 6, 3), normal(8, 6, 3), np.arange(6) != 2
    (expected, _), (gradient, _) = run(points, logits, mask)
    order = np.random.default_rng(9).permutation(6)
    (value, _), (permuted, _) = run(points[order], logits[order], mask[order])
    # Cost and entropy, ten times as large, nearly cancel.
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(permuted, gradient[order], atol=1e-3 * np.abs(gradient).max())
    rotation = np.linalg.qr(normal(10, 3, 3))[0]
    (value, _), _ = run(points @ rotation + np.float32([1, -2, 0.5]), logits, mask)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    (value, _), _ = run(logits, points, mask)
    np.testing.assert_allclose(value, expected, rtol=2e-3)


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_few_and_coincident_classes_of_any_size_have_finite_values_and_gradients(solver):
    run = aligned(solver, 0.02)
    points, logits = normal(11, 5, 3), normal(12, 5, 4)
    twice = points.copy()
    twice[1] = twice[0]
    spaces = (points, twice, np.full_like(points, 0.3), np.zeros_like(points))
    for factor, prototypes in itertools.product((1, 10, 0.1, 1e-6, 1e6), spaces):
        for classes in (0, 1, 2, 5):
            (value, result), gradients = run(prototypes * np.float32(factor), logits, np.arange(5) < classes)
            assert np.isfinite(value)
            assert np.isfinite(result.quadratic)
            assert all(np.isfinite(gradient).all() for gradient in gradients)
            if classes < 2:
                assert value == 0
                assert result.converged
                assert not any(np.any(gradient) for gradient in gradients)


def test_two_classes_are_aligned_perfectly_in_relative_distances():
    _, result = aligned(Sinkhorn(), 0.01)(normal(13, 2, 3), normal(14, 2, 3), np.ones(2, bool))[0]
    np.testing.assert_allclose(result.quadratic, 0, atol=1e-5)


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_a_valid_prototype_that_is_not_finite_is_flagged_for_its_modality_alone(solver):
    prototypes, logits, both = normal(15, 2, 4, 3), normal(16, 4, 4), np.ones((2, 4), bool)
    prototypes[1, 2, 0] = np.nan
    result = jax.jit(lambda p: align_geometry(p, logits, both, 0.1, solver))(prototypes)
    np.testing.assert_array_equal(result.converged, [True, False])
    np.testing.assert_array_equal(np.isfinite(result.value), [True, False])


def test_the_lower_objective_is_kept_and_its_flag_with_it():
    corners, mask = np.eye(6, dtype=np.float32), np.ones(6, bool)
    (value, result), _ = aligned(Sinkhorn(), 0.01)(corners, corners, mask)
    # From p qᵀ, equidistant points stay at p qᵀ: quadratic cost 2 var(C), while the identity has none.
    np.testing.assert_allclose(result.solution.coupling[0], 1 / 36, atol=1e-6)
    np.testing.assert_allclose(value, -0.01 * np.log(6), atol=1e-5)

    def one_bad(cost_x, cost_y, mask, epsilon, start):
        good = start.coupling[0, 0] > 0.1
        return start._replace(coupling=jnp.where(good, start.coupling, jnp.nan), converged=good)

    result = gromov_wasserstein(scaled_cost(corners, mask), scaled_cost(corners, mask), mask, 0.01, one_bad)
    assert jnp.isfinite(result.value)
    assert result.converged


def test_an_earlier_solution_is_gone_on_from_unless_it_is_of_other_classes_or_not_finite():
    logits, prototypes, both = normal(17, 5, 4), normal(18, 1, 5, 3), np.ones((1, 5), bool)
    solve = jax.jit(
        lambda both, start, solver: align_geometry(prototypes, logits, both, 0.1, solver, start), static_argnums=2
    )
    first = solve(both, None, Sinkhorn())
    again = solve(both, first.solution, Sinkhorn(outer=2))
    assert again.solution.converged.all()
    np.testing.assert_allclose(again.value, first.value, atol=1e-5)
    fewer = solve(both & (np.arange(5) < 3), None, Sinkhorn()).solution
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan) if leaf.dtype != bool else leaf, fewer)
    for useless in (fewer, broken):
        np.testing.assert_allclose(solve(both, useless, Sinkhorn()).value, first.value, rtol=1e-6)


def test_float32_stays_float32_where_float64_is_allowed():
    with jax.enable_x64(True):
        points, mask = normal(19, 4, 3), np.ones(4, bool)
        (_, result), _ = aligned(Sinkhorn(), jnp.asarray(0.1, jnp.float64))(points, points, mask)
        assert starts(jnp.ones(3, bool), jnp.float32).coupling.dtype == jnp.float32
    assert {leaf.dtype.name for leaf in jax.tree.leaves(result)} == {"float32", "bool"}


@pytest.mark.parametrize("solver", BOTH, ids=name)
def test_another_epsilon_does_not_recompile(solver):
    traces = []

    @jax.jit
    def gradient(points, epsilon):
        traces.append(1)
        return jax.grad(lambda p: align_geometry(p, logits, both, epsilon, solver).value.sum())(points)

    points, logits, both = normal(21, 2, 4, 3), normal(22, 4, 4), np.ones((2, 4), bool)
    sharp, blurred = gradient(points, 0.05), gradient(points, 0.5)
    assert len(traces) == 1
    assert np.abs(sharp - blurred).max() > 1e-3
