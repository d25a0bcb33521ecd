"""From a Flax NNX module to pure functions of its split state."""

import functools
from typing import Any, Protocol

import jax
from flax import nnx

Array = jax.Array
Tree = Any


class NetworkSpec(Protocol):
    """A hashable description of an architecture: equal specs have parameters of equal shape."""

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """A fresh module with parameters of the given dtype."""
        ...

    def __hash__(self) -> int: ...


def init(spec: NetworkSpec, key: Array, dtype: Any) -> tuple[Tree, Tree]:
    """Initial state of a network, made eagerly.

    Args:
        spec: The architecture.
        key: A key; the same key and spec give the same bits.
        dtype: Floating dtype of the parameters.

    Returns:
        Parameters and BatchNorm statistics (empty if it has none), nested dicts of arrays.
    """
    _, params, statistics = nnx.split(spec.build(nnx.Rngs(key), dtype), nnx.Param, nnx.BatchStat)
    return nnx.to_pure_dict(params), nnx.to_pure_dict(statistics)


def apply(
    spec: NetworkSpec, params: Tree, statistics: Tree, *inputs: Array, dtype: Any, **options: Any
) -> tuple[Array, Tree]:
    """One forward pass.

    Args:
        spec: The architecture.
        params: As `init` gives them.
        statistics: As `init` gives them.
        *inputs: What the module's `__call__` takes by position.
        dtype: Floating dtype of the parameters.
        **options: What it takes by name (`mask`, `key`, `train`).

    Returns:
        The output and the statistics after it.
    """
    graph, empty_params, empty_statistics = _abstract(spec, dtype)
    module = nnx.merge(graph, _filled(empty_params, params), _filled(empty_statistics, statistics), copy=True)
    output = module(*inputs, **options)
    return output, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))


@functools.cache
def shapes(spec: NetworkSpec, dtype: Any) -> tuple[Tree, Tree]:
    """Shapes and dtypes of what `init` returns, without computing it."""
    return jax.eval_shape(lambda key: init(spec, key, dtype), jax.random.key(0))


@functools.cache
def _abstract(spec: NetworkSpec, dtype: Any):
    module = nnx.eval_shape(lambda: spec.build(nnx.Rngs(0), dtype))
    return nnx.split(module, nnx.Param, nnx.BatchStat)


def _filled(empty: nnx.State, values: Tree) -> nnx.State:
    state = jax.tree.map(lambda leaf: leaf, empty)
    nnx.replace_by_pure_dict(state, values)
    return state
