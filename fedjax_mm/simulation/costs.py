"""What an exchange costs: bytes of the leaves that are really sent."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.methods.layout import Rows
from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.models.networks import NetworkSpec, apply, shapes
from fedjax_mm.simulation.context import Context

Tree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The price list of one direction.

    Attributes:
        modules: Bytes of the shared modules of each lane, int64 `[L]`.
        fixed: Bytes of the leaves that are always sent whole, masks included.
        row: Bytes of one row, for each `Rows`.
    """

    modules: np.ndarray
    fixed: int
    row: tuple[int, ...]

    def of_cohort(self, lanes: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
        """Bytes by seed.

        Args:
            lanes: The cohort's lanes, `[S, cohort]`.
            rows: For each `Rows`, the rows present over the cohort, `[S]`.

        Returns:
            int64 `[S]`.
        """
        total = self.modules[lanes].sum(axis=1) + self.fixed * lanes.shape[1]
        return total + sum(count.astype(np.int64) * size for count, size in zip(rows, self.row, strict=True))


def exchange(context: Context, names: Collection[str], leaves: Tree, lanes: int) -> Exchange:
    """Prices the shared modules and a tree of further leaves.

    Args:
        context: The context.
        names: The modules that travel, where they are shared.
        leaves: Shapes of what else is sent, with a leading axis of `lanes`.
        lanes: See `leaves`.

    Returns:
        The price list.
    """
    modules = np.zeros(context.seeds * context.clients, np.int64)
    for name, store in context.stores.items():
        for position, sizes in enumerate(module_bytes(context, name)):
            shared = sum(size for part, size in sizes.items() if name in names and store.shared(part))
            held = store.bucket == position
            if store.module.weight == "everyone":
                # Who does not hold a modality sends and receives copies, of what somebody of the same seed holds.
                held = held.reshape(context.seeds, context.clients, -1)
                held = np.broadcast_to(held.any(axis=1, keepdims=True), held.shape).reshape(store.bucket.shape)
            modules += shared * held.sum(axis=1)
    fixed, row = 0, []
    for node in jax.tree.leaves(leaves, is_leaf=lambda node: isinstance(node, Rows)):
        if isinstance(node, Rows):
            count = math.prod(node.present.shape[1:])
            row.append(_bytes(node.value) // lanes // count)
            fixed += -(-count // 8)
        else:
            fixed += _bytes(node) // lanes
    return Exchange(modules, fixed, tuple(row))


def module_bytes(context: Context, name: str) -> list[dict[str, int]]:
    """Bytes of one network of each bucket of a module, by part."""
    sizes = []
    for spec in context.stores[name].specs:
        params, statistics = shapes(spec, context.settings.dtype)
        sizes.append(
            {
                "params": sum(_bytes(leaf) for leaf in jax.tree.leaves(params)),
                "statistics": sum(_bytes(leaf) for leaf in jax.tree.leaves(statistics)),
            }
        )
    return sizes


@functools.cache
def forward_operations(spec: NetworkSpec, dtype: Any) -> float:
    """Floating-point operations of one sample's way through a network, in evaluation.

    For encoders that use a weight more than once, as convolutions do, XLA's count of what is computed; else two for
    every parameter.
    """
    params, statistics = shapes(spec, dtype)
    if not isinstance(spec, EncoderSpec):
        return 2.0 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    def forward(params: Tree, statistics: Tree, x: jax.Array) -> jax.Array:
        options = {"mask": jnp.ones(1, bool), "key": jax.random.key(0), "train": False}
        return apply(spec, params, statistics, x, dtype=dtype, **options)[0]

    x = jax.ShapeDtypeStruct((1, *spec.shape), jnp.int32 if spec.vocabulary else dtype)
    found = jax.jit(forward).lower(params, statistics, x).cost_analysis()
    return float((found or {}).get("flops", 0.0))


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
