"""fedjax_mm: a vectorized simulator for multimodal federated learning."""

from fedjax_mm import methods, objectives
from fedjax_mm.data import MultimodalDataset, describe, from_arrays, load_data
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation import Federation, federate

__version__ = "0.1.0"

__all__ = [
    "Federation",
    "MultimodalDataset",
    "RunError",
    "UsageError",
    "describe",
    "federate",
    "from_arrays",
    "load_data",
    "methods",
    "objectives",
]
