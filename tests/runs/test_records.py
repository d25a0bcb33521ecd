import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.metrics.evaluation import Evaluation, Sums
from fedjax_mm.metrics.subsets import of_seeds, sparse
from fedjax_mm.runs import files
from fedjax_mm.runs.records import (
    CLIENT_COLUMNS,
    ROUND_COLUMNS,
    SUBSET_COLUMNS,
    MethodRecord,
    clients_table,
    extend,
    load,
    rounds_table,
    save,
    subsets_table,
    summary,
    until,
)

# Samples of the three clients, [K, (validation, test)]; the last has no test sample in seed 7.
SIZES = np.array([[[2, 4], [4, 2], [10, 5]], [[2, 4], [4, 2], [10, 0]]])
# Right answers in rounds 2, 4, 5: [R][S][K][(validation, test)].
RIGHT = np.array(
    [
        [[[2, 1], [1, 1], [5, 4]], [[0, 1], [4, 1], [6, 0]]],
        [[[1, 2], [4, 2], [6, 1]], [[1, 2], [3, 2], [6, 0]]],
        [[[0, 3], [2, 0], [9, 2]], [[2, 4], [2, 0], [5, 0]]],
    ]
)


def evaluation(number, right, loss):
    """Two predictors; the second one never right. All samples of class 0."""
    confusion = np.zeros((2, 2, 3, 2, 2, 2), np.int64)
    confusion[0, ..., 0, 0] = right
    confusion[0, ..., 0, 1] = SIZES - right
    confusion[1, ..., 0, 1] = SIZES
    # Each sample with confidence 3/4, in bin 11, and with a Brier score of 1/2.
    sizes = np.stack([SIZES, SIZES])
    right = confusion[..., 0, 0]
    bins, confidence = np.zeros((2, 2, 3, 2, 15, 2), np.int64), np.zeros((2, 2, 3, 2, 15))
    bins[..., 11, 0], bins[..., 11, 1], confidence[..., 11] = sizes - right, right, 0.75 * sizes
    sums = Sums(confusion, np.stack([loss, 2 * loss]), 0.5 * sizes, bins, confidence)
    return Evaluation(number, ("joint", "single"), sums, subsets(right[0, :, :, 1]))


def subsets(right):
    """Of each client's test samples, the first right ones have x alone, the others x and y."""
    dense = np.zeros((2, 3, 4, 3, 2), np.int64)
    tested = SIZES[..., 1]
    dense[..., 1, :, 0] = right[..., None]
    dense[..., 3, 0, 0], dense[..., 3, 1, 1] = tested - right, tested - right
    return sparse(dense)


EVALUATIONS = tuple(
    evaluation(number, right, SIZES * factor)
    for number, right, factor in zip((2, 4, 5), RIGHT, (0.75, 0.5, 0.25), strict=True)
)


def start(**changes):
    fields = {
        "name": "fedavg",
        "kind": "global",
        "task": "",
        "seeds": (3, 7),
        "clients": ("a", "b", "c"),
        "modalities": (("x", "x+y", "y"), ("x", "y", "x+y")),
        "names": ("x", "y"),
    }
    return MethodRecord(**(fields | changes))


def block(first, last):
    """Rounds first..last with a loss `ce` and a counter `skipped` whose weight is 0 in even rounds."""
    rounds = np.arange(first, last + 1)
    ce = (np.stack([rounds * 1.0, rounds * 2.0], -1), np.full((len(rounds), 2), 4.0))
    skipped = (np.ones((len(rounds), 2)), np.stack([rounds % 2, rounds % 2], -1).astype(float))
    evaluations = [each for each in EVALUATIONS if first <= each.round <= last]
    return evaluations, rounds, {"ce": ce, "skipped": skipped}


@pytest.fixture
def record():
    return extend(extend(extend(start(), *block(1, 2)), *block(3, 4)), *block(5, 5))


def value(table, **where):
    rows = table[np.logical_and.reduce([table[column] == wanted for column, wanted in where.items()])]
    return rows["value"].item() if len(rows) else None


