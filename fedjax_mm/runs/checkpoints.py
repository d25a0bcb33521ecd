"""Checkpoints of a method's state: the latest two rounds, complete, checked, bit for bit."""

import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN

from fedjax_mm.errors import RunError
from fedjax_mm.runs.files import SCHEMA_VERSION

KEPT = 2

Path = str | os.PathLike[str]
Tree = TypeVar("Tree")


class _Damaged(Exception):
    """A checkpoint that does not hold what was written."""


def save(folder: Path, number: int, state: Any, *, fingerprint: Mapping[str, Any]) -> None:
    """Writes `folder/<number>/` with Orbax; complete when it returns, never visible before.

    Checkpoints of this and later rounds are replaced: a run that writes round `number` has none after it. Of the others
    the latest stays.

    Args:
        folder: The method's checkpoints, made if absent.
        number: The round after which `state` holds, at least 0.
        state: A pytree of arrays (any shape, also empty; any dtype but typed keys), all on this host.
        fingerprint: What must be the same for a run to go on from here; JSON-ready.
    """
    leaves = {name: np.asarray(leaf) for name, leaf in _named(state)}
    content = {
        "schema_version": SCHEMA_VERSION,
        "fingerprint": dict(fingerprint),
        "leaves": [[name, leaf.dtype.name, list(leaf.shape), _digest(leaf)] for name, leaf in leaves.items()],
    }
    text = json.dumps(content, allow_nan=False)
    # Orbax takes no empty array and no empty tree; what the description says of them is enough to make them again.
    arrays = {str(index): leaf for index, leaf in enumerate(leaves.values()) if leaf.size}
    items: dict[str, Any] = {"description": ocp.args.JsonSave({"text": text, "sha256": _sha256(text.encode())})}
    if arrays:
        items["state"] = ocp.args.PyTreeSave(arrays)
    with _manager(folder, writing=True) as manager:
        for step in manager.all_steps():
            if step >= number:
                manager.delete(step)
        manager.save(number, args=ocp.args.Composite(**items))
        manager.wait_until_finished()


def latest(folder: Path) -> int | None:
    """The last round with a complete checkpoint in `folder`, not yet checked; None if there is none."""
    return max(_steps(folder), default=None)


def restore(
    folder: Path, *, like: Tree, fingerprint: Mapping[str, Any], last: int | None = None, hosted: bool = False
) -> tuple[int, Tree]:
    """Reads the latest checkpoint that is intact.

    Args:
        folder: The method's checkpoints.
        like: A pytree of arrays or `jax.ShapeDtypeStruct`, as `jax.eval_shape` gives it: what the state must be. A
            leaf with a sharding is placed so.
        fingerprint: What `save` was given, to be compared.
        last: The last round to consider; None for any.
        hosted: Whether arrays stay on the host.

    Returns:
        The round and the state: the structure, shapes and dtypes of `like`, the bits that were saved, `jax.Array`s, or
        NumPy's if they stay on the host. A damaged checkpoint is passed over for the one before it, with a warning.

    Raises:
        RunError: There is no intact checkpoint; or the latest intact one has another fingerprint (the keys are named),
            or another state than `like` (the first leaf that differs is named).
    """
    for step in sorted((step for step in _steps(folder) if last is None or step <= last), reverse=True):
        path = pathlib.Path(folder) / str(step)
        try:
            content, arrays = _read(folder, step)
        except _Damaged as error:
            warnings.warn(f"checkpoint {path} is damaged ({error}); trying the one before it", stacklevel=2)
            continue
        _same_fingerprint(path, content["fingerprint"], fingerprint)
        return step, _as(path, arrays, like, hosted=hosted)
    raise RunError(f"{folder} holds no intact checkpoint")


