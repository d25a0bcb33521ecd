import numpy as np

from fedjax_mm.metrics.subsets import Subsets, at_rounds, group_count, group_name, of_seeds, pooled, sparse


def test_six_modalities_have_patterns_seven_have_numbers():
    assert [group_count(m) for m in (1, 3, 6, 7)] == [2, 8, 64, 8]
    assert [group_name(group, ("x", "y", "z")) for group in (1, 4, 6, 7)] == ["x", "z", "y+z", "x+y+z"]
    assert group_name(3, tuple("abcdefg")) == "3 of 7"


def test_cells_without_samples_are_not_kept():
    dense = np.zeros((2, 2, 4, 3, 2), int)
    dense[0, 1, 3], dense[1, 0, 1], dense[1, 1, 3] = [[2, 0], [1, 1], [1, 0]], [[0, 1], [1, 0], [0, 0]], 1
    subsets = sparse(dense)
    assert subsets.cells.tolist() == [[0, 1, 3], [1, 0, 1], [1, 1, 3]]
    np.testing.assert_array_equal(subsets.counts[0], dense[0, 1, 3])
    second = of_seeds(subsets, 1, 2)
    assert second.cells.tolist() == [[0, 0, 1], [0, 1, 3]]
    np.testing.assert_array_equal(second.counts, subsets.counts[1:])
    # Seed 0: two of class 0, one of them right, one taken for class 1. F1 2/3 and 0.
    assert list(pooled(of_seeds(subsets, 0, 1), 2)) == [(0, 3, 2, 0.5, 1 / 3)]


def test_each_client_is_taken_at_its_own_round():
    cells = np.array([[0, 0, 1], [0, 1, 1], [0, 1, 2]])
    rounds = [Subsets(cells, np.full((3, 3, 1), value)) for value in (1, 10, 100)]
    chosen = at_rounds(rounds, np.array([[2, 0]]))
    kept = {tuple(cell): int(counts[0, 0]) for cell, counts in zip(chosen.cells.tolist(), chosen.counts, strict=True)}
    assert kept == {(0, 0, 1): 100, (0, 1, 1): 1, (0, 1, 2): 1}
    assert [row[:3] for row in pooled(chosen, 2)] == [(0, 1, 101), (0, 2, 1)]


def test_of_nobody_there_is_nothing():
    empty = sparse(np.zeros((1, 2, 4, 3, 2), int))
    assert list(pooled(empty, 2)) == []
