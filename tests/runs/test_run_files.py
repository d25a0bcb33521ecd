import json

import numpy as np
import pandas as pd
import pytest

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.runs import files

COLUMNS = {"name": "str", "n": "int64", "value": "float64"}


def names(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def table():
    return pd.DataFrame({"name": ["NA", "", "a,b", "é"], "n": [1, 2, 3, 4], "value": [0.1 + 0.2, 1e-300, -0.0, 1 / 3]})


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"), files.replacing(path) as handle:
        handle.write(b"half")
        raise OSError("disk full")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_nothing_is_visible_before_the_write_is_complete(tmp_path):
    path = tmp_path / "file"
    with files.replacing(path) as handle:
        handle.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_files_are_as_readable_as_any_other(tmp_path):
    (tmp_path / "plain").touch()
    files.write_text(tmp_path / "text", "ü")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xbc"
    assert (tmp_path / "text").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_json_round_trip(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"b": None, "a": [0.1, "ü"]})
    assert list(files.read_json(path)) == ["schema_version", "b", "a"]
    assert json.loads(path.read_text(encoding="utf-8")) == {"schema_version": 1, "b": None, "a": [0.1, "ü"]}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_refuses_what_json_cannot_say(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"a": value})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_npz(tmp_path / "a.npz", {"a": value}, {})
    assert names(tmp_path) == []


def test_json_of_others_and_damaged_json(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UsageError, match="does not exist"):
        files.read_json(path)
    for text, problem in (("[1]", "no schema_version"), ('{"a": 1}', "no schema_version")):
        path.write_text(text)
        with pytest.raises(UsageError, match=problem):
            files.read_json(path)
    path.write_text('{"schema_version": 2}')
    with pytest.raises(UsageError, match="schema_version 2; this version reads 1"):
        files.read_json(path)
    files.write_json(path, {"a": [1, 2, 3]})
    whole = path.read_bytes()
    for end in range(len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(RunError, match="damaged"):
            files.read_json(path)
    path.write_bytes(b"\xff" + whole)
    with pytest.raises(RunError, match="damaged"):
        files.read_json(path)


def test_csv_round_trip_is_exact(tmp_path, table):
    path = tmp_path / "a.csv"
    rng = np.random.default_rng(0)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-300, 300, 2000)
    table = pd.concat([table, pd.DataFrame({"name": "x", "n": 5, "value": values})], ignore_index=True)
    files.write_csv(path, table)
    back = files.read_csv(path, COLUMNS)
    assert back["value"].to_numpy().tobytes() == table["value"].to_numpy().tobytes()
    assert back["name"].tolist() == table["name"].tolist()
    assert path.read_text(encoding="utf-8").splitlines()[:3] == [
        "name,n,value",
        "NA,1,0.30000000000000004",
        ",2,1e-300",
    ]
    assert b"\r" not in path.read_bytes()


def test_empty_tables_have_columns(tmp_path, table):
    path = tmp_path / "a.csv"
    files.write_csv(path, table.iloc[:0])
    assert files.read_csv(path, COLUMNS).dtypes.to_dict() == table.dtypes.to_dict()


def test_csv_of_others_and_damaged_csv(tmp_path, table):
    path = tmp_path / "a.csv"
    with pytest.raises(UsageError, match="does not exist"):
        files.read_csv(path, COLUMNS)
    files.write_csv(path, table)
    with pytest.raises(UsageError, match="columns name, n, value; expected name, n, other"):
        files.read_csv(path, {"name": "str", "n": "int64", "other": "str"})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        if whole[:end].endswith(b"\n"):
            assert len(files.read_csv(path, COLUMNS)) == whole[:end].count(b"\n") - 1
            continue
        with pytest.raises((RunError, UsageError)):
            files.read_csv(path, COLUMNS)


def test_npz_round_trip_is_exact_and_repeats(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([], np.int64), "c": np.array(["x", "yy"])}
    for name in ("one.npz", "two.npz"):
        files.write_npz(tmp_path / name, {"k": [1, None]}, arrays)
    header, back = files.read_npz(tmp_path / "one.npz")
    assert header == {"schema_version": 1, "arrays": ["a", "b", "c"], "k": [1, None]}
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, strict=True)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_npz_without_pickle(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        files.write_npz(tmp_path / "a.npz", {}, {"a": np.array([{}], object)})
    assert names(tmp_path) == []


def test_damaged_npz_is_never_read_wrongly(tmp_path):
    path = tmp_path / "a.npz"
    array = np.arange(20)
    files.write_npz(path, {"k": 1}, {"a": array})
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(RunError, match=r"a\.npz is damaged"):
            files.read_npz(path)
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        try:
            header, back = files.read_npz(path)
        except (RunError, UsageError):
            continue
        # Dates and permissions in the archive are not content.
        assert header["k"] == 1
        np.testing.assert_array_equal(back["a"], array, strict=True)


def test_npz_of_others(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    with pytest.raises(UsageError, match="no schema_version"):
        files.read_npz(tmp_path / "a.npz")
    with pytest.raises(UsageError, match="does not exist"):
        files.read_npz(tmp_path / "b.npz")
