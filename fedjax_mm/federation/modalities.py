"""Which client holds which modality."""

import numpy as np

from fedjax_mm import seeding

PARTITIONS = {
    "natural": "the clients of the data, each with the modalities it has observed",
    "m1": "one modality a client; with fewer clients than modalities, the rest are dealt out in turn",
    "m2": "two modalities a client; the rest as in m1",
    "m1+": "one or more modalities a client; the rest as in m1",
    "all": "every modality at every client",
    "silos": "every modality at every client; samples dealt evenly, jointly by label and natural mask",
    "masks": "a client for each natural mask; masks of fewer than 8 samples join the nearest other",
}
COMPLETE = ("all", "silos")
GIVEN = ("natural", "masks")
"""The data decide who the clients are and what they have."""
EVEN = (*GIVEN, "silos")
"""Nothing is dealt in shares that `alpha` could skew."""


def hold_modalities(partition: str, clients: int, modalities: int, *, seed: int) -> np.ndarray:
    """Draws the modality sets of clients that are not natural ones.

    With a permutation π of the M modalities, client i < M holds π(i), in `m2` also π(i + 1 mod M), in `m1+` also each
    other modality with probability ½. Client i ≥ M holds π(i mod M) in `m1`, two distinct random modalities in `m2`, a
    uniform non-empty subset in `m1+`. With fewer clients than modalities, π(j) for j ≥ K also goes to client j mod K,
    so that every modality is held by somebody. In `all` and `silos` every client holds everything.

    Each client draws from its own stream: from K = M on, further clients change nothing for those before them.

    Args:
        partition: `"m1"`, `"m2"` (at least two modalities), `"m1+"`, `"all"` or `"silos"`.
        clients: Number of clients K.
        modalities: Number of modalities M.
        seed: The split seed.

    Returns:
        Bool `[K, M]`, every row with at least one True.
    """
    if partition in COMPLETE:
        return np.ones((clients, modalities), bool)
    pi = seeding.generator(seed, seeding.PERMUTATION).permutation(modalities)
    holds = np.zeros((clients, modalities), bool)
    for client in range(clients):
        rng = seeding.generator(seed, seeding.MODALITIES, client)
        own = pi[client % modalities]
        if partition == "m1":
            holds[client, own] = True
        elif partition == "m2" and client < modalities:
            holds[client, [own, pi[(client + 1) % modalities]]] = True
        elif partition == "m2":
            holds[client, rng.choice(modalities, 2, replace=False)] = True
        elif client < modalities:
            holds[client] = rng.random(modalities) < 0.5
            holds[client, own] = True
        else:
            holds[client] = _subset(rng, modalities)
    for j in range(clients, modalities):
        holds[j % clients, pi[j]] = True
    return holds


def _subset(rng: np.random.Generator, modalities: int) -> np.ndarray:
    """A uniform non-empty subset, bool `[modalities]`."""
    while not (chosen := rng.random(modalities) < 0.5).any():
        pass
    return chosen
