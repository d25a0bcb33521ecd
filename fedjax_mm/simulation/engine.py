"""The engine: one method on one population, as compiled blocks of rounds."""

import dataclasses
import functools
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import RunError
from fedjax_mm.methods.layout import Stage
from fedjax_mm.methods.method import Method, stages_of
from fedjax_mm.metrics.evaluation import Evaluation
from fedjax_mm.metrics.subsets import sparse
from fedjax_mm.process import garbage_kept
from fedjax_mm.simulation.blocks import DebugProgram, program_bytes, run_rounds
from fedjax_mm.simulation.build import build_context, build_world, initial_state
from fedjax_mm.simulation.compiled import compile_block
from fedjax_mm.simulation.context import Context, State, World
from fedjax_mm.simulation.costs import Exchange
from fedjax_mm.simulation.evaluate import Counts, Evaluator
from fedjax_mm.simulation.executors import Debug, Executor
from fedjax_mm.simulation.facts import find_facts, from_json
from fedjax_mm.simulation.hosted import Hosted, make_hosted
from fedjax_mm.simulation.placement import choose_division, choose_executor, make_executor
from fedjax_mm.simulation.population import Population
from fedjax_mm.simulation.prediction import scores_of
from fedjax_mm.simulation.rounds import Record, Round
from fedjax_mm.simulation.settings import Settings, structure
from fedjax_mm.simulation.shards import Shards, make_shards
from fedjax_mm.simulation.shelf import Shelf, ingredients, serves, shapes_of

Array = jax.Array
Tree = Any


