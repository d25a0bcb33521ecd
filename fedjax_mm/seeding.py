"""Where every draw of the program that is made on the host comes from: a key, never a shared state."""

import zlib

import numpy as np

# What a federation draws with its split seed; every purpose has a stream of its own, so no draw shifts another.
PERMUTATION = "permutation of the modalities"
MODALITIES = "modalities of a client"
SHARES = "shares of a class"
DEALING = "dealing samples to clients"
SPLITTING = "splitting the samples of a client"
AVAILABILITY = "availability of modalities at a client"
SENSORS = "a modality working along a recording"
CLIENT_REPAIR = "modality given back to a client"
SAMPLE_REPAIR = "modality given back to a sample"
# What an evaluation draws.
CORRUPTION = "noise on inputs"


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """Returns the random stream of one purpose.

    Args:
        seed: The experiment's seed or the split seed, at least 0.
        purpose: What the numbers are for; two purposes never share a stream.
        *path: Where in the experiment, from the outside in (round, client id, class id, ...), each at least 0.

    Returns:
        A generator that depends on the arguments alone: the same call gives the same numbers on every machine.
    """
    # A spawn key and not more entropy: entropy is padded with zeros, so that (1,) and (1, 0) would be one stream.
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *path))
    return np.random.Generator(np.random.PCG64(sequence))
