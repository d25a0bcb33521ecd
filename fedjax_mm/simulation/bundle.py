"""Configurations that differ in numbers only, trained as one: their seeds are lanes side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.metrics.subsets import of_seeds
from fedjax_mm.simulation.build import build_context, build_world
from fedjax_mm.simulation.context import State
from fedjax_mm.simulation.division import Division
from fedjax_mm.simulation.engine import Block, Engine, assemble
from fedjax_mm.simulation.population import Population
from fedjax_mm.simulation.rowmaps import map_rows, row_maps
from fedjax_mm.simulation.stores import restrict

Tree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Bundle:
    """G configurations as one engine.

    Attributes:
        engine: The engine, with the S seeds of the first configuration, then those of the second, and so on.
        size: The number of configurations G.
        maps: Where the rows of each configuration's state lie in the engine's; None for one, whose engine it is.
    """

    engine: Engine
    size: int
    maps: State | None

    def join(self, states: Sequence[State]) -> State:
        """The engine's state as `Engine.run_block` wants it, from each one's as `Engine.gathered` gives it."""
        if self.maps is None:
            return self.engine.placed(states[0])
        stack = np.stack if self.engine.hosted else jnp.stack
        stacked = jax.tree.map(lambda *leaves: stack(leaves), *states)
        return self.engine.placed(map_rows(lambda leaf, rows: leaf[rows.device, rows.row], self.maps, stacked))

    def split(self, state: State) -> list[State]:
        """The inverse of `join`."""
        whole = self.engine.gathered(state)
        if self.maps is None:
            return [whole]
        return [map_rows(lambda leaf, rows, g=g: leaf[rows.source[g]], self.maps, whole) for g in range(self.size)]

    def blocks(self, block: Block) -> list[Block]:
        """What a block leaves, for each configuration; time is shared equally."""
        seeds = len(self.engine.population.seeds) // self.size
        found = []
        for g in range(self.size):
            mine = slice(g * seeds, (g + 1) * seeds)
            terms = {name: (total[:, mine], weight[:, mine]) for name, (total, weight) in block.terms.items()}
            whole = block.evaluation
            evaluation = dataclasses.replace(
                whole,
                sums=whole.sums.map(lambda leaf, mine=mine: leaf[:, mine]),
                subsets=None if whole.subsets is None else of_seeds(whole.subsets, mine.start, mine.stop),
            )
            share = (block.compile_seconds / self.size, block.run_seconds / self.size)
            found.append(Block(block.rounds, terms, evaluation, *share, block.program_bytes))
        return found


def make_bundle(engines: Mapping[str, Engine]) -> Bundle:
    """Joins engines that share their programs (`build_engine(..., others)`).

    Args:
        engines: Label -> engine, at least one.

    Returns:
        The bundle; nothing is compiled.
    """
    first, count = next(iter(engines.values())), len(engines)
    if count == 1:
        return Bundle(dataclasses.replace(first, labels=tuple(engines)), 1, None)
    population, (seeds, clients) = first.population, first.population.train_sizes().shape
    tables = population.tables._replace(
        seed=jnp.asarray(np.repeat(np.arange(count * seeds), clients), jnp.int32),
        member=jnp.tile(population.tables.member, count),
    )
    joined = Population(population.seeds * count, population.federations * count, tables, population.copies)
    context = build_context(first.context.method, joined, first.context.settings)

    def side_by_side(trees: Sequence[Tree]) -> Tree:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)

    world = build_world(context, joined)._replace(
        method=side_by_side([engine.world.method for engine in engines.values()]),
        optimisers=side_by_side([engine.world.optimisers for engine in engines.values()]),
    )
    lanes = np.arange(count * seeds * clients).reshape(count, -1)
    division = Division("seeds", np.arange(count * seeds).reshape(count, -1), lanes, np.ones(lanes.shape, bool))
    seed = np.repeat(np.arange(seeds), clients)
    stores = {name: restrict(store, lanes[0], seed) for name, store in context.stores.items()}
    engine = dataclasses.replace(assemble(context, world, joined, first.shelf), labels=tuple(engines))
    return Bundle(engine, count, row_maps(context, stores, division))
