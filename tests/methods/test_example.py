"""The example of a user's own method does what it says."""

import pathlib

import jax
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import find

FILE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "my_method.py"


@pytest.fixture(scope="module")
def own():
    return find(f"{FILE}:FedHead")


@pytest.fixture(scope="module")
def unpulled(laboratory, three, own):
    return laboratory.run(own(mu=0.0), three)


def test_without_the_pull_it_averages_locals_heads_with_equal_weights(laboratory, three, unpulled, close):
    local = laboratory.run(find("local")(), three)
    heads = [local.of_client("head", client, 1) for client in range(3)]
    expected = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *heads)
    for client in range(3):
        close(unpulled.of_client("head", client, 1), expected)
        close(unpulled.of_client("encoders", client, 1), local.of_client("encoders", client, 1))


def test_the_pull_makes_features_smaller(laboratory, three, own, unpulled):
    pulled = laboratory.run(own(mu=1.0), three)
    assert pulled.term("pull")[-1] < 0.7 * unpulled.term("pull")[-1]


def test_only_the_head_is_sent(unpulled):
    np.testing.assert_array_equal(unpulled.term("bytes_up"), 8 * ((4 * 4 + 4) + (4 * 3 + 3)))


def test_a_negative_weight_is_refused(laboratory, three, own):
    with pytest.raises(UsageError, match="mu is -1"):
        laboratory.build(own(mu=-1.0), three)


def test_it_fits_on_a_page():
    lines = FILE.read_text().splitlines()
    assert len(lines) < 60
