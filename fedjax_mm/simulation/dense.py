"""Dense encoders, kept and computed layer by layer: layers of one shape are one stack, whoever's they are.

What compiles slowly and runs slowly is many small operations. A federation of a hundred clients has a hundred distinct
encoders, but their layers have a few shapes.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.models.layers import drawn_uniform, linear
from fedjax_mm.models.networks import NetworkSpec
from fedjax_mm.models.product import product
from fedjax_mm.simulation.picking import Part, picked, rows_of_slots

Array = jax.Array
Tree = Any
KINDS = ("dnn", "mlp")
DRAWS = 2
"""Keys that building one layer takes from its network's: of its kernel and of its bias."""


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """A dense layer. Its parameters are `{"kernel", "bias"}`.

    Attributes:
        inputs: Width of what goes in.
        outputs: Width of what comes out.
        relu: Whether a ReLU follows.
    """

    inputs: int
    outputs: int
    relu: bool

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """The layer as a module."""
        return linear(self.inputs, self.outputs, dtype=dtype, rngs=rngs)

    def draw(self, words: np.ndarray, dtype: Any) -> Tree:
        """Layers of some encoders, with the values `networks.init` would give them there.

        Args:
            words: The words of each one's `layer_key`, `[n, 2]`.
            dtype: Floating dtype.

        Returns:
            The parameters, NumPy leaves `[n, ...]`.
        """
        kernels = [drawn_uniform(mine, (self.inputs, self.outputs), dtype) for mine in words]
        return {"bias": np.zeros((len(words), self.outputs), dtype), "kernel": np.stack(kernels)}

    def __str__(self) -> str:
        return f"dense {self.inputs}-{self.outputs}{' relu' if self.relu else ''}"


def layer_key(key: Array, number: Array | int) -> Array:
    """The key of a dense encoder's layer 0, 1, ..., from the encoder's: what `nnx.Rngs` gives its kernel."""
    return jax.random.fold_in(key, DRAWS * number)


def layers_of(spec: NetworkSpec) -> tuple[NetworkSpec, ...]:
    """The pieces a network is kept in: the layers of a dense encoder of numbers, everything else whole."""
    if not isinstance(spec, EncoderSpec) or spec.kind not in KINDS or spec.vocabulary:
        return (spec,)
    sizes = list(itertools.pairwise((math.prod(spec.shape), *spec.widths, spec.dim)))
    last = len(sizes) - 1
    return tuple(LayerSpec(*size, relu=level < last or spec.kind == "mlp") for level, size in enumerate(sizes))


def split(specs: Sequence[NetworkSpec], bucket: np.ndarray) -> tuple[tuple[NetworkSpec, ...], np.ndarray]:
    """Networks in pieces.

    Layer n of a dense encoder is a piece of level n, but the last of several is one of the last level, whatever the
    depth: last layers of one shape are one product then.

    Args:
        specs: Architectures.
        bucket: The architecture of each network, int32 `[L, J]`, -1 where there is none.

    Returns:
        The distinct pieces, and the piece of each (lane, level * J + j), int32 `[L, levels * J]`, -1 where there is
        none. A network that is kept whole is a piece of level 0.
    """
    chains = [layers_of(spec) for spec in specs]
    positions: dict[NetworkSpec, int] = {}
    levels = max(map(len, chains))
    table = np.full((levels, len(specs) + 1), -1, np.int32)
    for level, (number, chain) in itertools.product(range(levels), enumerate(chains)):
        if level < len(chain):
            place = levels - 1 if 0 < level == len(chain) - 1 else level
            table[place, number] = positions.setdefault(chain[level], len(positions))
    return tuple(positions), np.concatenate(list(table[:, bucket]), axis=1)