class Block(NamedTuple):
    """What a block of rounds leaves on the host.

    Attributes:
        rounds: The rounds, int64 `[E]`.
        terms: Term or counter -> (sum, weight), each float64 `[E, S]`.
        evaluation: All clients after the last of them.
        compile_seconds: Time spent compiling, 0 if the program was there.
        run_seconds: Time spent running.
        program_bytes: What the compiled program needs on a device: arguments, results and temporaries; 0 if unknown.
    """

    rounds: np.ndarray
    terms: dict[str, tuple[np.ndarray, np.ndarray]]
    evaluation: Evaluation
    compile_seconds: float
    run_seconds: float
    program_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
    """A method on a population, ready to run.

    Attributes:
        population: The lanes.
        context: The static side.
        world: The arrays no round changes.
        executor: How lanes are trained; on several devices, each device's.
        reader: How lanes are evaluated.
        shards: The same divided among devices, if it is.
        hosted: How it runs with clients' state on the host, if it does.
        reason: Why this executor and these devices.
        labels: Configurations trained side by side, each with as many of the seeds; one, the method's name, by default.
        stages: The method's stages, with their lengths.
        rounds: The rounds of each stage.
        predictors: The method's predictors, the primary one first.
        upload: Price list of the way up, by stage: only what the stage trains is sent.
        download: Price list of the way down.
        programs: Compiled programs by (stage, block length), and parts they share.
        sizes: What each of them needs on a device, in bytes.
        shelf: Where traced programs are kept, if they are.
        mark: What all of them are made of, for the shelf.
    """

    population: Population
    context: Context
    world: World
    executor: Executor
    reader: Executor
    shards: Shards | None
    hosted: Hosted | None
    reason: str
    stages: tuple[Stage, ...]
    rounds: tuple[Round, ...]
    predictors: tuple[str, ...]
    upload: tuple[Exchange, ...]
    download: Exchange
    labels: tuple[str, ...]
    programs: dict[Any, Any] = dataclasses.field(default_factory=dict)
    sizes: dict[Any, int] = dataclasses.field(default_factory=dict)
    shelf: Shelf | None = None
    mark: str = ""

    @property
    def executor_name(self) -> str:
        """The executor's name, as an option."""
        name = type(self.executor).__name__.lower()
        most = max(plan.size for plan in self.executor.plans)
        return f"chunk:{most}" if name == "map" and most > 1 else name

    @property
    def devices(self) -> int:
        """The number of devices it runs on."""
        return self.shards.division.devices if self.shards else 1

    def initial_state(self) -> State:
        """The state before the first round, as `run_block` wants it."""
        return self.placed(self.fresh_state())

    def fresh_state(self) -> State:
        """The state before the first round, as `gathered` gives it."""
        if self.hosted:
            return self.hosted.first_state(self.population, self.world)
        return initial_state(self.context, self.population, self.world)

    def placed(self, state: State) -> State:
        """A state as `gathered` gives it, laid where `run_block` wants it."""
        there = self.shards or self.hosted
        return there.place(state) if there else state

    def gathered(self, state: State) -> State:
        """A state as `run_block` gives it, for everything else; it does not depend on the devices."""
        return self.shards.gather(state) if self.shards else state

    def blocks(self, done: int = 0) -> list[tuple[int, int]]:
        """(first round, length) of every block after round `done`; blocks end at evaluations and stage borders."""
        settings, borders, total = self.context.settings, set(), 0
        for stage in self.stages:
            total += stage.rounds or 0
            borders.add(total)
        borders.discard(0)
        ends = sorted(borders | set(range(settings.eval_every, settings.rounds, settings.eval_every)))
        starts = [0, *ends[:-1]]
        return [(start + 1, end - start) for start, end in zip(starts, ends, strict=True) if start >= done]

    def run_block(self, state: State, first: int, length: int) -> tuple[State, Block]:
        """Runs rounds `first` to `first + length - 1` and evaluates.

        Args:
            state: The state before them, as `initial_state`, `placed` or this gives it; its buffers are given up.
            first: The first round, from 1.
            length: The number of rounds.

        Returns:
            The state after them and what they leave.

        Raises:
            RunError: A client's result was not finite and the policy is `stop`.
        """
        stage = self._stage_of(first)
        start = time.perf_counter()
        with garbage_kept():
            program = self._program(stage, length, state)
        compiled = time.perf_counter()
        world = self.shards.world if self.shards else self.world
        state, records, counts = jax.block_until_ready(program(world, state, jnp.int32(first)))
        ended = time.perf_counter()
        if self.shards:
            records, counts = self.shards.merge(records, counts)
        records = jax.tree.map(np.asarray, records)
        rounds = np.arange(first, first + length)
        if self.context.settings.nonfinite == "stop":
            self._stop_if_broken(records, np.asarray(counts.broken), rounds)
        evaluation = self._evaluation(int(rounds[-1]), counts)
        block = Block(
            rounds=rounds,
            terms=self._terms(stage, records),
            evaluation=evaluation,
            compile_seconds=compiled - start,
            run_seconds=ended - compiled,
            program_bytes=self.sizes[stage, length],
        )
        return state, block

    def predict(self, state: State, seed: int, client: int, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Scores of one client's networks on new inputs.

        Args:
            state: The state to use, as `gathered` gives it.
            seed: Position of the seed.
            client: Client id.
            inputs: Modality -> raw inputs `[n, ...]`, for one or more of the client's modalities.

        Returns:
            Predictor -> scores `[n, C]`.

        Raises:
            UsageError: A modality is unknown or not the client's, or shapes do not match.
        """
        return scores_of(self.context, self.population, self.world, state, seed, client, inputs)

    def _stage_of(self, round_: int) -> int:
        ends = np.cumsum([stage.rounds or 0 for stage in self.stages])
        return int(np.searchsorted(ends, round_))

    def _program(self, stage: int, length: int, state: State) -> Any:
        key = (stage, length)
        if key not in self.programs:
            self.programs[key], program = self._compiled(stage, length, state)
            self.sizes[key] = program_bytes(program)
        return self.programs[key]

    def _compiled(self, stage: int, length: int, state: State) -> tuple[Any, Any]:
        """What runs a block, and what knows its size."""
        rounds, evaluator = self.rounds[stage], Evaluator(self.context, self.predictors)
        if self.hosted:
            program = self.hosted.program(rounds, self.predictors, length, self.world, self.programs)
            return program, program
        if isinstance(self.executor, Debug):
            program = DebugProgram(self.executor, self.reader, rounds, evaluator, length)
            return program, program
        function: Any = functools.partial(run_rounds, self.executor, self.reader, rounds, evaluator, length)
        options, world, lanes = None, self.world, ()
        if self.shards:
            function, options = self.shards.function(rounds, self.predictors, length)
            world, lanes = self.shards.world, (self.shards.division.lanes, self.shards.division.real)
        mark = ""
        if self.shelf is not None:
            mark = self.shelf.mark(self.mark, shapes_of((world, state)), repr((stage, length, options)), *lanes)
        return compile_block(function, world, state, options, self.shelf, mark)

    def _stop_if_broken(self, records: Record, scores: np.ndarray, rounds: np.ndarray) -> None:
        clients = [(*map(int, np.argwhere(flags)[0]), name) for name, flags in records.broken.items() if flags.any()]
        seed = 0
        if clients:
            step, lane, name = min(clients)
            seed, client = divmod(lane, self.context.clients)
            place = f"{name} of client {self.population.federations[seed].clients[client]}"
        elif records.server_broken.any():
            step, seed = map(int, np.argwhere(records.server_broken)[0])
            place = "the server step"
        elif scores.any():
            step, (seed, client) = -1, divmod(int(np.flatnonzero(scores)[0]), self.context.clients)
            place = f"scores of client {self.population.federations[seed].clients[client]}"
        else:
            return
        label = self.labels[seed * len(self.labels) // self.context.seeds]
        raise RunError(
            f"{label}: not finite in round {rounds[step]}: {place} (seed {self.population.seeds[seed]}); a smaller lr "
            "or a clip may help, nonfinite=skip goes on without it"
        )

    def _terms(self, stage: int, records: Record) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Terms and counters per round and seed; bytes are means per cohort member."""
        wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), records.terms)
        seeds, members = self.context.seeds, float(self.context.cohort)
        lanes = records.clients + self.context.clients * np.arange(seeds)[:, None]
        one = np.full(records.heard.shape, members)
        up = [self.upload[stage].of_cohort(ids, rows) for ids, *rows in zip(lanes, *records.sent_rows, strict=True)]
        down = [self.download.of_cohort(ids, rows) for ids, *rows in zip(lanes, *records.received_rows, strict=True)]
        return wide | {
            "bytes_up": (np.asarray(up, np.float64), one),
            "bytes_down": (np.asarray(down, np.float64), one),
            "skipped": (members - records.heard.astype(np.float64), np.ones_like(one)),
            "server_skipped": (records.server_broken.astype(np.float64), np.ones_like(one)),
        }

    def _evaluation(self, round_: int, counts: Counts) -> Evaluation:
        lead = (self.context.seeds, self.context.clients)

        def by_seed(leaf: Array) -> np.ndarray:
            wide = np.asarray(leaf, np.float64 if jnp.issubdtype(leaf.dtype, jnp.floating) else np.int64)
            return np.moveaxis(wide.reshape(*lead, *wide.shape[1:]), 2, 0)

        subsets = np.asarray(counts.subsets)
        return Evaluation(
            round=round_,
            predictors=self.predictors,
            sums=counts.sums.map(by_seed),
            subsets=sparse(subsets.reshape(*lead, *subsets.shape[1:])),
        )