def test_rounds_table_by_hand(record):
    table = rounds_table([record])
    assert table.dtypes.astype(str).to_dict() == ROUND_COLUMNS
    assert not table.duplicated(["seed", "round", "split", "metric"]).any()
    assert table["round"].is_monotonic_increasing
    of_round = {"seed": 3, "round": 4, "split": "test"}
    assert value(table, **of_round, metric="accuracy/pooled") == 5 / 11
    assert value(table, **of_round, metric="accuracy/pooled@joint") == 5 / 11
    assert value(table, **of_round, metric="accuracy/pooled@single") == 0.0
    assert value(table, **of_round, metric="accuracy/client_mean") == pytest.approx((2 / 4 + 2 / 2 + 1 / 5) / 3)
    assert value(table, **of_round, metric="loss/sample_weighted@single") == pytest.approx(1.0)
    # Seed 7: client c has no test sample.
    assert value(table, seed=7, round=4, split="test", metric="accuracy/client_mean") == pytest.approx((0.5 + 1) / 2)
    assert value(table, seed=7, round=3, split="train", metric="ce") == 6 / 4
    assert value(table, seed=7, round=3, split="train", metric="skipped") == 1.0
    assert value(table, seed=7, round=4, split="train", metric="skipped") is None
    # T33: nothing is reported of round 0 or of rounds that were not evaluated.
    assert set(table[table["split"] != "train"]["round"]) == {2, 4, 5}
    # T45b: every metric names its population.
    names = table[table["split"] != "train"]["metric"].str.partition("@")[0]
    assert set(names.str.split("/").str[1]) == {"pooled", "client_mean", "sample_weighted"}


def test_clients_table_by_hand(record):
    table = clients_table([record])
    assert table.dtypes.astype(str).to_dict() == CLIENT_COLUMNS
    row = table[
        (table["seed"] == 7)
        & (table["round"] == 5)
        & (table["client"] == "b")
        & (table["split"] == "validation")
        & (table["metric"] == "accuracy")
    ]
    assert row.to_dict("records") == [
        {
            "method": "fedavg",
            "task": "",
            "seed": 7,
            "round": 5,
            "client": "b",
            "split": "validation",
            "n": 4,
            "modalities": "y",
            "metric": "accuracy",
            "value": 0.5,
        }
    ]
    assert set(table["metric"]) == {
        f"{metric}{suffix}"
        for metric in ("accuracy", "macro_f1", "macro_f1_all", "loss", "ece", "brier")
        for suffix in ("", "@joint", "@single")
    }
    nobody = table[(table["seed"] == 7) & (table["client"] == "c")]
    assert set(nobody["split"]) == {"validation"}
    assert len(table) == 18 * 3 * (2 * 3 * 2 - 1)
    assert value(table, seed=3, round=2, client="a", split="test", metric="macro_f1") == pytest.approx(2 / 5 / 2)


def test_summary_of_a_global_method(record):
    result = summary([record])["fedavg"]
    # Pooled validation accuracy: seed 3: 8, 11, 11 of 16, the later with the lower loss; seed 7: 10, 10, 9.
    assert result["test/accuracy/pooled"]["per_seed"] == [5 / 11, 4 / 6]
    assert result["validation/accuracy/pooled"]["per_seed"] == [11 / 16, 10 / 16]
    assert result["test/accuracy/pooled"]["mean"] == pytest.approx((5 / 11 + 4 / 6) / 2)
    assert result["test/accuracy/pooled"]["std"] == pytest.approx(abs(5 / 11 - 4 / 6) / math.sqrt(2))
    assert result["test/accuracy/pooled:last"]["per_seed"] == [5 / 11, 4 / 6]
    assert result["test/accuracy/pooled:best_test"]["per_seed"] == [6 / 11, 4 / 6]
    # Own rounds: seed 3: 2, 4, 5; seed 7: 5, 2, 4 (tie with 2, lower loss).
    assert result["test/accuracy/pooled:client_best"]["per_seed"] == [(1 + 2 + 2) / 11, (4 + 1) / 6]
    assert result["test/accuracy/client_mean@joint:client_best"]["per_seed"] == pytest.approx(
        [(1 / 4 + 2 / 2 + 2 / 5) / 3, (1 + 0.5) / 2]
    )
    assert result["test/loss/pooled"]["per_seed"] == [0.25, 0.5]


@pytest.mark.parametrize("kind", ["global", "personal"])
def test_summary_names(record, kind):
    result = summary([dataclasses.replace(record, kind=kind)])["fedavg"]
    assert set(result) == {
        f"{split}/{metric}/{population}{predictor}{rule}"
        for split in ("validation", "test")
        for metric in ("accuracy", "macro_f1", "macro_f1_all", "loss", "ece", "brier")
        for population in ("pooled", "client_mean", "sample_weighted")
        for predictor in ("", "@joint", "@single")
        for rule in ("", ":last", ":best_test", ":client_best")
    }
    for name, entry in result.items():
        if "@" not in name:
            body, colon, rule = name.partition(":")
            assert result[f"{body}@joint{colon}{rule}"] == entry


def test_a_personal_method_is_summarised_at_each_clients_own_round(record):
    result = summary([dataclasses.replace(record, kind="personal")])["fedavg"]
    for name in ("test/accuracy/pooled", "test/loss/client_mean@single"):
        assert result[name] == result[f"{name}:client_best"]
    assert result["test/accuracy/pooled"]["per_seed"] == [5 / 11, 5 / 6]


