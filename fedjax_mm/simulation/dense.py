"""Dense encoders of unlike architecture, layer by layer: layers of one shape are one product, whoever's they are.

What compiles slowly and runs slowly is many small operations. A federation of a hundred clients has a hundred distinct
encoders, but their layers have a few shapes.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.models.product import product

Array = jax.Array
Tree = Any
KINDS = ("dnn", "mlp")


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Slots of one bucket and modality: rows `start` to `stop` of the bucket, group slots `slots`."""

    bucket: int
    start: int
    stop: int
    slots: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """The layers of one depth and shape.

    Attributes:
        name: Which stack of parameters holds them.
        level: Their depth, from 0.
        first: Their first row in the stack.
        slots: The group slot of each, int `[n]`.
        pieces: The same by bucket, in that order.
        relu: Whether a ReLU follows.
        inputs: Width of what goes in.
        outputs: Width of what comes out.
        last: Whether the encoder ends here.
    """

    name: str
    level: int
    first: int
    slots: np.ndarray
    pieces: tuple[Piece, ...]
    relu: bool
    inputs: int
    outputs: int
    last: bool


@dataclasses.dataclass(frozen=True, eq=False)
class DenseGroup:
    """Buckets of dense encoders as stacks of layers. Its parameters are `{stack: {"kernel", "bias"}}`.

    Attributes:
        members: Positions of the buckets in the plan.
        specs: Their architectures.
        layers: All layers, level by level.
        lanes: Stack -> the plan's lane of each of its rows, int `[rows]`.
        row_columns: Stack -> the modality of each of its rows, int `[rows]`.
        slot_lanes: The plan's lane of each slot, int `[slots]`; slots are ordered by modality.
        columns: The modality of each slot, int `[slots]`.
    """

    members: tuple[int, ...]
    specs: tuple[EncoderSpec, ...]
    layers: tuple[Layer, ...]
    lanes: dict[str, np.ndarray]
    row_columns: dict[str, np.ndarray]
    slot_lanes: np.ndarray
    columns: np.ndarray

    def stack(self, trees: Sequence[Tree]) -> dict[str, Tree]:
        """The parameters of the buckets (those at `members`, in order) as stacks of layers."""
        parts: dict[str, list[Tree]] = {name: [] for name in self.lanes}
        for layer in self.layers:
            for piece in layer.pieces:
                tree = _layer_of(trees[piece.bucket], layer.level)
                parts[layer.name].append(jax.tree.map(lambda leaf, p=piece: leaf[p.start : p.stop], tree))
        return {name: jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found) for name, found in parts.items()}

    def unstack(self, stacks: dict[str, Tree]) -> list[Tree]:
        """The inverse of `stack`."""
        rows: list[dict[int, list[tuple[int, Tree]]]] = [{} for _ in self.specs]
        for layer in self.layers:
            first = layer.first
            for piece in layer.pieces:
                end = first + piece.stop - piece.start
                tree = jax.tree.map(lambda leaf, a=first, b=end: leaf[a:b], stacks[layer.name])
                rows[piece.bucket].setdefault(layer.level, []).append((piece.start, tree))
                first = end
        trees = []
        for spec, levels in zip(self.specs, rows, strict=True):
            whole = {
                level: jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *[t for _, t in sorted(parts, key=_start)])
                for level, parts in levels.items()
            }
            depth = len(spec.widths)
            hidden = {"hidden": {level: whole[level] for level in range(depth)}} if depth else {}
            trees.append({**hidden, "last": whole[depth]})
        return trees

    def __call__(self, stacks: dict[str, Tree], read: Callable[[int, np.ndarray], Array]) -> Array:
        """One forward pass of all slots.

        Args:
            stacks: The parameters.
            read: From a modality and lanes `[n]` to their inputs, `[n, B, ...]`, finite where masked.

        Returns:
            Features `[slots, B, d]`.
        """
        before: dict[int, list[tuple[np.ndarray, Array]]] = {}
        finished: list[tuple[np.ndarray, Array]] = []
        for level, layers in itertools.groupby(self.layers, key=lambda layer: layer.level):
            after: dict[int, list[tuple[np.ndarray, Array]]] = {}
            for layer in layers:
                x = self._inputs(layer, read) if level == 0 else _pick(before[layer.inputs], layer.slots)
                rows = slice(layer.first, layer.first + len(layer.slots))
                kernel, bias = stacks[layer.name]["kernel"][rows], stacks[layer.name]["bias"][rows]
                y = jax.vmap(product)(x, kernel) + bias[:, None]
                y = jax.nn.relu(y) if layer.relu else y
                (finished if layer.last else after.setdefault(layer.outputs, [])).append((layer.slots, y))
            before = after
        return _pick(finished, np.arange(len(self.columns)))

    def _inputs(self, layer: Layer, read: Callable[[int, np.ndarray], Array]) -> Array:
        """Inputs `[n, B, features]` of the first layers of a shape."""
        columns, lanes = self.columns[layer.slots], self.slot_lanes[layer.slots]
        parts = [read(int(j), lanes[columns == j]) for j in np.unique(columns)]
        return jnp.concatenate([part.reshape(*part.shape[:2], -1) for part in parts])


