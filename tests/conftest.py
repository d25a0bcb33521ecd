"""Shared by all tests: `marathon` tests run only when asked for by name, and compilation is made quick.

XLA's optimisations are off in the tests' own process: compiling takes most of their time, and what they check does not
depend on them. Tests that start processes of their own (the command line, resuming after a kill) run with all of them.
"""

import pathlib

import jax
import pytest

jax.config.update("jax_disable_most_optimizations", True)

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(config, items):
    if "marathon" in (config.option.markexpr or ""):
        return
    kept = [item for item in items if item.get_closest_marker("marathon") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def shared_data():
    """The folder of data sets that are not embedded, or a skip that says so."""

    def find(name: str) -> pathlib.Path:
        path = SHARED / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"{name}.npz is not embedded and {SHARED} does not hold it")
        return path

    return find