def test_tasks_and_methods_stand_side_by_side(record):
    rest = [dataclasses.replace(record, task=task) for task in ("food", "car")]
    result = summary([*rest, dataclasses.replace(record, name="local")])
    assert list(result) == ["fedavg", "local"]
    assert result["fedavg"]["test/food.accuracy/pooled"] == result["local"]["test/accuracy/pooled"]
    assert "test/accuracy/pooled" not in result["fedavg"]
    assert rounds_table(rest)["task"].unique().tolist() == ["food", "car"]
    with pytest.raises(UsageError, match="two records of 'fedavg' with task 'car'"):
        summary([rest[1], rest[1]])


def test_one_seed_has_no_spread(record):
    pick = tuple(
        Evaluation(each.round, each.predictors, each.sums.map(lambda leaf: leaf[:, :1]), of_seeds(each.subsets, 0, 1))
        for each in EVALUATIONS
    )
    one = dataclasses.replace(record, seeds=(3,), evaluations=pick, modalities=record.modalities[:1], terms={})
    assert summary([one])["fedavg"]["test/accuracy/pooled"] == {"mean": 5 / 11, "std": None, "per_seed": [5 / 11]}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_losses_are_left_out_and_null(tmp_path, bad):
    # T111: the last round's losses are not finite in seed 7.
    loss = SIZES * 0.25
    loss[1] = bad
    better = SIZES.copy()
    evaluations = (*EVALUATIONS[:2], evaluation(5, better, loss))
    record = dataclasses.replace(start(), evaluations=evaluations, rounds=np.array([2, 4, 5]))
    result = summary([record])["fedavg"]
    assert result["test/loss/pooled:last"] == {"mean": None, "std": None, "per_seed": [0.25, None]}
    selected = [1.0, 4 / 6] if np.isnan(bad) else [1.0, 1.0]
    assert result["test/accuracy/pooled"]["per_seed"] == selected
    for table in (rounds_table([record]), clients_table([record])):
        assert np.isfinite(table["value"]).all()
        lost = table[(table["round"] == 5) & (table["seed"] == 7) & table["metric"].str.startswith("loss")]
        assert lost.empty
    files.write_json(tmp_path / "summary.json", result)


def test_before_the_first_evaluation():
    record = extend(start(), [], np.array([1]), {"ce": (np.array([[1.0, np.nan]]), np.ones((1, 2)))})
    assert summary([record]) == {"fedavg": {}}
    assert rounds_table([record]).to_dict("records") == [
        {"method": "fedavg", "task": "", "seed": 3, "round": 1, "split": "train", "metric": "ce", "value": 1.0}
    ]
    for table, columns in ((clients_table([record]), CLIENT_COLUMNS), (rounds_table([start()]), ROUND_COLUMNS)):
        assert table.dtypes.astype(str).to_dict() == columns
        assert table.empty


def written(folder, record):
    folder.mkdir()
    files.write_csv(folder / "rounds.csv", rounds_table([record]))
    files.write_csv(folder / "clients.csv", clients_table([record]))
    files.write_csv(folder / "subsets.csv", subsets_table([record]))
    files.write_json(folder / "summary.json", summary([record]))
    save(record, folder / "record.npz")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_record_same_bytes_also_after_saving(tmp_path, record):
    first = written(tmp_path / "a", record)
    assert set(first) == {"rounds.csv", "clients.csv", "subsets.csv", "summary.json", "record.npz"}
    assert written(tmp_path / "b", load(tmp_path / "a" / "record.npz")) == first
    rows = files.read_csv(tmp_path / "a" / "rounds.csv", ROUND_COLUMNS)
    pd.testing.assert_frame_equal(rows, rounds_table([record]), check_exact=True)
    assert json.loads(first["summary.json"])["schema_version"] == 1


@pytest.mark.parametrize("stop", [0, 2, 4, 5])
def test_a_resumed_record_has_each_row_once(tmp_path, record, stop):
    # T88: cut back to the checkpoint after `stop` rounds, then go on.
    save(record, tmp_path / "record.npz")
    resumed = until(load(tmp_path / "record.npz"), stop)
    assert resumed.rounds.tolist() == list(range(1, stop + 1))
    assert all(each.round <= stop for each in resumed.evaluations)
    if stop < 5:
        resumed = extend(resumed, *block(stop + 1, 5))
    assert written(tmp_path / "a", resumed) == written(tmp_path / "b", record)


