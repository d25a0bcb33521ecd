"""Which architecture a client's encoder has: drawn from a pool, or one per modality for all."""

from collections.abc import Sequence

from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.seeding import generator

DEPTHS = (2, 3, 4, 5)
WIDTHS = (64, 96, 128)
SMALLEST = 32
SHARED_WIDTHS = (128, 64)


def draw_encoder(
    shape: tuple[int, ...], dim: int, *, kinds: Sequence[str], split_seed: int, client: int, modality: int
) -> EncoderSpec:
    """Draws one client's encoder for one modality (MFedPBA, Appendix C.2).

    Depth 2 to 5, width a multiple of 32 in 64 to 128, constant or halved once in the middle where the half is a
    multiple of 32 too.

    Args:
        shape: Shape of one input.
        dim: Width d of the feature.
        kinds: Kinds of encoder to draw from.
        split_seed: The seed of partition, masks and architectures.
        client: Client id; the draw does not depend on the other clients.
        modality: Position of the modality.

    Returns:
        The architecture.
    """
    rng = generator(split_seed, "architecture", client, modality)
    kind = kinds[int(rng.integers(len(kinds)))]
    depth = DEPTHS[int(rng.integers(len(DEPTHS)))]
    width = WIDTHS[int(rng.integers(len(WIDTHS)))]
    shrink = bool(rng.integers(2)) and width // 2 % SMALLEST == 0
    narrow = depth // 2 if shrink else 0
    return EncoderSpec(kind, shape, (width,) * (depth - narrow) + (width // 2,) * narrow, dim)


def shared_encoder(shape: tuple[int, ...], dim: int, *, kind: str) -> EncoderSpec:
    """The encoder all clients use for a modality of this shape."""
    return EncoderSpec(kind, shape, SHARED_WIDTHS, dim)
