"""What tracing finds out, kept from one process to the next, so that a program seen before need not be traced again.

JAX's own cache keeps compiled programs by their text, which only tracing gives. Here a traced program is found by what
it is made of: the package's source, the versions and configuration of JAX, and everything static in a simulation. That
is sound only where nothing else can change what is traced. So a shelf is made where the process is the package's own
(its command line, its benchmark) and serves the package's own methods alone.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import export

from fedjax_mm.simulation.context import Context
from fedjax_mm.simulation.settings import structure

Tree = Any
PACKAGE = "fedjax_mm"
MOST = 1000
"""Files in the folder; the oldest go first."""
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "ott-jax", "jaxopt", "lineax", "numpy")
UNTOLD = (
    "jax_compilation_cache_",
    "jax_persistent_cache_",
    "jax_enable_compilation_cache",
    "jax_log",
    "jax_traceback_",
)
"""How the names of JAX's settings begin that do not change what is traced."""


@dataclasses.dataclass(frozen=True)
class Shelf:
    """A folder of traced programs and of facts about them.

    Attributes:
        folder: The folder.
        made_by: Digest of what traces.
    """

    folder: pathlib.Path
    made_by: str

    def facts(self, mark: str, find: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """JSON-ready facts: those kept under a mark, else those found now, which are kept."""
        path = self.folder / f"{mark}.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            found = find()
            self._keep(path, json.dumps(found).encode())
            return found

    def program(self, mark: str, trace: Callable[[], export.Exported]) -> export.Exported:
        """A traced program: the one kept under a mark, else one traced now, which is kept."""
        path = self.folder / f"{mark}.stablehlo"
        # A file that was cut short or tampered with is as good as none.
        with contextlib.suppress(Exception):
            content = path.read_bytes()
            digest, body = content[:32], content[32:]
            if hashlib.sha256(body).digest() == digest:
                return export.deserialize(bytearray(body))
        traced = trace()
        body = bytes(traced.serialize())
        self._keep(path, hashlib.sha256(body).digest() + body)
        return traced

    def mark(self, *parts: Any) -> str:
        """The name of something made of these parts, each text, an array or a tree of arrays."""
        total = hashlib.sha256(self.made_by.encode())
        for part in parts:
            total.update(part.encode() if isinstance(part, str) else _described(part))
            total.update(b"\0")
        return total.hexdigest()[:40]

    def _keep(self, path: pathlib.Path, content: bytes) -> None:
        """Writes a file whole or not at all; one that cannot be written is not missed."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                pathlib.Path(name).replace(path)
            finally:
                pathlib.Path(name).unlink(missing_ok=True)
            for old in sorted(self.folder.iterdir(), key=lambda file: file.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)


def open_shelf() -> Shelf | None:
    """The shelf beside JAX's cache of compiled programs; None where that cache is off."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    return Shelf(pathlib.Path(folder) / "traced", _tracer()) if folder and enabled else None


def serves(context: Context) -> bool:
    """Whether a context's programs may be kept: its method and all it inherits from are the package's own."""
    kinds = [kind for kind in type(context.method).__mro__ if kind is not object]
    return all(kind.__module__.partition(".")[0] == PACKAGE for kind in kinds) and jax.process_count() == 1


def ingredients(context: Context, world: Tree, sizes: np.ndarray, executor: str) -> list[Any]:
    """All that a simulation's programs are made of, as `Shelf.mark` takes it.

    Args:
        context: The context.
        world: The world.
        sizes: Training samples of each lane, `[S, K]`.
        executor: The executor's name.

    Returns:
        The parts.
    """
    method, settings = context.method, structure(context.settings)
    settings = dataclasses.replace(settings, seeds=(), eval_every=1, select=None)
    parts = [type(method).__module__, repr(jax.tree.structure(method)), repr(settings), repr(context.spec), executor]
    parts += [repr(context.layout), repr((context.seeds, context.clients, context.everyone, context.cohort))]
    parts += [repr((jax.default_backend(), jax.device_count(), jax.devices()[0].device_kind)), np.asarray(sizes)]
    for name, store in context.stores.items():
        parts += [name, repr((store.module, store.networks, store.specs)), store.network, store.bucket]
        parts += [store.rows[part] for part in sorted(store.rows)]
    return [*parts, shapes_of(world)]


def shapes_of(tree: Tree) -> str:
    """Structure, shapes and types of a tree, and how it lies on devices."""
    leaves, structure_ = jax.tree.flatten(tree)
    return repr((structure_, [(leaf.shape, str(leaf.dtype), str(getattr(leaf, "sharding", ""))) for leaf in leaves]))


def _described(array: Any) -> bytes:
    array = np.ascontiguousarray(array)
    return f"{array.shape} {array.dtype.str} ".encode() + array.tobytes()


def _tracer() -> str:
    """Digest of everything outside a simulation that could change what is traced."""
    root = pathlib.Path(__file__).parents[1]
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            total.update(f"{name} {importlib.metadata.version(name)} ".encode())
    values = jax.config.values
    told = {name: values[name] for name in sorted(values) if not name.startswith(UNTOLD)}
    environment = {name: os.environ.get(name) for name in ("XLA_FLAGS", "NPROC", "LIBTPU_INIT_ARGS")}
    total.update(repr((told, environment)).encode())
    return total.hexdigest()
