"""Networks: encoders, fusion, heads; described with Flax NNX, used as pure functions."""

from fedjax_mm.models.encoders import DNN, EncoderSpec
from fedjax_mm.models.heads import MLP, HeadSpec
from fedjax_mm.models.networks import NetworkSpec, apply, init

__all__ = ["DNN", "MLP", "EncoderSpec", "HeadSpec", "NetworkSpec", "apply", "init"]
