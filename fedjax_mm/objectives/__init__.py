"""Pure functions over arrays, one equation each; usable alone."""

from fedjax_mm.objectives.prototypes import class_means, nearest_prototype_scores, pull_to_prototype
from fedjax_mm.objectives.supervised import cross_entropy

__all__ = ["class_means", "cross_entropy", "nearest_prototype_scores", "pull_to_prototype"]
