"""What this process may use and has used."""

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Iterator


def usable_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int:
    """The largest memory this process has used so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Leaves cycles of objects alone for a while: tracing makes many objects at once, almost all of which stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
