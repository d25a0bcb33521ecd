"""Gromov–Wasserstein solvers by name."""

from fedjax_mm.errors import choose
from fedjax_mm.objectives.coupling import Sinkhorn, Solver

SOLVERS = ("sinkhorn", "ott")


def make_solver(name: str) -> Solver:
    """The solver of that name, with its default limits.

    Args:
        name: `sinkhorn` (the package's own) or `ott` (OTT-JAX).

    Returns:
        The solver.

    Raises:
        UsageError: Unknown name.
    """
    if choose("solver", name, SOLVERS) == "sinkhorn":
        return Sinkhorn()
    # OTT takes seconds to import.
    from fedjax_mm.objectives.ott_solver import OTT

    return OTT()
