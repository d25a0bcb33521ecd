import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.cli import main
from fedjax_mm.data import save_npz


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The path of 60 samples of three classes in two modalities of three features."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    inputs = {name: rng.normal(size=(60, 3)) + np.eye(3)[y] * 2 for name in ("a", "b")}
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    save_npz(fmm.from_arrays(inputs, y, client=y), path)
    return path


@pytest.fixture
def call(capsys):
    """Runs a command line: exit code, stdout, stderr."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
