"""Finding data sets, the embedded ones and every file of the shared folder."""

import hashlib
import pathlib
import re

import numpy as np
import pytest

from fedjax_mm.data import available_names, embedded_names, load_data
from fedjax_mm.data.embedded import FOLDER, embedded_notes, embedded_path
from fedjax_mm.errors import UsageError


def test_mfeat():
    data = load_data("mfeat")
    shapes = {modality: array.shape for modality, array in data.inputs.items()}
    assert shapes == {
        "fourier": (2000, 76),
        "profile": (2000, 216),
        "karhunen": (2000, 64),
        "pixel": (2000, 240),
        "zernike": (2000, 47),
        "morphology": (2000, 6),
    }
    assert set(data.kinds.values()) == {"vector"} and data.observed.all() and data.observed.shape == (2000, 6)
    assert data.labels.dtype == np.int32 and np.bincount(data.labels).tolist() == [200] * 10
    assert data.classes == tuple("0123456789")
    assert data.client is data.order is data.group is None
    assert (data.name, data.source, data.label) == ("mfeat", "mfeat", "y")
    assert data.licence.startswith("CC BY 4.0") and "Duin" in data.origin
    assert data.sha256 == hashlib.sha256(embedded_path("mfeat").read_bytes()).hexdigest()


def test_every_embedded_set_has_licence_and_origin():
    assert embedded_names() == ("alzheimer333", "mfeat", "omics92", "spar")
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 6 * 2**20
    assert {path.suffix for path in FOLDER.iterdir()} == {".npz", ".md"}
    for name in embedded_names():
        assert set(embedded_notes(name)) == {"licence", "origin"}
        assert "Changes: " in embedded_path(name).with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "shapes", "counts", "licence"),
    [
        (
            "spar",
            {"accelerometer": (100, 3), "gyroscope": (100, 3)},
            [254, 389, 396, 363, 366, 294, 307],
            "BSD 3-Clause",
        ),
        ("alzheimer333", {"proteins": (124,), "csf": (3,), "genotype": (3,), "demographics": (2,)}, [242, 91], "MIT"),
        (
            "omics92",
            {"rna": (198,), "copy_number": (198,), "protein": (33,), "mutations": (97,), "mirna": (471,)},
            [20, 27, 32],
            "Artistic-2.0",
        ),
    ],
)
def test_embedded_sets_for_missing_modalities(name, shapes, counts, licence):
    data = load_data(name)
    assert {modality: array.shape[1:] for modality, array in data.inputs.items()} == shapes
    assert np.bincount(data.labels).tolist() == counts and data.source == name
    assert data.licence.startswith(licence) and data.origin
    assert data.observed.all() == (name != "omics92") and data.observed.any(1).all()
    assert (data.order is not None) == (data.client is not None) == (data.group is not None) == (name == "spar")


