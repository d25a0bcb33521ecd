"""From a block of rounds as a function to a compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from fedjax_mm.metrics.evaluation import Sums
from fedjax_mm.simulation.context import State, World
from fedjax_mm.simulation.evaluate import Counts
from fedjax_mm.simulation.rounds import Record
from fedjax_mm.simulation.shelf import Shelf

Tree = Any
Function = Callable[[World, State, jax.Array], tuple[State, Record, Counts]]


def compile_block(
    function: Function,
    world: World,
    state: State,
    options: dict[str, str | bool] | None = None,
    shelf: Shelf | None = None,
    mark: str = "",
) -> tuple[Function, Any]:
    """A block of rounds, compiled; it gives up the buffers of the state at each call.

    Args:
        function: From world, state and first round to state, records and counts.
        world: A world, or shapes like it.
        state: A state, or shapes like it.
        options: Options of XLA.
        shelf: Where traced programs are kept, if they are.
        mark: What it is kept under.

    Returns:
        The function to call, and what XLA made of it.
    """
    first = jnp.int32(1)
    traced = None if shelf is None else _kept(function, world, state, shelf, mark)
    if traced is None:
        program = jax.jit(function, donate_argnums=1).lower(world, state, first).compile(options)
        return program, program
    lowered = jax.jit(traced.call, donate_argnums=1).lower(jax.tree.leaves(world), jax.tree.leaves(state), first)
    program, structure = lowered.compile(options), jax.tree.structure(state)

    def run(world: World, state: State, first: jax.Array) -> tuple[State, Record, Counts]:
        leaves, record, (sums, *counts) = program(jax.tree.leaves(world), jax.tree.leaves(state), first)
        return jax.tree.unflatten(structure, leaves), Record(*record), Counts(Sums(*sums), *counts)

    return run, program


def _kept(function: Function, world: World, state: State, shelf: Shelf, mark: str) -> export.Exported | None:
    """The function as a program of plain lists, dicts and tuples; None if it cannot be kept."""
    structures = jax.tree.structure(world), jax.tree.structure(state)

    def plain(world: Tree, state: Tree, first: jax.Array) -> Tree:
        state, record, counts = function(
            jax.tree.unflatten(structures[0], world), jax.tree.unflatten(structures[1], state), first
        )
        return jax.tree.leaves(state), tuple(record), (tuple(counts.sums), *counts[1:])

    def trace() -> export.Exported:
        return export.export(jax.jit(plain))(jax.tree.leaves(world), jax.tree.leaves(state), jnp.int32(1))

    try:
        return shelf.program(mark, trace)
    except ValueError as error:
        # Some libraries' routines have no form that may be written down.
        if "custom call" not in str(error):
            raise
        return None
