"""fedjax_mm: a vectorized simulator for multimodal federated learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedjax_mm import methods, objectives
    from fedjax_mm.data import MultimodalDataset, describe, from_arrays, load_data
    from fedjax_mm.errors import RunError, UsageError
    from fedjax_mm.federation import Federation, federate
    from fedjax_mm.runs import Run, compare, load_run, rerun, resume, simulate

__version__ = "0.1.0"

__all__ = [
    "Federation",
    "MultimodalDataset",
    "Run",
    "RunError",
    "UsageError",
    "compare",
    "describe",
    "federate",
    "from_arrays",
    "load_data",
    "load_run",
    "methods",
    "objectives",
    "rerun",
    "resume",
    "simulate",
    "sweep",
]

# All of this is loaded when first used: the command line answers --help without importing JAX.
_PACKAGES = ("cli", "data", "errors", "federation", "methods", "metrics", "models", "objectives", "runs", "simulation")
_HOMES = {
    "data": ("MultimodalDataset", "describe", "from_arrays", "load_data"),
    "errors": ("RunError", "UsageError"),
    "federation": ("Federation", "federate"),
    "runs": ("Run", "compare", "load_run", "rerun", "resume", "simulate", "sweep"),
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
