"""Small systems against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.objectives.elimination import FEW, solve_definite


@pytest.mark.parametrize("size", [1, 2, 5, FEW, FEW + 1])
def test_solutions_of_definite_systems(size):
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((7, size, size))
    matrices = factors @ factors.swapaxes(1, 2) + 0.1 * np.eye(size)
    right = rng.standard_normal((7, size))
    expected = np.linalg.solve(matrices, right[..., None])[..., 0]
    with jax.enable_x64(True):
        found = jax.vmap(solve_definite)(jnp.asarray(matrices), jnp.asarray(right))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_singular_system_is_not_finite():
    assert not np.isfinite(solve_definite(jnp.zeros((3, 3)), jnp.ones(3))).any()


def test_small_systems_call_no_library():
    program = str(jax.make_jaxpr(jax.vmap(solve_definite))(jnp.zeros((4, FEW, FEW)), jnp.zeros((4, FEW))))
    assert "lu" not in program
