"""What networks cost, against counts by hand."""

import numpy as np

from fedjax_mm.models import EncoderSpec, HeadSpec
from fedjax_mm.simulation.costs import forward_operations
from fedjax_mm.simulation.dense import LayerSpec

DTYPE = np.dtype("float32")


def test_a_dense_network_costs_two_operations_a_parameter():
    assert forward_operations(LayerSpec(7, 5, relu=True), DTYPE) == 2 * (7 * 5 + 5)
    assert forward_operations(HeadSpec(4, (3,), 2), DTYPE) == 2 * (4 * 3 + 3 + 3 * 2 + 2)


def test_a_convolution_costs_its_weights_at_every_place():
    spec = EncoderSpec("sensing", (60, 3), (), 8)
    # Kernels of 24, 16 and 1 over what is left, halved after the first two layers, and a dense layer.
    products = 37 * 24 * 3 * 32 + 3 * 16 * 32 * 64 + 64 * 96 + 96 * 8
    # Several positions are computed at once, in part with zeros.
    assert 2 * products <= forward_operations(spec, DTYPE) <= 2.6 * products
