import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.models.product import dense_product, product


def test_value_and_gradients_are_those_of_the_matrix_product():
    rng = np.random.default_rng(0)
    x, kernel, weight = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 7), (7, 3), (5, 3)))
    found = jax.value_and_grad(lambda x, k: jnp.sum(product(x, k) * weight), (0, 1))(x, kernel)
    plain = jax.value_and_grad(lambda x, k: jnp.sum((x @ k) * weight), (0, 1))(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, plain)
    stacked = jax.vmap(jax.grad(lambda k: jnp.sum(product(x, k) * weight)))(jnp.stack([kernel, 2 * kernel]))
    np.testing.assert_allclose(stacked, np.stack([plain[1][1]] * 2), rtol=1e-5, atol=1e-5)


def test_a_dense_layer_takes_inputs_of_any_rank():
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(2, 4, 6)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
    np.testing.assert_allclose(dense_product(x, kernel, None), x @ kernel, rtol=1e-5, atol=1e-5)
    assert dense_product(x[:0], kernel, None).shape == (0, 4, 3)
