import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.metrics.evaluation import Evaluation, unrecorded
from fedjax_mm.metrics.selection import best, select

SIZES = np.array([2, 4, 10])


def evaluations(right, loss, rounds=(2, 4, 6)):
    """Two classes, all samples of class 0, `right` and `loss` `[R, S, K, 2]`, one predictor."""
    right, loss = np.asarray(right), np.asarray(loss, float)
    confusion = np.zeros((*right.shape, 2, 2), np.int64)
    confusion[..., 0, 0] = right
    confusion[..., 0, 1] = SIZES[:, None] - right
    return [
        Evaluation(number, ("main",), unrecorded(confusion[None, index], loss[None, index]))
        for index, number in enumerate(rounds)
    ]


# Rounds 2, 4, 6; seed 0 then 1; clients of 2, 4 and 10 samples; (validation, test).
RIGHT = [
    [[(2, 0), (1, 1), (5, 9)], [(0, 1), (4, 1), (6, 5)]],
    [[(1, 1), (4, 2), (6, 1)], [(1, 2), (3, 2), (6, 5)]],
    [[(0, 2), (2, 3), (9, 2)], [(2, 0), (2, 3), (6, 5)]],
]
LOSS = np.ones((3, 2, 3, 2))


def test_a_global_method_has_one_round_per_seed():
    # Pooled validation: seed 0: 8, 11, 11 of 16; seed 1: 10, 10, 10. Ties go to the lower loss, then the earlier round.
    assert select(evaluations(RIGHT, LOSS), "validation", kind="global").rounds.tolist() == [[4] * 3, [2] * 3]
    lower = LOSS.copy()
    lower[2, 0, 1, 0] = 0.5
    lower[1, 1, 2, 0] = 0.9
    assert select(evaluations(RIGHT, lower), "validation", kind="global").rounds.tolist() == [[6] * 3, [4] * 3]


def test_a_personal_method_has_a_round_per_client():
    chosen = select(evaluations(RIGHT, LOSS), "validation", kind="personal")
    assert chosen.rounds.tolist() == [[2, 4, 6], [6, 2, 2]]
    np.testing.assert_array_equal(chosen.confusion[0, :, 1, 0, 0], [0, 2, 2])
    np.testing.assert_array_equal(chosen.confusion[1, :, 0, 0, 0], [2, 4, 6])
    same = select(evaluations(RIGHT, LOSS), "client_best", kind="global")
    np.testing.assert_array_equal(same.rounds, chosen.rounds)
    np.testing.assert_array_equal(same.confusion, chosen.confusion)


def test_losses_are_gathered_with_the_counts():
    loss = np.arange(36.0).reshape(3, 2, 3, 2)
    chosen = select(evaluations(RIGHT, loss), "validation", kind="personal")
    np.testing.assert_array_equal(chosen.loss[0], [loss[0, 0, 0], loss[1, 0, 1], loss[2, 0, 2]])


def test_the_last_round_and_the_best_test_round():
    # T45: test, pooled: seed 0: 10, 4, 7; seed 1: 7, 9, 8.
    rounds = evaluations(RIGHT, LOSS)
    assert np.all(select(rounds, "last", kind="global").rounds == 6)
    assert select(rounds, "best_test", kind="personal").rounds.tolist() == [[2] * 3, [4] * 3]


def test_macro_f1_selects_by_the_client_mean():
    # All truth is class 0, so a client's macro-F1 is 2r/(r + n), halved once class 1 is predicted. Round 1 has the
    # better pooled accuracy (10 of 16 against 7), round 2 the better client mean ((1 + 1 + 1/11) / 3 against 1/3).
    right = np.zeros((2, 1, 3, 2), int)
    right[0, 0, :, 0] = [0, 0, 10]
    right[1, 0, :, 0] = [2, 4, 1]
    both = evaluations(right, np.ones(right.shape), rounds=(1, 2))
    assert np.all(select(both, "validation", kind="global").rounds == 1)
    assert np.all(select(both, "validation", kind="global", metric="macro_f1").rounds == 2)


@pytest.mark.parametrize("kind", ["global", "personal"])
def test_a_round_with_nan_loss_is_never_the_best(kind):
    # T111: the best round by accuracy has a NaN loss.
    right = np.zeros((3, 2, 3, 2), int)
    right[0] = 1
    right[1] = SIZES[:, None]
    loss = np.ones(right.shape)
    loss[1] = np.nan
    assert np.all(select(evaluations(right, loss), "validation", kind=kind).rounds == 2)


def test_one_diverged_client_does_not_move_the_others():
    right = np.array(RIGHT)
    loss = LOSS.copy()
    loss[:, 0, 1] = np.nan
    assert select(evaluations(right, loss), "client_best", kind="global").rounds.tolist() == [[2, 6, 6], [6, 2, 2]]


def test_infinite_losses_may_be_selected():
    loss = np.full((3, 2, 3, 2), np.inf)
    assert select(evaluations(RIGHT, loss), "validation", kind="personal").rounds.tolist() == [[2, 4, 6], [6, 2, 2]]


def test_best_by_hand():
    score = np.array([[0.5, np.nan, 0.3, np.nan], [0.7, 0.1, 0.3, 0.2], [0.7, 0.9, 0.3, 0.1]])
    loss = np.array([[0.1, 0.1, np.inf, 1.0], [0.9, 0.5, 0.2, np.nan], [0.8, np.nan, 0.2, np.nan]])
    assert best(score, loss).tolist() == [2, 1, 1, 2]


def test_names_are_checked():
    for arguments in ({"rule": "best"}, {"kind": "local"}, {"metric": "loss"}):
        with pytest.raises(UsageError, match="unknown"):
            select(evaluations(RIGHT, LOSS), **{"rule": "validation", "kind": "global", **arguments})