def make_group(
    members: Sequence[int], specs: Sequence[EncoderSpec], segments: Sequence[Sequence[tuple[int, np.ndarray]]]
) -> DenseGroup:
    """Groups buckets.

    Args:
        members: Their positions in the plan.
        specs: Their architectures, of a kind in `KINDS`, on numbers.
        segments: For each, (modality, lanes) of its slots, one after another.

    Returns:
        The group.
    """
    pieces, count = [], 0
    columns, lanes = [], []
    found = []
    for bucket, parts in enumerate(segments):
        start = 0
        for j, positions in parts:
            found.append((j, bucket, start, positions))
            start += len(positions)
    for j, bucket, start, positions in sorted(found, key=lambda entry: entry[:3]):
        slots = np.arange(count, count + len(positions))
        pieces.append(Piece(bucket, start, start + len(positions), slots))
        columns.append(np.full(len(positions), j))
        lanes.append(positions)
        count += len(positions)
    slot_lanes, slot_columns = np.concatenate(lanes), np.concatenate(columns)
    layers, rows = [], {}
    for level in range(1 + max(len(spec.widths) for spec in specs)):
        for key, mine in _by_shape(pieces, specs, level).items():
            inputs, outputs, relu, last = key
            name = f"{inputs}x{outputs}{'' if relu else ' linear'}"
            slots = np.concatenate([piece.slots for piece in mine])
            first = sum(map(len, rows.setdefault(name, [])))
            layers.append(Layer(name, level, first, slots, tuple(mine), relu, inputs, outputs, last))
            rows[name].append(slots)
    stacked = {name: np.concatenate(parts) for name, parts in rows.items()}
    return DenseGroup(
        members=tuple(members),
        specs=tuple(specs),
        layers=tuple(layers),
        lanes={name: slot_lanes[slots] for name, slots in stacked.items()},
        row_columns={name: slot_columns[slots] for name, slots in stacked.items()},
        slot_lanes=slot_lanes,
        columns=slot_columns,
    )


def _by_shape(
    pieces: Sequence[Piece], specs: Sequence[EncoderSpec], level: int
) -> dict[tuple[int, int, bool, bool], list[Piece]]:
    """The pieces that have a layer of a level, by its widths, whether a ReLU follows and whether it is the last."""
    shapes: dict[tuple[int, int, bool, bool], list[Piece]] = {}
    for piece in pieces:
        spec = specs[piece.bucket]
        sizes = (math.prod(spec.shape), *spec.widths, spec.dim)
        if level + 1 < len(sizes):
            last = level + 2 == len(sizes)
            key = (sizes[level], sizes[level + 1], not last or spec.kind == "mlp", last)
            shapes.setdefault(key, []).append(piece)
    return shapes


def _pick(parts: Sequence[tuple[np.ndarray, Array]], slots: np.ndarray) -> Array:
    """The rows of some slots, of parts that hold rows of slots."""
    held = np.concatenate([own for own, _ in parts])
    place = np.full(held.max() + 1, -1)
    place[held] = np.arange(len(held))
    index = place[slots]
    whole = parts[0][1] if len(parts) == 1 else jnp.concatenate([values for _, values in parts])
    if len(index) == len(held) and (index == np.arange(len(held))).all():
        return whole
    if (np.diff(index) == 1).all():
        return whole[index[0] : index[-1] + 1]
    return whole[index]


def _layer_of(params: Tree, level: int) -> Tree:
    hidden = params.get("hidden", {})
    return hidden[level] if level < len(hidden) else params["last"]


def _start(part: tuple[int, Tree]) -> int:
    return part[0]
