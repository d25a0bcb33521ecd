"""Runs: from methods, a federation and settings to results in memory and on disk."""

from fedjax_mm.runs.api import compare, rerun, resume, simulate, sweep
from fedjax_mm.runs.run import Run, load_run

__all__ = ["Run", "compare", "load_run", "rerun", "resume", "simulate", "sweep"]
