"""Who holds what: a data set divided among clients, and each client's samples into train, validation and test."""

from fedjax_mm.federation.corruption import corrupt, training_deviations
from fedjax_mm.federation.federate import federate
from fedjax_mm.federation.federation import SPLITS, Federation, IndexTable
from fedjax_mm.federation.modalities import EVEN, PARTITIONS
from fedjax_mm.federation.options import SPLIT_RULES
from fedjax_mm.federation.summary import overview

__all__ = [
    "EVEN",
    "PARTITIONS",
    "SPLITS",
    "SPLIT_RULES",
    "Federation",
    "IndexTable",
    "corrupt",
    "federate",
    "overview",
    "training_deviations",
]
