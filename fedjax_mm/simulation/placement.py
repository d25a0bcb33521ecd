"""Which executor suits a simulation."""

import os
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.process import usable_cores
from fedjax_mm.simulation.context import Context
from fedjax_mm.simulation.costs import module_bytes
from fedjax_mm.simulation.division import Division, divide
from fedjax_mm.simulation.executors import Debug, Executor, Lockstep, Map
from fedjax_mm.simulation.plans import lockstep_plans, shape_groups, single_plans
from fedjax_mm.simulation.settings import CHUNK

THREADS = "NPROC"
"""The environment variable that says how many threads XLA's pool on a CPU has; without it, as many as devices or cores.

A thread more than devices costs speed: it takes parts of their work from the core that has their parameters in its
cache. It is needed only by programs that wait for the pool, see `waits`.
"""
CACHE = 2**25
"""Bytes of parameters that had best step together on a CPU, where seeds can take turns."""
FEW_SHAPES = 4
"""Up to so many client shapes a CPU is faster client after client: a client's parameters stay in cache."""


def choose_executor(context: Context) -> tuple[str, str]:
    """The executor's name, and why.

    Args:
        context: The context; its settings may name an executor.

    Returns:
        `map`, `lockstep`, `chunk:N` or `debug`, and a sentence.
    """
    asked = context.settings.executor
    if asked != "auto":
        return ("lockstep" if asked == "vmap" else asked), "asked for"
    shapes = len(shape_groups(context.stores))
    backend = jax.default_backend()
    if backend != "cpu":
        return "lockstep", f"all lanes at once on {backend}"
    if shapes <= FEW_SHAPES:
        return "map", f"{shapes} client shape{'s' * (shapes != 1)} on a CPU: client after client"
    return "lockstep", f"{shapes} client shapes on a CPU: encoders of one shape step together"


def choose_division(
    context: Context, sizes: np.ndarray, name: str, waits: frozenset[str] = frozenset()
) -> tuple[Division | None, str]:
    """How lanes are divided among devices, and why.

    Args:
        context: The context; its settings may give a number of devices.
        sizes: Training samples of each lane, `[S, K]`.
        name: The executor's name.
        waits: Operations of the program that wait for threads of XLA's pool.

    Returns:
        The division, None for one device, and a few words.

    Raises:
        UsageError: More devices are asked for than there are, or several processes cannot share the lanes.
    """
    asked, present = context.settings.devices, jax.device_count()
    if asked is not None and asked > present:
        raise UsageError(
            f"devices is {asked}, but JAX has {present} ({jax.default_backend()}); on a CPU, --devices sets them"
        )
    processes, wanted = jax.process_count(), asked or present
    if name == "debug" or wanted == 1:
        return None, "one device"
    here = wanted // processes
    if waits and here > 1 and jax.default_backend() == "cpu" and _pool_threads(present) <= here:
        what = f"{', '.join(sorted(waits))} may wait for ever on {here} devices of as many threads"
        if processes > 1:
            raise UsageError(f"{what}; set {THREADS}={here + 1}")
        return None, f"one device: {what}, {THREADS}={here + 1} helps"
    division = divide(context.stores, sizes, wanted, multiple=processes)
    if division is None and processes > 1:
        raise UsageError(
            f"these lanes do not divide evenly over {processes} processes; as many seeds as processes do, or a multiple"
        )
    if division is None:
        return None, f"one device of {wanted}: these lanes do not divide evenly"
    return division, f"{division.by} over {division.devices} devices"


def _pool_threads(devices: int) -> int:
    """Threads of XLA's pool on a CPU: XLA counts the cores this process may run on, and ignores what is no number."""
    try:
        threads = int(os.environ.get(THREADS, ""))
    except ValueError:
        threads = usable_cores()
    return max(threads, devices)


def seeds_at_once(context: Context) -> int:
    """How many seeds had best step together: on a CPU, where clients have their own encoders, as many as fit a cache.

    What is averaged is read and summed once for all that step together, so there, and on accelerators, all do.
    """
    seeds = context.seeds
    if jax.default_backend() != "cpu" or context.stores["encoders"].shared("params"):
        return seeds
    total = sum(
        int((store.bucket == position).sum()) * size["params"]
        for name, store in context.stores.items()
        for position, size in enumerate(module_bytes(context, name))
    )
    return max(n for n in range(1, seeds + 1) if seeds % n == 0 and (n == 1 or n * total <= seeds * CACHE))


def make_executor(name: str, context: Context, sizes: np.ndarray, called: Sequence[str] = ()) -> Executor:
    """An executor for a context's cohort.

    Args:
        name: Its name, as `choose_executor` returns it.
        context: The context.
        sizes: Training samples of each lane, `[S, K]`.
        called: What to call each lane in an error.

    Returns:
        The executor.
    """
    if name == "lockstep":
        # An accelerator is better off with padding than with one class of clients waiting for the other.
        split = jax.default_backend() == "cpu"
        batch = context.settings.batch or 1
        cohort = min(context.cohort, context.clients)
        at_once = seeds_at_once(context)
        return Lockstep(lockstep_plans(context.stores, sizes, cohort, batch=batch, split=split, at_once=at_once))
    chunk = CHUNK.fullmatch(name)
    plans = tuple(single_plans(context.stores, sizes, int(chunk[1]) if chunk else 1))
    if name != "debug":
        return Map(plans, context.seeds, context.clients)
    return Debug(plans, context.seeds, context.clients, tuple(called))
