"""Noise on inputs."""

import dataclasses

import numpy as np
import pytest

from fedjax_mm import seeding
from fedjax_mm.errors import UsageError
from fedjax_mm.federation import corrupt, federate, training_deviations


def stream(client=0, modality=0):
    return seeding.generator(0, seeding.CORRUPTION, client, modality)


def test_noise_has_the_stated_scale_and_the_same_draw_at_every_severity():
    x = np.full((400, 50), 3, np.float16)
    half, most = (corrupt(x, alpha, 2.0, stream()) for alpha in (0.5, 0.9))
    assert half.dtype == np.float32 and np.array_equal(corrupt(x, 0, 2.0, stream()), x)
    error = 1 / np.sqrt(2 * x.size)
    assert (half - 3).std() == pytest.approx(1.0, abs=4 * error)
    assert (half - 3).mean() == pytest.approx(0, abs=4 / np.sqrt(x.size))
    assert most - 3 == pytest.approx(1.8 * (half - 3), abs=1e-5)
    other = corrupt(x, 0.5, 2.0, stream(client=1))
    assert abs(np.corrcoef(half.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(x.size)


def test_deviations_are_those_of_what_the_client_trains_on(make):
    rng = np.random.default_rng(0)
    data = make(np.arange(80) % 2, modalities=3, client=np.repeat(["a", "b"], 40), order=np.arange(80))
    values = rng.normal(size=(80, 4)) * np.repeat([1, 5], 40)[:, None]
    inputs = {"m0": values, "m1": np.array(["text"] * 80), "m2": (np.arange(80)[:, None] % 7).astype(np.uint8)}
    federation = federate(dataclasses.replace(data, inputs=inputs), missing="hom,mod")
    sigma = training_deviations(federation)
    assert sigma.shape == (2, 3) and (sigma[:, 1] == 0).all()
    for client in range(2):
        rows = federation.train.of(client)
        for m, name in ((0, "m0"), (2, "m2")):
            seen = inputs[name][rows[federation.observed[rows, m]]].astype(float).ravel()
            assert sigma[client, m] == pytest.approx(np.sqrt(np.mean((seen - seen.mean()) ** 2)))
    # Nothing else is read.
    poisoned = values.copy()
    poisoned[~federation.observed[:, 0]] = np.nan
    poisoned[np.concatenate([federation.test.of(client) for client in range(2)])] = np.inf
    data = dataclasses.replace(federation.data, inputs={**inputs, "m0": poisoned})
    assert np.array_equal(training_deviations(dataclasses.replace(federation, data=data)), sigma)


@pytest.mark.parametrize(
    ("inputs", "alpha", "sigma", "message"),
    [
        (np.array(["a"]), 0.5, 1.0, "text cannot be corrupted"),
        (np.zeros(2), -0.5, 1.0, "alpha must be a finite number of at least 0, not -0.5"),
        (np.zeros(2), 0.5, np.nan, "sigma must be a finite number"),
    ],
)
def test_bad_noise(inputs, alpha, sigma, message):
    with pytest.raises(UsageError, match=message):
        corrupt(inputs, alpha, sigma, stream())
