"""Blocks: some rounds and an evaluation, as one compiled program or as a Python loop."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_mm.errors import RunError
from fedjax_mm.simulation.context import State, World
from fedjax_mm.simulation.evaluate import Counts, Evaluator
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.plans import Plan
from fedjax_mm.simulation.rounds import Record, Round

Array = jax.Array
Tree = Any


def run_rounds(
    executor: Executor,
    reader: Executor,
    rounds: Round,
    evaluator: Evaluator,
    length: int,
    world: World,
    state: State,
    first: Array,
) -> tuple[State, Record, Counts]:
    """`length` rounds from `first` on, then an evaluation; made to be compiled whole.

    Args:
        executor: How lanes are trained.
        reader: How lanes are evaluated.
        rounds: The rounds.
        evaluator: The evaluation.
        length: The number of rounds.
        world: The world.
        state: The state before them.
        first: The first round, int32 scalar, from 1.

    Returns:
        The state after them, their records (leaves `[length, ...]`) and the counts of the evaluation.
    """

    def step(state: State, offset: Array) -> tuple[State, Record]:
        return rounds(executor, world, state, first + offset)

    state, records = jax.lax.scan(step, state, jnp.arange(length, dtype=jnp.int32))
    return state, records, evaluator(reader, world, state, first + length - 1)


def program_bytes(program: Any) -> int:
    """What a compiled program needs on a device: arguments, results and temporaries; 0 if unknown."""
    if not hasattr(program, "memory_analysis") or (found := program.memory_analysis()) is None:
        return 0
    sizes = (found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes)
    return int(sum(sizes) - found.alias_size_in_bytes)


class DebugProgram:
    """The same as a Python loop over rounds and clients, each step jitted alone; called like a compiled program."""

    def __init__(self, executor: Executor, reader: Executor, rounds: Round, evaluator: Evaluator, length: int):
        self.executor, self.reader, self.evaluator, self.length = executor, reader, evaluator, length
        self.open = jax.jit(functools.partial(rounds.open, executor.plans[0]))
        self.steps = {plan: jax.jit(functools.partial(rounds.advance, plan)) for plan in executor.plans}
        self.close = jax.jit(rounds.close)
        self.counts = {plan: jax.jit(functools.partial(evaluator.advance, plan)) for plan in reader.plans}

    def __call__(self, world: World, state: State, first: Array) -> tuple[State, Record, Counts]:
        """Arguments and result as `run_rounds`.

        Raises:
            RunError: A client failed; the message names it and the round, the cause is the original error.
        """
        records = []
        for round_ in range(int(first), int(first) + self.length):
            cohort, progress = self.open(world, state, jnp.int32(round_))

            def advance(plan: Plan, progress: Tree, lanes: Array, active: Array, cohort=cohort) -> Tree:
                return self.steps[plan](world, cohort, progress, lanes, active)

            try:
                progress = self.executor(advance, progress, cohort.lanes, cohort.active)
            except RunError as error:
                raise RunError(f"round {round_}, local training: {error}") from error.__cause__
            state, record = self.close(world, cohort, progress)
            records.append(record)
        everyone = jnp.arange(cohort.active.shape[0], dtype=jnp.int32)

        def count(plan: Plan, counts: Counts, lanes: Array, active: Array) -> Counts:
            return self.counts[plan](world, state, counts, lanes, active, jnp.int32(first + self.length - 1))

        counts = self.reader(count, self.evaluator.empty(), everyone, jnp.ones(everyone.shape, bool))
        return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *records), counts