def test_blocks_need_not_have_the_same_terms():
    record = extend(start(), [], np.array([1, 2]), {"ce": (np.ones((2, 2)), np.ones((2, 2)))})
    record = extend(record, [], np.array([3]), {"kd": (np.full((1, 2), 6.0), np.full((1, 2), 2.0))})
    table = rounds_table([record])
    assert table[["round", "seed", "metric", "value"]].to_numpy().tolist() == [
        [1, 3, "ce", 1.0],
        [1, 7, "ce", 1.0],
        [2, 3, "ce", 1.0],
        [2, 7, "ce", 1.0],
        [3, 3, "kd", 3.0],
        [3, 7, "kd", 3.0],
    ]


@pytest.mark.parametrize("rounds", [[5], [4, 6], [7, 7], [8, 7]])
def test_rounds_come_once_and_in_order(record, rounds):
    with pytest.raises(RunError, match="do not follow"):
        extend(record, [], np.array(rounds), {})


def test_evaluations_belong_to_their_block(record):
    for evaluations in ([EVALUATIONS[0]], [dataclasses.replace(EVALUATIONS[0], round=6)] * 2):
        with pytest.raises(RunError, match="were evaluated in the block of rounds"):
            extend(record, evaluations, np.array([6]), {})
    other = dataclasses.replace(EVALUATIONS[0], round=6, predictors=("single", "joint"))
    with pytest.raises(RunError, match="predictors changed"):
        extend(record, [other], np.array([6]), {})


@pytest.mark.parametrize("shape", [(), (2,), (1, 2, 3)])
def test_array_valued_terms_are_refused(shape):
    # T110.
    with pytest.raises(UsageError, match=r"term 'norms' has shape .* one number per round and seed"):
        extend(start(), [], np.array([1]), {"norms": (np.ones(shape), np.ones(shape))})


def test_calibration_by_hand(record):
    result = summary([record])["fedavg"]
    # One bin: the error is how far the accuracy is from the confidence, 3/4.
    assert result["test/ece/pooled"]["per_seed"] == pytest.approx([0.75 - 5 / 11, 0.75 - 4 / 6])
    assert result["test/ece/client_mean@joint:last"]["per_seed"] == pytest.approx(
        [(0.0 + 0.75 + 0.35) / 3, (0.25 + 0.75) / 2]
    )
    assert result["test/brier/sample_weighted@single:client_best"]["per_seed"] == [0.5, 0.5]
    table = clients_table([record])
    assert value(table, seed=3, round=2, client="c", split="test", metric="ece") == pytest.approx(0.8 - 0.75)


def test_subsets_at_the_selected_rounds(record):
    table = subsets_table([record])
    assert table.dtypes.astype(str).to_dict() == SUBSET_COLUMNS
    # Selected: round 5 in seed 3, where (3, 0, 2) of (4, 2, 5) are right, round 4 in seed 7: (2, 2) of (4, 2).
    rows = table[["seed", "modalities", "n", "accuracy", "macro_f1"]].to_numpy().tolist()
    assert rows == [[3, "x", 5, 1, 1], [3, "x+y", 6, 0, 0], [7, "x", 4, 1, 1], [7, "x+y", 2, 0, 0]]
    # Own rounds: 2, 4, 5 with (1, 2, 2) right; 5, 2, 4 with (4, 1) right.
    own = subsets_table([dataclasses.replace(record, kind="personal")])
    assert own[["seed", "modalities", "n"]].to_numpy().tolist() == [
        [3, "x", 5],
        [3, "x+y", 6],
        [7, "x", 5],
        [7, "x+y", 1],
    ]


def test_records_of_earlier_versions_have_no_calibration(tmp_path, record):
    save(record, tmp_path / "record.npz")
    header, arrays = files.read_npz(tmp_path / "record.npz")
    later = ("brier", "bins", "confidence", "cells", "counts")
    kept = {name: array for name, array in arrays.items() if not name.startswith(later)}
    files.write_npz(
        tmp_path / "old.npz", {name: header[name] for name in header if name not in ("arrays", "names")}, kept
    )
    old, new = load(tmp_path / "old.npz"), summary([record])["fedavg"]
    for name, entry in summary([old])["fedavg"].items():
        calibrated = name.split("/")[1] in ("ece", "brier")
        assert entry == ({"mean": None, "std": None, "per_seed": [None, None]} if calibrated else new[name])
    assert subsets_table([old]).empty
    # One that goes on from there knows only a part: none of it is reported.
    mixed = extend(until(old, 4), *block(5, 5))
    assert subsets_table([mixed]).empty


def test_files_that_are_not_a_record(tmp_path, record):
    with pytest.raises(UsageError, match="does not exist"):
        load(tmp_path / "none.npz")
    files.write_npz(tmp_path / "other.npz", {}, {})
    with pytest.raises(UsageError, match="not a method's record"):
        load(tmp_path / "other.npz")
    save(record, tmp_path / "a.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="damaged"):
        load(tmp_path / "a.npz")
