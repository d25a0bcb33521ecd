"""Which evaluated round a client's reported numbers come from."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedjax_mm.errors import choose
from fedjax_mm.metrics.classification import classification
from fedjax_mm.metrics.evaluation import EVALUATED, Evaluation, Sums
from fedjax_mm.metrics.weighting import populations

KINDS = ("global", "personal")
RULES = ("validation", "last", "best_test", "client_best")
SCORES = {"accuracy": "pooled", "macro_f1": "client_mean"}
"""The metrics that can select, and the population a seed's score is taken over."""


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """What every client of every seed is reported with.

    Attributes:
        index: The evaluation chosen, 0..E-1, integers `[S, K]`.
        rounds: Its round, int64 `[S, K]`.
        sums: Sums at that round, leading axes `[S, K, 2]` (2: `EVALUATED`).
    """

    index: np.ndarray
    rounds: np.ndarray
    sums: Sums

    @property
    def confusion(self) -> np.ndarray:
        """Confusion counts at that round, int64 `[S, K, 2, C, C]`."""
        return self.sums.confusion

    @property
    def loss(self) -> np.ndarray:
        """Sums of cross-entropies in nats at that round, float64 `[S, K, 2]`."""
        return self.sums.loss


def select(
    evaluations: Sequence[Evaluation], rule: str, *, kind: str, predictor: int = 0, metric: str = "accuracy"
) -> Selection:
    """Chooses a round for each client and gathers the counts there.

    The rules: `last`, the last evaluated round. `validation`, for a method of `global` kind the one round of a seed
    with the best validation score, for a `personal` one each client's own, as in `client_best`. `client_best`, each
    client's own best validation round, whatever the kind. `best_test`, the round of a seed with the best score on the
    test samples: optimistic, what some published numbers are; never to be reported without saying so.

    A seed's score is the pooled accuracy or the client mean of macro-F1; a client's its own accuracy or macro-F1. Equal
    scores are decided by the lower loss on the same samples, then by the earlier round. A round whose score or loss is
    NaN is never chosen as best; where that leaves none (no validation samples, or a loss that was never finite), the
    last round is taken, so that every rule reports the same clients.

    Args:
        evaluations: At least one, in ascending order of rounds, of one method.
        rule: One of `RULES`.
        kind: The method's, one of `KINDS`.
        predictor: Which predictor selects and is gathered, 0..P-1.
        metric: What selects, `"accuracy"` or `"macro_f1"`.

    Returns:
        The rounds and what was counted there.

    Raises:
        UsageError: `rule`, `kind` or `metric` is not a valid name.
    """
    choose("selection rule", rule, RULES)
    choose("selection metric", metric, SCORES)
    own = choose("kind of method", kind, KINDS) == "personal" if rule == "validation" else rule == "client_best"
    sums = [evaluation.sums.map(lambda leaf: leaf[predictor]) for evaluation in evaluations]
    seeds, clients = sums[0].loss.shape[:2]
    if rule == "last":
        index = np.full((seeds, clients), len(evaluations) - 1)
    else:
        split = EVALUATED.index("test" if rule == "best_test" else "validation")
        scored = [_scores(each.map(lambda leaf: leaf[:, :, split]), metric, own=own) for each in sums]
        scores, ties = (np.stack(part) for part in zip(*scored, strict=True))
        index = np.broadcast_to(best(scores, ties) if own else best(scores, ties)[:, None], (seeds, clients))
    chosen = Sums(*(_gather(index, leaves) for leaves in zip(*sums, strict=True)))
    rounds = np.array([evaluation.round for evaluation in evaluations], np.int64)
    return Selection(index=index, rounds=rounds[index], sums=chosen)


def _gather(index: np.ndarray, leaves: Sequence[np.ndarray]) -> np.ndarray:
    """Of E arrays `[S, K, ...]` the entries of the one that `index` `[S, K]` says."""
    gathered = np.empty_like(leaves[0])
    for position, leaf in enumerate(leaves):
        gathered[index == position] = leaf[index == position]
    return gathered


def _scores(sums: Sums, metric: str, *, own: bool) -> tuple[np.ndarray, np.ndarray]:
    """Score and mean loss of each client, float64 `[S, K]`, or of each seed, float64 `[S]`, in one round."""
    if own:
        values = classification(sums)
        return values[metric], values["loss"]
    values = populations(sums)
    return values[f"{metric}/{SCORES[metric]}"], values["loss/pooled"]


def best(score: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """The position of the best of E candidates.

    Args:
        score: What counts, higher is better, float64 `[E, ...]`.
        loss: What decides among equal scores, lower is better, float64 `[E, ...]`.

    Returns:
        Position 0..E-1, int64 `[...]`: the first candidate with the highest score and, among those, the lowest loss.
        A candidate with NaN in either is left out; if all are, the last position.
    """
    candidate = ~(np.isnan(score) | np.isnan(loss))
    candidate &= score == np.where(candidate, score, -np.inf).max(0)
    candidate &= loss == np.where(candidate, loss, np.inf).min(0)
    return np.where(candidate.any(0), candidate.argmax(0), len(score) - 1)
