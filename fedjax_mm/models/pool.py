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
OF_ONE_SHAPE = ("sensing",)
"""Kinds that are what they are: no depth or width is drawn for them or may be given."""


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
    widths: Sequence[tuple[int, ...]] | None = None,
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
        widths: Hidden widths to draw from, each as likely, in place of depth, width and halving; None for these.

    Returns:
        The architecture.
    """
    rng = generator(split_seed, "architecture", client, modality)
    if pool_size is None:
        kind, hidden = _draw(rng, kinds, widths)
    else:
        pool = _distinct(tuple(kinds), None if widths is None else tuple(widths), pool_size, split_seed, modality)
        kind, hidden = pool[int(rng.integers(len(pool)))]
    return EncoderSpec(kind, shape, hidden, dim, vocabulary)


def shared_encoder(
    shape: tuple[int, ...],
    dim: int,
    *,
    kind: str,
    vocabulary: int = 0,
    widths: Sequence[tuple[int, ...]] | None = None,
) -> EncoderSpec:
    """The encoder all clients use for a modality of this shape, with the first of `widths` if they are given."""
    hidden = SHARED_WIDTHS if widths is None else widths[0]
    return EncoderSpec(kind, shape, () if kind in OF_ONE_SHAPE else hidden, dim, vocabulary)


@functools.cache
def _distinct(
    kinds: tuple[str, ...], widths: tuple[tuple[int, ...], ...] | None, size: int, split_seed: int, modality: int
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    drawn = (_widths(*choice) for choice in itertools.product(DEPTHS, WIDTHS, (False, True)))
    possible = set(drawn if widths is None else widths)
    rng = generator(split_seed, "architectures of a modality", modality)
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    most = sum(1 if kind in OF_ONE_SHAPE else len(possible) for kind in set(kinds))
    while len(found) < min(size, most):
        found.setdefault(_draw(rng, kinds, widths))
    return tuple(found)


def _draw(
    rng: np.random.Generator, kinds: Sequence[str], widths: Sequence[tuple[int, ...]] | None
) -> tuple[str, tuple[int, ...]]:
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind in OF_ONE_SHAPE:
        return kind, ()
    if widths is not None:
        return kind, widths[int(rng.integers(len(widths)))]
    depth = DEPTHS[int(rng.integers(len(DEPTHS)))]
    width = WIDTHS[int(rng.integers(len(WIDTHS)))]
    return kind, _widths(depth, width, bool(rng.integers(2)))


def _widths(depth: int, width: int, shrink: bool) -> tuple[int, ...]:
    narrow = depth // 2 if shrink and width // 2 % SMALLEST == 0 else 0
    return (width,) * (depth - narrow) + (width // 2,) * narrow
