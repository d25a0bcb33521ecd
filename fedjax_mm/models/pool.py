"""Which architecture a client's encoder has: drawn from a pool, or one per modality for all."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.seeding import generator

DEPTHS = (2, 3, 4, 5)
WIDTHS = (64, 96, 128)
SMALLEST = 32
SHARED_WIDTHS = (128, 64)


def draw_encoder(
    shape: tuple[int, ...],
    dim: int,
    *,
    kinds: Sequence[str],
    split_seed: int,
    client: int,
    modality: int,
    vocabulary: int = 0,
    pool_size: int | None = None,
) -> EncoderSpec:
    """Draws one client's encoder for one modality (MFedPBA, Appendix C.2).

    Every kind is as likely. Depth 2 to 5, width a multiple of 32 in 64 to 128, constant or halved once in the middle
    where the half is a multiple of 32 too.

    Args:
        shape: Shape of one input.
        dim: Width d of the feature.
        kinds: Kinds of encoder to draw from.
        split_seed: The seed of partition, masks and architectures.
        client: Client id; the draw does not depend on the other clients.
        modality: Position of the modality.
        vocabulary: As in `EncoderSpec`.
        pool_size: None: any architecture may be drawn. Else one of so many distinct ones (or of all, if there are no
            more), which are drawn for the modality, whatever its clients.

    Returns:
        The architecture.
    """
    rng = generator(split_seed, "architecture", client, modality)
    if pool_size is None:
        kind, widths = _draw(rng, kinds)
        return EncoderSpec(kind, shape, widths, dim, vocabulary)
    pool = _distinct(tuple(kinds), pool_size, split_seed, modality)
    kind, widths = pool[int(rng.integers(len(pool)))]
    return EncoderSpec(kind, shape, widths, dim, vocabulary)


def shared_encoder(shape: tuple[int, ...], dim: int, *, kind: str, vocabulary: int = 0) -> EncoderSpec:
    """The encoder all clients use for a modality of this shape."""
    return EncoderSpec(kind, shape, SHARED_WIDTHS, dim, vocabulary)


@functools.cache
def _distinct(
    kinds: tuple[str, ...], size: int, split_seed: int, modality: int
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    possible = {_widths(*choice) for choice in itertools.product(DEPTHS, WIDTHS, (False, True))}
    rng = generator(split_seed, "architectures of a modality", modality)
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    while len(found) < min(size, len(set(kinds)) * len(possible)):
        found.setdefault(_draw(rng, kinds))
    return tuple(found)


def _draw(rng: np.random.Generator, kinds: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    kind = kinds[int(rng.integers(len(kinds)))]
    depth = DEPTHS[int(rng.integers(len(DEPTHS)))]
    width = WIDTHS[int(rng.integers(len(WIDTHS)))]
    return kind, _widths(depth, width, bool(rng.integers(2)))


def _widths(depth: int, width: int, shrink: bool) -> tuple[int, ...]:
    narrow = depth // 2 if shrink and width // 2 % SMALLEST == 0 else 0
    return (width,) * (depth - narrow) + (width // 2,) * narrow
