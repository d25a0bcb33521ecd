"""Rows of arrays at places known before compiling, with gradients that read instead of scattering."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Part = tuple[np.ndarray, Array]
"""Distinct slots, int `[n]`, and a row for each, `[n, ...]`."""


def rows_of_slots(parts: Sequence[Part], slots: np.ndarray) -> Array:
    """The rows of some slots.

    Args:
        parts: What is there; of what several hold, the last counts.
        slots: Distinct slots, int `[m]`.

    Returns:
        `[m, ...]`, 0 for a slot that no part holds.
    """
    newest = {slot: number for number, (own, _) in enumerate(parts) for slot in own}
    needed = sorted({newest[slot] for slot in slots if slot in newest} or {0})
    held = np.concatenate([parts[number][0] for number in needed])
    values = [parts[number][1] for number in needed]
    # Backwards, so that the first place of a slot is its last one.
    place = {slot: len(held) - 1 - back for back, slot in reversed(list(enumerate(held[::-1])))}
    index = np.array([place.get(slot, -1) for slot in slots], int)
    return picked(values[0] if len(values) == 1 else jnp.concatenate(values), index)


def picked(table: Array, index: np.ndarray) -> Array:
    """Rows of a table, differentiable in reverse only.

    Args:
        table: `[n, ...]`.
        index: Distinct rows, int `[m]`; -1, any number of times, for none.

    Returns:
        `[m, ...]`, 0 where there is none.
    """
    if len(index) and (np.diff(index) == 1).all() and index[0] >= 0:
        return table if len(index) == len(table) else table[index[0] : index[-1] + 1]
    inverse = np.full(len(table), -1)
    inverse[index[index >= 0]] = np.flatnonzero(index >= 0)
    pick = jax.custom_vjp(lambda values: _gathered(values, index))
    pick.defvjp(lambda values: (pick(values), None), lambda _, gradient: (_gathered(gradient, inverse),))
    return pick(table)


def _gathered(table: Array, index: np.ndarray) -> Array:
    rows = table.at[np.maximum(index, 0)].get(mode="promise_in_bounds")
    there = index >= 0
    return rows if there.all() else jnp.where(there.reshape((-1,) + (1,) * (rows.ndim - 1)), rows, 0)
