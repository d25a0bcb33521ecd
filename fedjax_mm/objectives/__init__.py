"""Pure functions over arrays, one equation each; usable alone."""

from fedjax_mm.objectives.supervised import cross_entropy

__all__ = ["cross_entropy"]
