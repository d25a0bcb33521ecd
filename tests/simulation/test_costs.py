"""What networks cost, against counts by hand."""

import numpy as np

from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.models import EncoderSpec, HeadSpec
from fedjax_mm.simulation.costs import forward_operations
from fedjax_mm.simulation.dense import LayerSpec
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population

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


def test_copies_are_billed_where_somebody_of_the_same_seed_holds_the_modality(sim):
    data = sim.make_data()
    modalities = len(data.modalities)
    only_first, everything = np.zeros((2, modalities), bool), np.ones((2, modalities), bool)
    only_first[:, 0] = True
    some = everything & (np.arange(2)[:, None] == 0) | only_first
    federations = [sim.make_federation(data, holds, (4, 4)) for holds in (only_first, some, everything)]
    settings = sim.make_settings(
        federations[0], partition="natural", encoders=("mlp",), widths=((3,),), seeds=(0, 1, 2)
    )
    bills = {}
    for blocks in ("partial", "naive"):
        engine = build_engine(FedAvg(blocks=blocks), build_population(settings.seeds, federations), settings)
        bills[blocks] = engine.download.modules.reshape(3, 2)
    np.testing.assert_array_equal(bills["naive"][0], bills["partial"][0])
    np.testing.assert_array_equal(bills["naive"][1], bills["partial"][2])
    assert bills["naive"][1, 1] > bills["partial"][1, 1]
