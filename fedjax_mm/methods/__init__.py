"""Federated methods, one file each. Every module of this package is loaded, so a new method is a new file."""

import dataclasses
import importlib
import importlib.util
import pathlib
import pkgutil
import sys
from types import ModuleType

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.methods.layout import Layout, Module, Phase, Rows, Spec, Stage, Upload, shared_model
from fedjax_mm.methods.method import Info, Lane, Mean, Method, Server, method

__all__ = [
    "Info",
    "Lane",
    "Layout",
    "Mean",
    "Method",
    "Module",
    "Phase",
    "Rows",
    "Server",
    "Spec",
    "Stage",
    "Upload",
    "available",
    "find",
    "method",
    "shared_model",
]


def available() -> dict[str, type[Method]]:
    """The package's own methods, by name."""
    return dict(_BUILT_IN)


def find(name: str) -> type[Method]:
    """The class of a method.

    Args:
        name: A method's name, or `module:Class` for one of the user's own: an importable module or the path of a `.py`
            file.

    Returns:
        The class.

    Raises:
        UsageError: There is no such method, or it is not one.
    """
    if name.endswith(".py"):
        raise UsageError(f"{name!r} is a file: name the class in it, as in {name}:Class")
    if ":" not in name:
        return _BUILT_IN[choose("method", name, _BUILT_IN)]
    source, _, attribute = name.rpartition(":")
    found = getattr(_load(source), attribute, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(
            f"{name!r} is not a method: {source} has no subclass of fedjax_mm.methods.Method named {attribute}"
        )
    if not found.name:
        raise UsageError(f"{name!r} has no name: give the class `name: ClassVar[str]`")
    required = [f.name for f in dataclasses.fields(found) if f.default is f.default_factory is dataclasses.MISSING]
    if required:
        raise UsageError(f"{name!r}: option {required[0]!r} needs a default")
    return found


def _load(source: str) -> ModuleType:
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        path = pathlib.Path(source)
        if not path.is_file():
            raise UsageError(f"there is no file {source}")
        # Dataclasses look their module up by name; the prefix keeps a user's `jax.py` from shadowing anything.
        name = f"fedjax_mm_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "a .py file always has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        # Whatever a user's own module raises while it is imported, it is one mistake in one file.
        raise UsageError(f"cannot import {source or 'nothing'}: {type(error).__name__}: {error}") from error
    return module


def _discover() -> dict[str, type[Method]]:
    found = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Method)
                and value.__module__ == module.__name__
                and value.name
            ):
                found[value.name] = value
                globals()[value.__name__] = value
    return found


_BUILT_IN = _discover()
