"""What exists: multimodal data sets, whatever file they come from."""

from fedjax_mm.data.dataset import KINDS, MultimodalDataset
from fedjax_mm.data.describe import Description, describe
from fedjax_mm.data.embedded import embedded_names
from fedjax_mm.data.files import save_npz
from fedjax_mm.data.memory import from_arrays
from fedjax_mm.data.sources import available_names, load_data

__all__ = [
    "KINDS",
    "Description",
    "MultimodalDataset",
    "available_names",
    "describe",
    "embedded_names",
    "from_arrays",
    "load_data",
    "save_npz",
]
