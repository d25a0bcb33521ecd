"""Data sets made in memory, written, read again and described."""

import dataclasses
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_mm.data import KINDS, MultimodalDataset, describe, from_arrays, load_data, save_npz
from fedjax_mm.errors import UsageError

INPUTS = {
    "vector": np.arange(8.0).reshape(4, 2),
    "image": np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3),
    "audio": np.ones((4, 5, 2), np.float16),
    "words": np.array(["a", "", "ccc", "d\né"]),
}
OPTIONS = {
    "name": "set",
    "kinds": {"audio": "audio"},
    "observed": {"image": [True, True, False, True]},
    "client": ["k", "k", "l", "l"],
    "order": [1, 0, 0, 1],
    "group": ["g", "g", "g", "h"],
    "other_labels": {"mood": np.array([3, 7, 3, 3]), "file": np.array(["u", "v", "w", "v"])},
    "licence": "CC0",
    "origin": "made up",
}


def make(**changes):
    return from_arrays(INPUTS, ["yes", "no", "no", "yes"], **(OPTIONS | changes))


def same(one: MultimodalDataset, other: MultimodalDataset, *, but=("source", "sha256")):
    for field in dataclasses.fields(MultimodalDataset):
        if field.name in but:
            continue
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, dict):
            assert set(left) == set(right), field.name
            for key in left:
                np.testing.assert_array_equal(left[key], right[key], strict=not isinstance(left[key], str))
        else:
            np.testing.assert_array_equal(left, right, err_msg=field.name)


def test_from_arrays():
    data = make()
    assert data.kinds == {"vector": "vector", "image": "image", "audio": "audio", "words": "language"}
    assert data.classes == ("no", "yes") and data.labels.tolist() == [1, 0, 0, 1]
    assert data.observed.tolist() == [[True] * 4, [True] * 4, [True, False, True, True], [True] * 4]
    assert data.source == "" and len(data.sha256) == 64


def test_from_arrays_takes_lists_and_pandas_columns():
    frame = pd.DataFrame({"a": [1.0, 2.0], "who": ["k", "l"], "y": ["no", "yes"]})
    data = from_arrays({"a": frame[["a"]]}, frame["y"], client=frame["who"], classes=("yes", "no"))
    assert data.labels.tolist() == [1, 0] and data.client is not None and data.client.tolist() == ["k", "l"]


def test_from_arrays_errors():
    with pytest.raises(UsageError, match=r"'x.vector' in set has shape \(4, 2\).* 5 labels"):
        from_arrays({"vector": INPUTS["vector"]}, [0, 1, 0, 1, 0], name="set")
    with pytest.raises(UsageError, match="cannot be named 'client'"):
        make(other_labels={"client": [0, 1, 0, 1]})
    with pytest.raises(UsageError, match="did you mean audio"):
        make(kinds={"audoi": "audio"})
    with pytest.raises(UsageError, match="arrays has no modality"):
        from_arrays({}, [0, 1])


def test_digest_is_of_the_content():
    digest = make().sha256
    wide = {**INPUTS, "words": INPUTS["words"].astype("<U40"), "vector": INPUTS["vector"].astype(">f8")}
    assert from_arrays(wide, ["yes", "no", "no", "yes"], **OPTIONS).sha256 == digest
    assert make(kinds=None).sha256 != digest
    assert make(client=["k", "k", "m", "m"]).sha256 != digest
    assert make(observed=None).sha256 != digest
    assert from_arrays(INPUTS, ["no", "no", "no", "yes"], **OPTIONS).sha256 != digest
    changed = {**INPUTS, "words": np.array(["a", "", "ccc", "d\ne"])}
    assert from_arrays(changed, ["yes", "no", "no", "yes"], **OPTIONS).sha256 != digest


def test_round_trip(tmp_path):
    data = make()
    save_npz(data, tmp_path / "set.npz")
    again = load_data(tmp_path / "set.npz")
    same(data, again)
    assert [path.name for path in tmp_path.iterdir()] == ["set.npz"]
    first = (tmp_path / "set.npz").read_bytes()
    save_npz(again, tmp_path / "set.npz")
    assert (tmp_path / "set.npz").read_bytes() == first


