"""Shared by all tests: `marathon` tests run only when asked for by name, and compilation is made quick.

XLA's optimisations are off: compiling takes most of the tests' time, and what they check does not depend on them.
Processes that tests start have them unless a test says otherwise, but all use XLA's older, quicker code generator.
All share compiled programs in a temporary folder. A test's process has eight devices, whatever the machine has, and
threads to spare, so that methods that call LAPACK are divided too.
"""

import os
import pathlib
import shutil
import tempfile

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_disable_most_optimizations", True)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
os.environ["NPROC"] = "32"
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_compilation_cache", True)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# The first process makes the folder, and the workers it starts inherit the variable.
PROGRAMS = None if "JAX_COMPILATION_CACHE_DIR" in os.environ else tempfile.mkdtemp(prefix="fedjax-mm-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", PROGRAMS or "")

# The test command gives one answer; `--hypothesis-profile=explore` draws new examples each time.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("repeatable")

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_sessionfinish():
    if PROGRAMS:
        shutil.rmtree(PROGRAMS, ignore_errors=True)


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
