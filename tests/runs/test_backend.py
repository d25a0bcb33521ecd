"""What JAX is told before it is first used; in processes of their own, since it can be told only once."""

import os
import subprocess
import sys

import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.runs import backend

SCRIPT = """
import os
from fedjax_mm.runs.backend import prepare_backend
prepare_backend({devices!r})
import jax
print(jax.device_count(), os.environ.get("NPROC"), jax.config.jax_compilation_cache_dir)
"""


def answer(devices, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "NPROC"))}
    words = [sys.executable, "-c", SCRIPT.format(devices=devices)]
    done = subprocess.run(words, env=kept | environment, check=True, capture_output=True, text=True)
    count, threads, cache = done.stdout.split()
    return int(count), threads, cache


def test_cores_become_devices_with_a_thread_each_and_programs_are_kept(tmp_path):
    count, threads, cache = answer(3, XDG_CACHE_HOME=str(tmp_path))
    assert (count, threads) == (3, "3")
    assert cache.startswith(f"{tmp_path}/fedjax_mm/xla-")


def test_what_the_user_has_set_stays(tmp_path):
    mine = {"JAX_NUM_CPU_DEVICES": "2", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    assert answer(5, **mine) == (2, "None", str(tmp_path))
    assert answer(1, JAX_ENABLE_COMPILATION_CACHE="0")[2] == "None"
    assert answer(1, NPROC="7")[1] == "7"


@pytest.mark.parametrize("devices", [0, -1, "many", "1.5"])
def test_a_wrong_number_is_refused(devices):
    with pytest.raises(UsageError, match="devices is"):
        backend._count(devices)
