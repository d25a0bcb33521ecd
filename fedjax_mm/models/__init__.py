"""Networks: encoders, fusion, heads; described with Flax NNX, used as pure functions."""

from fedjax_mm.models.dnn import DNN
from fedjax_mm.models.encoders import ENCODERS, EncoderSpec, applicable
from fedjax_mm.models.heads import MLP, HeadSpec
from fedjax_mm.models.networks import NetworkSpec, apply, init

__all__ = ["DNN", "ENCODERS", "MLP", "EncoderSpec", "HeadSpec", "NetworkSpec", "applicable", "apply", "init"]
