import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.data import save_npz

SETTINGS = {"rounds": 4, "eval_every": 2, "seeds": (3, 7), "lr": 0.05}
TABLES = ("rounds.csv", "clients.csv", "subsets.csv", "summary.json")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """60 samples of three classes in two modalities of three features, from a file."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    inputs = {name: rng.normal(size=(60, 3)) + np.eye(3)[y] * 2 for name in ("a", "b")}
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    save_npz(fmm.from_arrays(inputs, y), path)
    return fmm.load_data(path)


@pytest.fixture(scope="session")
def federation(data):
    """Three clients with every modality: one client shape under the shared model, so that compiling is quick."""
    return fmm.federate(data, partition="all", clients=3)


@pytest.fixture(scope="session")
def straight(federation, tmp_path_factory):
    """A run of `local` that nothing disturbed, on disk."""
    return fmm.simulate("local", federation, out=tmp_path_factory.mktemp("runs") / "straight", **SETTINGS)


@pytest.fixture(scope="session")
def both(federation, tmp_path_factory):
    """A comparison, on disk."""
    out = tmp_path_factory.mktemp("runs") / "both"
    return fmm.compare(["local", "fedproto"], federation, out=out, **SETTINGS)


@pytest.fixture
def tables():
    """The bytes of the files that must be the same bits for the same settings."""
    return lambda path: {name: (path / name).read_bytes() for name in TABLES}


@pytest.fixture
def settings():
    return dict(SETTINGS)
