"""tau_f of a client's samples, as the networks of a finished run have it."""

from collections.abc import Mapping

import numpy as np

import fedjax_mm as fmm
from fedjax_mm import seeding
from fedjax_mm.federation.corruption import corrupt, training_deviations
from fedjax_mm.methods.flux import temperatures


def client_inputs(
    federation: fmm.Federation, client: int, split: str, alpha: float = 0.0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A client's samples of a part of the split.

    Args:
        federation: The federation.
        client: The client's id.
        split: `train`, `validation` or `test`.
        alpha: Severity of the noise on them; the noise itself is the same for all severities.

    Returns:
        Modality -> inputs `[s, ...]` for those the client has, and who observes what, bool `[s, M]`.
    """
    data, rows = federation.data, federation.table(split).of(client)
    inputs = {m: data.inputs[m][rows] for m, has in zip(data.modalities, federation.holds[client], strict=True) if has}
    if alpha:
        sigma = training_deviations(federation)[client]
        for modality in inputs:
            j = data.modalities.index(modality)
            rng = seeding.generator(federation.split_seed, seeding.CORRUPTION, client, j)
            inputs[modality] = corrupt(inputs[modality], alpha, sigma[j], rng)
    return inputs, federation.observed[rows] & federation.holds[client]


def sample_taus(
    run: fmm.Run,
    client: int,
    inputs: Mapping[str, np.ndarray],
    seen: np.ndarray,
    *,
    method: str,
    seed: int,
    size: int,
) -> np.ndarray:
    """tau_f of each sample after the last round, float64 `[s]`; NaN where the private head says nothing at all.

    Args:
        run: A run of Flux.
        client: The client's id.
        inputs: As `client_inputs` returns them.
        seen: The same.
        method: The label of Flux.
        seed: One of the seeds.
        size: At least s: so many samples are asked about at a time, some of them several times, so that all clients
            compute in one shape.
    """
    modalities = list(run.manifest["data"]["modalities"])
    tau = np.empty(len(seen))
    for mask in np.unique(seen, axis=0):
        mine = np.flatnonzero((seen == mask).all(axis=1))
        chosen = np.resize(mine, size)
        asked = {modality: inputs[modality][chosen] for modality, has in zip(modalities, mask, strict=True) if has}
        tau[mine] = temperatures(run.predict(client, asked, method=method, seed=seed))[: len(mine)]
    return tau
