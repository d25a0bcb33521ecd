"""What JAX is told before it is first used: cores as devices, and where compiled programs are kept."""

import hashlib
import os
import pathlib
import platform
from typing import Any

import jax
import platformdirs

from fedjax_mm.errors import UsageError
from fedjax_mm.process import usable_cores
from fedjax_mm.simulation.placement import THREADS

MOST_CORES = 8
"""By default no more cores become devices: each device has a copy of the data."""


def prepare_backend(devices: str | int | None = None) -> None:
    """Makes the cores of a CPU devices, and keeps compiled programs from one process to the next.

    What the user has set already (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`, `JAX_COMPILATION_CACHE_DIR`,
    `JAX_ENABLE_COMPILATION_CACHE`, `jax.config`) stays. Where JAX has been used before, its devices stay as they are.

    Args:
        devices: How many cores become devices, at least 1; None or `auto` for those this process may run on, up to 8.

    Raises:
        UsageError: It is not a number of at least 1.
    """
    if _config("jax_enable_compilation_cache") and not _config("jax_compilation_cache_dir"):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        # Setting up runs hundreds of small programs, which together take as long to compile as a large one.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    named = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if named or _config("jax_num_cpu_devices") > 0:
        return
    count = _count(devices)
    if count > 1:
        # The size of XLA's pool: with more threads than devices, work moves from core to core.
        os.environ.setdefault(THREADS, str(count))
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        # JAX is in use.
        return


def cache_directory() -> pathlib.Path:
    """Where compiled programs are kept for this user and kind of processor: they may use any of its instructions."""
    return platformdirs.user_cache_path("fedjax_mm", appauthor=False) / f"xla-{_processor()}"


def _config(name: str) -> Any:
    return getattr(jax.config, name)


def _count(devices: str | int | None) -> int:
    if devices in (None, "auto"):
        return min(usable_cores(), MOST_CORES)
    try:
        count = int(devices)
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"devices is {devices!r}, must be auto or an integer of at least 1")
    return count


def _processor() -> str:
    described = platform.machine() + platform.processor()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        described += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return hashlib.sha256(described.encode()).hexdigest()[:12]