# n, classes, modalities, clients: from the description of the files
SHARED = {
    "mfeat": (2000, 10, 6, None),
    "spar": (2369, 7, 2, 10),
    "alzheimer333": (333, 2, 4, None),
    "omics92": (79, 3, 5, None),
    "emoji": (1849, 9, 7, None),
    "umafall": (746, 15, 9, 19),
    "wisdm8": (1632, 12, 4, 8),
    "heart4": (920, 2, 5, 4),
    "cremad_votes": (7442, 6, 2, 91),
    "avdigits": (600, 10, 2, 6),
    "reuters1200": (1200, 6, 5, None),
    "leaves100": (1600, 100, 3, None),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_file(shared_data, name):
    path = shared_data(name)
    data = load_data(path)
    clients = None if data.client is None else len(set(data.client))
    assert (data.size, len(data.classes), len(data.modalities), clients) == SHARED[name]
    with np.load(path) as file:
        for column, modality in enumerate(data.modalities):
            np.testing.assert_array_equal(data.inputs[modality], file[f"x.{modality}"])
            assert data.inputs[modality].dtype == file[f"x.{modality}"].dtype
            assert data.kinds[modality] == str(file[f"type.{modality}"])
            mask = file[f"observed.{modality}"] if f"observed.{modality}" in file else np.ones(data.size, bool)
            np.testing.assert_array_equal(data.observed[:, column], mask)
        np.testing.assert_array_equal(data.labels, file["y"])
        assert data.classes == tuple(file["classes"].tolist())
        assert (data.order is not None) == ("order" in file)
        assert (data.group is not None) == ("group" in file or "series" in file)
    assert data.name == name and data.source == str(path.resolve())


def test_shared_label_arrays(shared_data):
    data = load_data(shared_data("emoji"), label="subcategory")
    assert len(data.classes) == 98 and list(data.classes) == sorted(data.classes)
    assert set(data.other_labels) == {"y"} and data.other_labels["y"][0] == "Symbols"
    side = load_data(shared_data("spar"), label="side")
    assert len(side.classes) == 2 and set(side.other_labels) == {"y"}
    with pytest.raises(UsageError, match="did you mean subcategory"):
        load_data(shared_data("emoji"), label="sub_category")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """`$FEDJAX_MM_DATA` with `sensors` as a file, `clinic` as a folder of CSV files and a file that is no data."""
    home = tmp_path / "home"
    (home / "clinic").mkdir(parents=True)
    (home / "clinic" / "labels.csv").write_text("y\na\nb\n")
    (home / "clinic" / "blood.csv").write_text("1\n2\n")
    np.savez(home / "sensors.npz", **{"x.a": np.eye(2), "y": np.arange(2)})
    (home / "notes.txt").write_text("none")
    monkeypatch.setenv("FEDJAX_MM_DATA", str(home))
    return home


def test_names_in_the_folder_of_the_variable(folder):
    assert set(available_names()) == {*embedded_names(), "sensors", "clinic"}
    sensors, clinic = load_data("sensors"), load_data("clinic")
    assert (sensors.name, sensors.source) == ("sensors", "sensors") and sensors.size == 2
    assert (clinic.name, clinic.source, clinic.modalities) == ("clinic", "clinic", ("blood",))


def test_path_as_text_and_from_the_working_directory(folder, monkeypatch):
    monkeypatch.delenv("FEDJAX_MM_DATA")
    monkeypatch.chdir(folder)
    for source in ("sensors.npz", "./sensors.npz", str(folder / "sensors.npz"), pathlib.Path("sensors.npz")):
        data = load_data(source)
        assert data.source == str(folder / "sensors.npz") and data.name == "sensors"
        assert load_data(data.source).sha256 == data.sha256
    assert load_data("clinic").source == str(folder / "clinic")
    monkeypatch.chdir(folder / "clinic")
    assert load_data(".").name == "clinic"


def test_unknown_names(folder, monkeypatch):
    with pytest.raises(UsageError, match=r"unknown data set 'mfaet'; did you mean mfeat.*or give a path"):
        load_data("mfaet")
    with pytest.raises(UsageError, match=r"did you mean sensors.*FEDJAX_MM_DATA"):
        load_data("sensor")
    monkeypatch.delenv("FEDJAX_MM_DATA")
    with pytest.raises(UsageError, match=f"valid: {', '.join(embedded_names())};.*FEDJAX_MM_DATA"):
        load_data("qqqqqq")
    (folder / "gone.npz").symlink_to(folder / "nothing.npz")
    monkeypatch.setenv("FEDJAX_MM_DATA", str(folder))
    with pytest.raises(UsageError, match="no file or folder gone"):
        load_data("gone")


def test_unknown_paths(tmp_path):
    for source in (tmp_path / "none.npz", str(tmp_path / "none"), pathlib.Path("none"), "none.mat"):
        with pytest.raises(UsageError, match=f"there is no file or folder {source}"):
            load_data(source)
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(UsageError, match=r"table\.xlsx is not a data set; one is an \.npz file"):
        load_data(tmp_path / "table.xlsx")


def test_tensorflow_datasets_are_not_built():
    with pytest.raises(UsageError, match=r"tfds:cifar100.*tensorflow-datasets cannot be loaded yet"):
        load_data("tfds:cifar100")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_truncated_file(tmp_path, share):
    content = embedded_path("mfeat").read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError, match=rf"{re.escape(str(path))} cannot be read as an \.npz file"):
        load_data(path)


def test_damaged_array(tmp_path):
    path = tmp_path / "damaged.npz"
    np.savez(path, **{"x.a": np.ones((100, 10)), "y": np.arange(100) % 2})
    content = bytearray(path.read_bytes())
    content[4000:4100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"'x\.a' in .* cannot be read, the file is damaged"):
        load_data(path)


def test_files_of_another_format(tmp_path):
    path = tmp_path / "other.npz"
    path.write_text("not a zip file")
    with pytest.raises(UsageError, match=r"cannot be read as an \.npz file"):
        load_data(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(UsageError, match="holds a single array"):
        load_data(path)