def build_engine(
    method: Method,
    population: Population,
    settings: Settings,
    others: Collection[Engine] = (),
    shelf: Shelf | None = None,
) -> Engine:
    """Sets a method up on a population; compiles nothing.

    Args:
        method: The method.
        population: The lanes.
        settings: Resolved settings.
        others: Engines that exist. With one whose method differs in its numbers only, programs are shared.
        shelf: Where traced programs are kept, if they are.

    Returns:
        The engine.

    Raises:
        UsageError: Method, federation and settings do not go together.
    """
    with garbage_kept():
        context = build_context(method, population, settings)
        world = build_world(context, population)
        twin = next((other for other in others if _same_programs(other, population, context, world)), None)
        return assemble(context, world, population, shelf) if twin is None else _with_numbers(twin, context, world)


def assemble(context: Context, world: World, population: Population, shelf: Shelf | None = None) -> Engine:
    """An engine from its parts: chooses executor and devices, and checks the method's shapes.

    Raises:
        UsageError: What the method returns does not fit, or the devices asked for are not there.
    """
    name, reason = choose_executor(context)
    sizes = population.train_sizes()
    hosted = make_hosted(context, name, int(sizes.max())) if context.settings.client_state == "host" else None
    if hosted:
        executor, reader, here, seen = hosted.executor, hosted.reader, hosted.context, hosted.first_window(world).world
    else:
        executor = make_executor(name, context, sizes, _called(population))
        reader = make_executor(name, dataclasses.replace(context, cohort=context.clients), sizes, _called(population))
        here, seen = context, world
    plan = executor.plans[0]
    stages = stages_of(context.layout, context.spec)
    rounds = tuple(Round(here, stage.phases) for stage in stages)
    shelf = shelf if serves(context) and name != "debug" and not hosted else None
    mark = shelf.mark(*ingredients(context, world, sizes, name)) if shelf else ""

    def find() -> Mapping[str, Any]:
        return find_facts(context, here, plan, seen, rounds).as_json()

    facts = from_json(shelf.facts(mark, find) if shelf else find())
    division, where = (None, hosted.reason) if hosted else choose_division(context, sizes, name, facts.waits)
    shards = make_shards(context, world, population, division, name) if division else None
    executor, reader = (shards.executor, shards.reader) if shards else (executor, reader)
    if (turns := max(plan.turns for plan in executor.plans)) > 1:
        where += f", seeds in {turns} turns"
    return Engine(
        population=population,
        context=context,
        world=world,
        executor=executor,
        reader=reader,
        shards=shards,
        hosted=hosted,
        reason=f"{reason}; {where}",
        stages=stages,
        rounds=tuple(Round(shards.context, stage.phases) for stage in stages) if shards else rounds,
        predictors=facts.predictors,
        upload=facts.upload,
        download=facts.download,
        labels=(context.method.name,),
        shelf=shelf,
        mark=mark,
    )


def _called(population: Population) -> list[str]:
    """What to call each lane."""
    return [
        f"client {client} (seed {seed})"
        for seed, federation in zip(population.seeds, population.federations, strict=True)
        for client in federation.clients
    ]


def _with_numbers(engine: Engine, context: Context, world: World) -> Engine:
    """The engine, programs included, for another method of the same structure."""
    shards = engine.shards.of(world) if engine.shards else None
    return dataclasses.replace(engine, context=context, world=world, shards=shards)


def _same_programs(engine: Engine, population: Population, context: Context, world: World) -> bool:
    """Whether an engine's programs are those of a context and world too: numbers are their arguments."""
    theirs = engine.context
    return (
        engine.population is population
        and structure(theirs.settings) == structure(context.settings)
        and theirs.layout == context.layout
        and jax.tree.structure(theirs.method) == jax.tree.structure(context.method)
        and jax.tree.structure(engine.world) == jax.tree.structure(world)
    )