@pytest.mark.parametrize("label", ["mood", "file"])
def test_round_trip_with_another_label_array(tmp_path, label):
    save_npz(make(), tmp_path / "set.npz")
    data = load_data(tmp_path / "set.npz", label=label)
    save_npz(data, tmp_path / "set.npz")
    same(data, load_data(tmp_path / "set.npz", label=label))
    assert load_data(tmp_path / "set.npz").classes == ("no", "yes")


@pytest.mark.parametrize("name", ["mfeat", "heart4", "omics92", "emoji", "avdigits", "alzheimer333", "cremad_votes"])
def test_round_trip_of_shared_files(shared_data, tmp_path, name):
    data = load_data(shared_data(name))
    save_npz(data, tmp_path / f"{name}.npz")
    same(data, load_data(tmp_path / f"{name}.npz"))


@given(
    st.lists(st.integers(-5, 5), min_size=2, max_size=8).filter(lambda labels: len(set(labels)) > 1),
    st.sampled_from(KINDS),
    st.data(),
)
def test_round_trip_of_any_labels_and_masks(tmp_path_factory, labels, kind, draw):
    size = len(labels)
    mask = draw.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    text = kind == "language" and draw.draw(st.booleans())
    array = np.array([f"w{index}" for index in range(size)]) if text else np.ones((size, 2))
    data = from_arrays({"a": array}, labels, name="set", kinds={"a": kind}, observed={"a": mask})
    path = tmp_path_factory.mktemp("data") / "set.npz"
    save_npz(data, path)
    again = load_data(path)
    same(data, again)
    assert [again.classes[index] for index in again.labels] == [str(label) for label in labels]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    save_npz(make(), path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="disk full"):
        save_npz(make(licence="other"), path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["set.npz"]


def test_where_to_save(tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.npz"):
        save_npz(make(), tmp_path / "set.zip")
    with pytest.raises(UsageError, match="there is no folder"):
        save_npz(make(), tmp_path / "none" / "set.npz")


def test_saved_file_is_an_ordinary_compressed_npz(tmp_path):
    save_npz(make(), tmp_path / "set.npz")
    with np.load(tmp_path / "set.npz", allow_pickle=False) as file:
        assert file["y"].tolist() == [1, 0, 0, 1] and "observed.image" in file and "observed.words" not in file
    with zipfile.ZipFile(tmp_path / "set.npz") as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_DEFLATED}


def test_describe_by_hand():
    page = describe(make())
    assert page.modalities.loc["image"].to_dict() == {
        "kind": "image", "shape": "3×3", "dtype": "uint8", "observed": 0.75,
    }  # fmt: skip
    assert page.modalities.loc["words", ["shape", "dtype"]].tolist() == ["text", "string"]
    assert page.classes["samples"].to_dict() == {"no": 2, "yes": 2}
    assert page.clients is not None
    assert page.clients.to_dict("index") == {
        "k": {"samples": 2, "no": 1, "yes": 1},
        "l": {"samples": 2, "no": 1, "yes": 1},
    }
    assert page.facts["licence"] == "CC0" and page.facts["origin"] == "made up" and page.facts["group"] == "2"
    assert page.facts["other labels"] == "mood, file" and page.facts["sha256"] == make().sha256
    text = str(page)
    assert all(word in text for word in ("CC0", "3×3", "0.75", "samples: 4", "yes"))


def test_describe_without_clients_and_with_a_class_nobody_has():
    data = from_arrays({"a": np.eye(2)}, [0, 2], classes=("p", "q", "samples"))
    page = describe(data)
    assert page.clients is None and page.classes["samples"].to_dict() == {"p": 1, "q": 0, "samples": 1}
    assert page.facts["clients"] == "none" and page.facts["licence"] == "unknown"
    crowd = describe(from_arrays({"a": np.eye(2)}, [0, 2], classes=("p", "q", "samples"), client=["k", "k"]))
    assert crowd.clients is not None and crowd.clients.to_numpy().tolist() == [[2, 1, 0, 1]]