def _read(folder: Path, step: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description of a checkpoint and its leaves by name, checked against their digests."""
    with _manager(folder, writing=False) as manager:
        try:
            stored = manager.restore(step, args=ocp.args.Composite(description=ocp.args.JsonRestore()))["description"]
            content = json.loads(stored["text"]) if _sha256(stored["text"].encode()) == stored["sha256"] else None
        except Exception as error:
            # Orbax and TensorStore have no common type for what a damaged file makes them raise.
            raise _Damaged(f"no readable description: {_first_line(error)}") from error
        if content is None:
            raise _Damaged("the description does not match its checksum")
        if content["schema_version"] != SCHEMA_VERSION:
            raise RunError(
                f"{folder} has checkpoints of schema_version {content['schema_version']}, not {SCHEMA_VERSION}"
            )
        keys = [str(index) for index, (_, _, shape, _) in enumerate(content["leaves"]) if 0 not in shape]
        stored = {}
        if keys:
            numpy = dict.fromkeys(keys, ocp.RestoreArgs(restore_type=np.ndarray))
            arguments = ocp.args.PyTreeRestore(item=dict.fromkeys(keys, 0), restore_args=numpy)
            try:
                stored = manager.restore(step, args=ocp.args.Composite(state=arguments))["state"]
            except Exception as error:
                raise _Damaged(_first_line(error)) from error
    leaves = {}
    for index, (name, dtype, shape, digest) in enumerate(content["leaves"]):
        leaf = np.asarray(stored[str(index)]) if str(index) in stored else np.zeros(shape, dtype)
        if (leaf.dtype.name, list(leaf.shape), _digest(leaf)) != (dtype, shape, digest):
            raise _Damaged(f"leaf {name} does not match its checksum")
        leaves[name] = leaf
    return content, leaves


def _as(path: pathlib.Path, arrays: dict[str, np.ndarray], like: Tree, *, hosted: bool) -> Tree:
    """The arrays in the structure of `like`."""
    leaves = []
    for name, wanted in _named(like):
        expected = f"{np.dtype(wanted.dtype).name} {list(wanted.shape)}"
        if name not in arrays:
            raise RunError(f"checkpoint {path}: leaf {name}: expected {expected}, found nothing")
        leaf = arrays.pop(name)
        found = f"{leaf.dtype.name} {list(leaf.shape)}"
        if found != expected:
            raise RunError(f"checkpoint {path}: leaf {name}: expected {expected}, found {found}")
        placed = leaf if hosted else jax.device_put(leaf, getattr(wanted, "sharding", None))
        if placed.dtype != leaf.dtype:
            raise RunError(f"checkpoint {path}: leaf {name}: {expected} needs jax_enable_x64")
        leaves.append(placed)
    if arrays:
        name, leaf = next(iter(arrays.items()))
        raise RunError(f"checkpoint {path}: leaf {name}: expected nothing, found {leaf.dtype.name} {list(leaf.shape)}")
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _same_fingerprint(path: pathlib.Path, stored: dict[str, Any], given: Mapping[str, Any]) -> None:
    now = dict(_flat(json.loads(json.dumps(dict(given), allow_nan=False))))
    then = dict(_flat(stored))
    differing = [
        f"{key} is {now.get(key, 'absent')!r}, was {then.get(key, 'absent')!r}"
        for key in {**then, **now}
        if now.get(key, "absent") != then.get(key, "absent")
    ]
    if differing:
        raise RunError(f"checkpoint {path} is of another configuration: {'; '.join(differing)}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested dictionaries under dotted keys."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _manager(folder: Path, *, writing: bool) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        # `best_fn` with `max_to_keep` would delete the latest checkpoint.
        preservation_policy=AnyPreservationPolicy([LatestN(KEPT)]),
        enable_async_checkpointing=False,
        # Remains of a killed write are the writer's to remove: a reader may look while another process saves.
        cleanup_tmp_directories=writing,
        create=writing,
    )
    return ocp.CheckpointManager(pathlib.Path(folder).absolute(), options=options)


def _steps(folder: Path) -> list[int]:
    if not pathlib.Path(folder).is_dir():
        return []
    with _manager(folder, writing=False) as manager:
        return list(manager.all_steps())


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path) or "(root)", leaf) for path, leaf in leaves]


def _digest(leaf: np.ndarray) -> str:
    return _sha256(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
