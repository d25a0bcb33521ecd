"""What this process has used."""

import resource
import sys


def peak_memory() -> int:
    """The largest memory this process has used so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
