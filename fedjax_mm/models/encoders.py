"""Encoders: from one modality's input to a feature of d dimensions (MFedPBA, Table 4; Flux's for sensor windows)."""

import dataclasses
import math
from typing import Any

from flax import nnx

from fedjax_mm.models.cnn import CNN1D, CNN2D, TextCNN
from fedjax_mm.models.dnn import DNN
from fedjax_mm.models.embedding import WIDTH, Embedded
from fedjax_mm.models.residual import ResModel
from fedjax_mm.models.sensing import Sensing

POOL = ("dnn", "cnn1d", "cnn2d", "textcnn", "resmodel")
ENCODERS = (*POOL, "dnn_bn", "mlp", "sensing")
SUITED = {
    "image": ("dnn", "cnn2d"),
    "language": ("dnn", "cnn1d", "textcnn"),
    "audio": ("dnn", "cnn1d", "resmodel"),
    "time-series": ("dnn", "cnn1d", "resmodel", "sensing"),
    "vector": ("dnn", "cnn1d", "resmodel"),
}


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """An encoder's architecture. Equal specs form a bucket.

    Attributes:
        kind: One of `ENCODERS`; `dnn_bn` is `dnn` with BatchNorm after each hidden layer, `mlp` is `dnn` with a ReLU
            after the last layer too, so that with a linear head it is a plain multilayer perceptron; `sensing`: Flux's.
        shape: Shape of one input.
        widths: Hidden widths, in order; as many as the repeated groups of the kind. May be empty; so it is for
            `sensing`, which has its own.
        dim: Width d of the feature.
        vocabulary: For inputs that are ids: they are below it. 0 for numbers.
    """

    kind: str
    shape: tuple[int, ...]
    widths: tuple[int, ...]
    dim: int
    vocabulary: int = 0

    def build(self, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
        """A fresh module."""
        shape = (*self.shape, WIDTH) if self.vocabulary else self.shape
        sizes = (self.widths, self.dim)
        match self.kind:
            case "cnn1d":
                encoder = CNN1D(shape, *sizes, dtype=dtype, rngs=rngs)
            case "cnn2d":
                encoder = CNN2D(shape, *sizes, dtype=dtype, rngs=rngs)
            case "textcnn":
                encoder = TextCNN(shape, *sizes, dtype=dtype, rngs=rngs)
            case "resmodel":
                encoder = ResModel(math.prod(shape), *sizes, dtype=dtype, rngs=rngs)
            case "sensing":
                encoder = Sensing(shape, self.dim, dtype=dtype, rngs=rngs)
            case _:
                options = {"normalise": self.kind == "dnn_bn", "activate": self.kind == "mlp"}
                encoder = DNN(math.prod(shape), *sizes, dtype=dtype, rngs=rngs, **options)
        return Embedded(self.vocabulary, encoder, dtype=dtype, rngs=rngs) if self.vocabulary else encoder

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) + (" ids" if self.vocabulary else "")
        return f"{self.kind} {shape}-{'-'.join(map(str, (*self.widths, self.dim)))}"


def applicable(data_kind: str, shape: tuple[int, ...], *, text: bool) -> tuple[str, ...]:
    """The kinds of encoder that apply to a modality (Table 4; `vector`, `dnn_bn`, `mlp` are ours, `sensing` Flux's).

    Args:
        data_kind: One of `fedjax_mm.data.KINDS`.
        shape: Shape of one input.
        text: Whether the inputs are ids of text.

    Returns:
        Some of `ENCODERS`, in their order: no image encoder for images stored as vectors, no BatchNorm on ids.
    """
    suited = (*SUITED[data_kind], *(() if text else ("dnn_bn",)), "mlp")
    return tuple(kind for kind in ENCODERS if kind in suited and (kind != "cnn2d" or len(shape) >= 2))