def layer_numbers(bucket: np.ndarray, width: int) -> np.ndarray:
    """Which layer of its encoder each piece is, int `[L, levels * J]`; of tables as `split` gives them, J = `width`."""
    held = bucket.reshape(len(bucket), -1, width) >= 0
    return (np.cumsum(held, axis=1) - 1).reshape(bucket.shape)


def joined(layers: Sequence[Tree]) -> Tree:
    """The parameters of a dense encoder as its module has them, from those of its layers."""
    hidden = {"hidden": dict(enumerate(layers[:-1]))} if len(layers) > 1 else {}
    return {**hidden, "last": layers[-1]}


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The slots of one level in a stack of layers: rows `first` to `first + len(slots)` of it.

    Attributes:
        stack: The stack's position.
        first: Its first row.
        slots: Modality * lanes + lane of each row, int `[n]`.
        segments: The same as (modality, lanes).
    """

    stack: int
    first: int
    slots: np.ndarray
    segments: tuple[tuple[int, np.ndarray], ...]


def pieces_by_level(
    stacks: Sequence[Sequence[tuple[int, np.ndarray]]], modalities: int, lanes: int
) -> list[list[Piece]]:
    """The rows of stacks, level by level.

    Args:
        stacks: For each stack, (level * modalities + modality, lanes) of its rows one after another, ascending.
        modalities: The number of modalities.
        lanes: The number of lanes.

    Returns:
        For each level its pieces.
    """
    levels: dict[int, list[Piece]] = {}
    for number, segments in enumerate(stacks):
        first = 0
        for level, group in itertools.groupby(segments, key=lambda segment: segment[0] // modalities):
            mine = tuple((column % modalities, held) for column, held in group)
            slots = np.concatenate([m * lanes + held for m, held in mine])
            levels.setdefault(level, []).append(Piece(number, first, slots, mine))
            first += len(slots)
    return [levels[level] for level in sorted(levels)]


def run_layers(
    levels: Sequence[Sequence[Piece]],
    specs: Sequence[LayerSpec],
    stacks: Sequence[Tree],
    enter: Callable[[Piece, Array], Array],
) -> list[Part]:
    """One forward pass of all dense encoders.

    Args:
        levels: As `pieces_by_level` gives them; at least one.
        specs: The layer of each stack.
        stacks: The parameters of each.
        enter: From a piece of the first level and its kernels to what they make of its inputs, `[n, B, outputs]`,
            finite where masked.

    Returns:
        The features of all slots, rows `[B, d]`.
    """
    last = {slot: level for level, pieces in enumerate(levels) for p in pieces for slot in p.slots}
    computed: dict[int, list[Part]] = {}
    everything: list[Part] = []
    for level, pieces in enumerate(levels):
        for piece in pieces:
            spec, rows = specs[piece.stack], slice(piece.first, piece.first + len(piece.slots))
            own = jax.tree.map(lambda leaf, rows=rows: leaf[rows], stacks[piece.stack])
            if level:
                y = product(rows_of_slots(computed[spec.inputs], piece.slots), own["kernel"])
            else:
                y = enter(piece, own["kernel"])
            y = y + own["bias"][:, None]
            y = jax.nn.relu(y) if spec.relu else y
            ends = np.array([last[slot] == level for slot in piece.slots])
            if not ends.all():
                computed.setdefault(spec.outputs, []).append((piece.slots, y))
            if ends.any():
                everything.append((piece.slots[ends], picked(y, np.flatnonzero(ends))))
    return everything


def inputs_of(segments: Iterable[tuple[int, np.ndarray]], read: Callable[[int, np.ndarray], Array]) -> Array:
    """The flat inputs of segments (modality, lanes), one after another.

    Args:
        segments: The segments.
        read: From a modality and lanes `[n]` to their inputs, `[n, B, ...]`, finite where masked.

    Returns:
        `[slots, B, inputs]`.
    """
    parts = [read(modality, lanes) for modality, lanes in segments]
    return jnp.concatenate([part.reshape(*part.shape[:2], -1) for part in parts])
