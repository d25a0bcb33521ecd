"""Pure functions over arrays, one equation each; usable alone."""

from fedjax_mm.objectives.autoencoder import aggregate, init_autoencoder, project, reconstruction
from fedjax_mm.objectives.contrast import intermodal_contrast, model_contrast
from fedjax_mm.objectives.coupling import Sinkhorn
from fedjax_mm.objectives.features import align_features
from fedjax_mm.objectives.gromov import align_geometry, gromov_wasserstein, scaled_cost
from fedjax_mm.objectives.logits import align_logits, entropy, entropy_weights
from fedjax_mm.objectives.prototypes import class_means, nearest_prototype_scores, pull_to_prototype
from fedjax_mm.objectives.proximal import squared_distance
from fedjax_mm.objectives.supervised import balanced_cross_entropy, cross_entropy
from fedjax_mm.objectives.tempering import fuse_temperatures, temperature, tempered_cross_entropy, unimodal_loss

__all__ = [
    "Sinkhorn",
    "aggregate",
    "align_features",
    "align_geometry",
    "align_logits",
    "balanced_cross_entropy",
    "class_means",
    "cross_entropy",
    "entropy",
    "entropy_weights",
    "fuse_temperatures",
    "gromov_wasserstein",
    "init_autoencoder",
    "intermodal_contrast",
    "model_contrast",
    "nearest_prototype_scores",
    "project",
    "pull_to_prototype",
    "reconstruction",
    "scaled_cost",
    "squared_distance",
    "temperature",
    "tempered_cross_entropy",
    "unimodal_loss",
]
