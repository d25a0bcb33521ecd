"""Executors: in which order, and how many at once, lanes go through a function."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import RunError
from fedjax_mm.simulation.plans import Plan

Array = jax.Array
Tree = Any
Advance = Callable[[Plan, Tree, Array, Array], Tree]
"""From a plan, a carry, lanes and their activity, to the carry after these lanes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Lockstep:
    """All lanes of a plan at once, or in turns of some seeds, plan after plan."""

    plans: tuple[Plan, ...]

    def __call__(self, advance: Advance, carry: Tree, cohort: Array, active: Array) -> Tree:
        """Advances all lanes.

        Args:
            advance: What to do.
            carry: What it starts from.
            cohort: As many lanes of each seed as can be in the cohort, int32 `[S * most]`, seed by seed.
            active: Whether a lane is in the cohort, bool `[L]`.

        Returns:
            The carry after all lanes.
        """
        for plan in self.plans:
            lanes = jnp.asarray(plan.members) if plan.size * plan.turns == len(plan.members) else cohort
            if plan.turns == 1:
                carry = advance(plan, carry, lanes, active[lanes])
                continue
            turns = lanes.reshape(plan.turns, plan.size)

            def some(i: Array, carry: Tree, plan: Plan = plan, turns: Array = turns) -> Tree:
                return advance(plan, carry, turns[i], active[turns[i]])

            carry = jax.lax.fori_loop(0, plan.turns, some, carry)
        return carry


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """Some lanes after others inside the compiled program, one loop per client shape; absent clients cost nothing.

    Attributes:
        plans: A plan per client shape, whose size says how many lanes step at once.
        seeds: The number of seeds.
        clients: The number of clients.
    """

    plans: tuple[Plan, ...]
    seeds: int
    clients: int

    def members(self, plan: Plan, cohort_size: int, active: Array) -> tuple[Array, Array]:
        """The lanes of a plan's group that are in the cohort, padded to the most there can be.

        Returns:
            Lanes, int32 `[most]`, and which of them count, bool `[most]`; `most` is a multiple of the plan's size.
        """
        counts = [int(((plan.members // self.clients) == seed).sum()) for seed in range(self.seeds)]
        most = sum(min(count, cohort_size) for count in counts)
        most = -(-most // plan.size) * plan.size
        group = jnp.asarray(plan.members)
        if most == len(plan.members):
            return group, active[group]
        picked = jnp.nonzero(active[group], size=most, fill_value=0)[0]
        return group[picked], jnp.arange(most) < jnp.sum(active[group])

    def __call__(self, advance: Advance, carry: Tree, cohort: Array, active: Array) -> Tree:
        """Advances the cohort's lanes; arguments as `Lockstep.__call__`."""
        for plan in self.plans:
            lanes, counted = self.members(plan, cohort.shape[0] // self.seeds, active)

            chunks = lanes.reshape(-1, plan.size), counted.reshape(-1, plan.size)

            def some(i: Array, carry: Tree, plan: Plan = plan, chunks: tuple[Array, Array] = chunks) -> Tree:
                return advance(plan, carry, chunks[0][i], chunks[1][i])

            # Those that count come first unless all lanes are listed.
            end = len(chunks[0]) if len(lanes) == len(plan.members) else -(-jnp.sum(counted) // plan.size)
            carry = jax.lax.fori_loop(0, end, some, carry)
        return carry


@dataclasses.dataclass(frozen=True, eq=False)
class Debug(Map):
    """A Python loop over one jitted client: the reference for the others, and where an error names its client.

    Attributes:
        names: What to call each lane.
    """

    names: tuple[str, ...] = ()

    def __call__(self, advance: Advance, carry: Tree, cohort: Array, active: Array) -> Tree:
        """Advances the cohort's lanes one by one, outside any compiled loop; arguments as `Lockstep.__call__`.

        Raises:
            RunError: A client failed; the message names client and seed, the cause is the original error.
        """
        for plan in self.plans:
            lanes, counted = self.members(plan, cohort.shape[0] // self.seeds, active)
            for lane in np.asarray(lanes)[np.asarray(counted)]:
                try:
                    carry = advance(plan, carry, jnp.asarray([lane], jnp.int32), jnp.asarray([True]))
                except Exception as error:
                    raise RunError(f"{self.names[lane]} failed: {error}") from error
        return carry


Executor = Lockstep | Map
