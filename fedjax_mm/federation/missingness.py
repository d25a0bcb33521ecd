"""What clients and samples lack: a client axis and a sample axis over what the data have (Flux, Appendix B).

Client axis: client k draws q_k ~ Beta(a, b) and has each modality with probability q_k. Sample axis: each modality of a
client works or fails along the recording as a two-state Markov chain. A sample has modality m where the data have it,
the client has it and it works: a_kim = r_kim c_km s_kim.
"""

import dataclasses

import numpy as np

from fedjax_mm import seeding
from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.federation.regimes import Pair, Regime


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """Who lacks what; one table for train, validation and test and for every method.

    Attributes:
        drawn_holds: Bool `[K, M]`, the modalities of each client as drawn.
        holds: Bool `[K, M]`, as drawn, but every client with at least one that some of its samples have.
        drawn: Bool `[n, M]`, what each sample has at its client, as drawn; where nobody owns it, as in the data.
        observed: Bool `[n, M]`, as drawn and repaired. A sample of a client with no True is to be left out.
    """

    drawn_holds: np.ndarray
    holds: np.ndarray
    drawn: np.ndarray
    observed: np.ndarray


def draw_masks(
    data: MultimodalDataset,
    owner: np.ndarray,
    holds: np.ndarray,
    *,
    regime: Regime,
    empty: str,
    seed: int,
) -> Masks:
    """Draws both axes and repairs what they leave empty.

    A client left without a modality is given one back, drawn among those that it held and some of its samples have.
    With `empty="repair"` so is a sample, of those its client has and the data have for it; where there are none, and
    with `empty="drop"`, it stays empty. Each client draws from its own streams, each modality along the recordings of
    a client from one of its own: other clients, and the parts of the split, change nothing.

    Args:
        data: The data set, with `order` where the regime has a chain.
        owner: Client id of each sample, int `[n]`, negative where it has none.
        holds: Bool `[K, M]`, who holds what before anything is missing.
        regime: The regime.
        empty: A name of `regimes.EMPTY`.
        seed: The split seed.

    Returns:
        The masks.
    """
    drawn_holds, kept = holds.copy(), holds.copy()
    drawn, observed = data.observed.copy(), data.observed.copy()
    for client, held in enumerate(holds):
        mine, starts = recordings(data, np.flatnonzero(owner == client))
        has = data.observed[mine]
        if regime.beta is not None:
            drawn_holds[client] = held & available(regime.beta, len(held), client, seed)
            kept[client] = _restore(drawn_holds[client], held, np.any(has, axis=0), client, seed)
        works = np.ones_like(has)
        if regime.chain is not None:
            for modality in range(len(held)):
                rng = seeding.generator(seed, seeding.SENSORS, client, modality)
                works[:, modality] = operate(regime.chain, starts, rng)
        drawn[mine] = has & kept[client] & works
        observed[mine] = drawn[mine]
        if empty == "repair":
            choice = seeding.generator(seed, seeding.SAMPLE_REPAIR, client).random(len(mine))
            observed[mine] |= _one_of(has & kept[client], choice) & ~drawn[mine].any(1, keepdims=True)
    return Masks(drawn_holds, kept, drawn, observed)


def available(beta: Pair, modalities: int, client: int, seed: int) -> np.ndarray:
    """c_km ~ Bernoulli(q_k) with q_k ~ Beta(a, b), bool `[modalities]` (Flux, Appendix B).

    Args:
        beta: a and b.
        modalities: Number of modalities M.
        client: The client's id.
        seed: The split seed.
    """
    rng = seeding.generator(seed, seeding.AVAILABILITY, client)
    # The uniform numbers first: how many numbers a Beta takes depends on its parameters.
    uniform = rng.random(modalities)
    return uniform < rng.beta(*beta)


def operate(chain: Pair, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """s_i of a two-state Markov chain along recordings, each started from the stationary distribution.

    State 1 is working. P(0 -> 0) = p00 and P(1 -> 1) = p11, so a share (1 - p11) / (2 - p00 - p11) is missing, failures
    last 1 / (1 - p00) samples on average, and samples t apart have correlation (p00 + p11 - 1)^t (Flux, Appendix B).

    Args:
        chain: p00 and p11, in [0, 1], not both 1.
        starts: Bool `[s]`, True at the first sample of each recording; the first sample is one.
        rng: One uniform number is drawn for each sample.

    Returns:
        Bool `[s]`.
    """
    p00, p11 = chain
    low, high = sorted((1 - p00, p11))
    uniform = rng.random(len(starts))
    # Below both thresholds the next state is 1 whatever the last was, above both it is 0; in between it stays where
    # p00 + p11 > 1 and changes where not.
    state = np.where(starts, uniform < (1 - p00) / (2 - p00 - p11), uniform < low)
    position = np.arange(len(starts))
    last = np.maximum.accumulate(np.where(starts | (uniform < low) | (uniform >= high), position, 0))
    changes = (position - last) % 2 == 1 if p00 + p11 < 1 else np.zeros(len(starts), bool)
    return state[last] ^ changes


def recordings(data: MultimodalDataset, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples along its recordings: those of one natural client, in their order, are one.

    Args:
        data: The data set.
        samples: Sample indices `[s]`, ascending.

    Returns:
        The samples in that order, and bool `[s]`, True where a recording starts. Without `order`, as they are.
    """
    starts = np.arange(len(samples)) == 0
    if data.order is None:
        return samples, starts
    source = np.zeros(data.size, np.int64) if data.client is None else np.unique(data.client, return_inverse=True)[1]
    along = samples[np.lexsort((data.order[samples], source[samples]))]
    starts[1:] = np.diff(source[along]) != 0
    return along, starts


def _restore(drawn: np.ndarray, held: np.ndarray, present: np.ndarray, client: int, seed: int) -> np.ndarray:
    """What a client has, bool `[M]`, with one modality given back where none of it is `present` in its samples."""
    candidates = np.flatnonzero(held & present)
    if (drawn & present).any() or not candidates.size:
        return drawn
    kept = drawn.copy()
    kept[seeding.generator(seed, seeding.CLIENT_REPAIR, client).choice(candidates)] = True
    return kept


def _one_of(candidates: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One True of each row that has any, bool `[s, M]`; `uniform` in [0, 1) chooses."""
    rank = np.cumsum(candidates, axis=1)
    return candidates & (rank == 1 + (uniform * rank[:, -1]).astype(np.int64)[:, None])
