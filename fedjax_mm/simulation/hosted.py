"""A simulation whose clients' state is on the host: rows come to the device for the rounds that need them.

Cohorts depend on keys and round numbers alone, so a block's are known before it runs. A window of some clients of every
seed is on the device: those of the block's cohorts while they are trained, then all clients, window after window, to be
evaluated. One program trains every window, and one evaluates it.
"""

import dataclasses
import functools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.simulation.blocks import program_bytes
from fedjax_mm.simulation.build import initial_stores, state_shapes, state_with
from fedjax_mm.simulation.context import Context, State, World
from fedjax_mm.simulation.evaluate import Counts, Evaluator
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.placement import make_executor
from fedjax_mm.simulation.plans import shape_groups
from fedjax_mm.simulation.population import Population, pick_clients
from fedjax_mm.simulation.rounds import Record, Round, draw_clients
from fedjax_mm.simulation.rowmaps import Picked, map_rows, pick_rows
from fedjax_mm.simulation.stores import restrict

Array = jax.Array
Tree = Any
LEAST = 32
"""Clients of every seed in a window, if there are so many, however few the cohorts have."""
EVALUATION = "evaluation"


class Window(NamedTuple):
    """Some clients of every seed.

    Attributes:
        lanes: Their lanes, seed by seed, int `[l]`; padding repeats some lane.
        real: False for padding, bool `[l]`.
        maps: Where their rows lie in the state of all lanes.
        world: The arrays that no round changes, of these lanes alone.
    """

    lanes: np.ndarray
    real: np.ndarray
    maps: State
    world: World


@dataclasses.dataclass(frozen=True, eq=False)
class Hosted:
    """How windows are cut, and what runs them.

    Attributes:
        whole: The context of all lanes.
        context: The context of a window.
        executor: How a window's lanes are trained.
        reader: How they are evaluated.
    """

    whole: Context
    context: Context
    executor: Executor
    reader: Executor

    def window(self, world: World, clients: Sequence[np.ndarray]) -> Window:
        """The window of some clients of each seed, ascending, at most as many as it has place for."""
        seeds, here, everyone = self.context.seeds, self.context.clients, self.whole.clients
        ids, real = np.zeros((seeds, here), int), np.zeros((seeds, here), bool)
        for seed, mine in enumerate(clients):
            ids[seed, : len(mine)], real[seed, : len(mine)] = mine, True
        lanes = (np.arange(seeds)[:, None] * everyone + ids).reshape(-1)
        federations = world.tables.observed.shape[0]
        federation = np.asarray(world.tables.member).reshape(seeds, everyone)[:, 0] // everyone
        # Seeds that share a federation have different clients here, each rows of its own below that federation.
        rank = np.array([np.sum(federation[:seed] == own) for seed, own in enumerate(federation)])
        place = federation * (rank.max() + 1) + rank
        rows = np.repeat(np.arange(federations) * everyone, rank.max() + 1)[:, None] + np.zeros(here, int)
        held = np.zeros(rows.shape, bool)
        rows[place], held[place] = federation[:, None] * everyone + ids, real
        tables = world.tables._replace(
            **pick_clients(world.tables, rows.reshape(-1), held.reshape(-1))._asdict(),
            seed=np.repeat(np.arange(seeds, dtype=np.int32), here),
            member=(place[:, None] * here + np.arange(here)).reshape(-1).astype(np.int32),
        )
        stores, real = self.context.stores, real.reshape(-1)
        mine = world._replace(tables=tables, rows={name: dict(store.rows) for name, store in stores.items()})
        return Window(lanes, real, pick_rows(self.whole, stores, lanes, real), mine)

    @property
    def reason(self) -> str:
        """Where clients' state is, in a few words."""
        return f"clients' state on the host, {self.context.clients} of {self.whole.clients} at a time on one device"

    def first_window(self, world: World) -> Window:
        """A window like all others."""
        return next(self.windows(world))

    def windows(self, world: World) -> Iterator[Window]:
        """All clients, window after window."""
        everyone = self.whole.clients
        for first in range(0, everyone, self.context.clients):
            mine = np.arange(first, min(first + self.context.clients, everyone))
            yield self.window(world, [mine] * self.context.seeds)

    def first_state(self, population: Population, world: World) -> State:
        """The state before the first round, in NumPy.

        Raises:
            UsageError: The method keeps typed keys, which NumPy does not have.
        """
        shapes = state_shapes(self.whole, world)
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(shapes)):
            raise UsageError(f"{self.whole.method.name}: with client_state=host a state holds key_data, not typed keys")
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        state: State = zeros._replace(stores=initial_stores(self.whole, population, world))
        begin = jax.jit(functools.partial(state_with, self.context))
        for window in self.windows(world):
            _put(window, state, begin(jax.device_put(window.world), _fetch(window, state).stores))
            if not jax.tree.leaves((state.previous, state.clients, state.optimisers)):
                break
        return state

    def place(self, state: State) -> State:
        """A state in NumPy arrays that a run may write to."""

        def own(leaf: Any) -> np.ndarray:
            return leaf if isinstance(leaf, np.ndarray) and leaf.flags.writeable else np.array(leaf)

        return jax.tree.map(own, state)

    def program(
        self, rounds: Round, predictors: tuple[str, ...], length: int, world: World, programs: MutableMapping[Any, Any]
    ) -> "HostedProgram":
        """A block of rounds, compiled.

        Args:
            rounds: The rounds, of a window's context.
            predictors: Names of the predictors.
            length: The number of rounds.
            world: The world of all lanes.
            programs: Where the program that evaluates a window is kept, for blocks of any length.

        Returns:
            The program.
        """
        context, first = self.context, jnp.int32(1)
        here = jax.device_put(self.first_window(world).world)
        state = state_shapes(context, here)

        def draw(keys: Array, first: Array) -> Array:
            steps = jnp.arange(length, dtype=jnp.int32)
            return jax.lax.map(lambda step: draw_clients(context, keys, first + step), steps)

        def train(world: World, state: State, first: Array, drawn: Array) -> tuple[State, Record]:
            def step(state: State, now: tuple[Array, Array]) -> tuple[State, Record]:
                return rounds(self.executor, world, state, first + now[0], now[1])

            return jax.lax.scan(step, state, (jnp.arange(length, dtype=jnp.int32), drawn))

        if EVALUATION not in programs:
            read = functools.partial(Evaluator(context, predictors), self.reader)
            programs[EVALUATION] = jax.jit(read).lower(here, _to_read(state), first).compile()
        drawn = jax.ShapeDtypeStruct((length, context.seeds, context.cohort), jnp.int32)
        return HostedProgram(
            hosted=self,
            draw=jax.jit(draw).lower(here.keys, first).compile(),
            train=jax.jit(train, donate_argnums=1).lower(here, state, first, drawn).compile(),
            read=programs[EVALUATION],
            last=length - 1,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class HostedProgram:
    """A block of rounds and the evaluation after it; called like a compiled program, on the state of all lanes.

    Attributes:
        hosted: How windows are cut.
        draw: From keys and the first round to the cohorts, int32 `[length, S, cohort]`.
        train: The rounds, on the window of these cohorts.
        read: The evaluation of a window.
        last: Rounds between the first and the last.
    """

    hosted: Hosted
    draw: Any
    train: Any
    read: Any
    last: int

    def __call__(self, world: World, state: State, first: Array) -> tuple[State, Record, Counts]:
        """Arguments and result as `run_rounds`, in NumPy; the state's arrays are written to."""
        drawn = self.draw(world.keys, first)
        window = self.hosted.window(world, [np.unique(ids) for ids in np.moveaxis(np.asarray(drawn), 1, 0)])
        new, records = self.train(jax.device_put(window.world), _fetch(window, state), first, drawn)
        _put(window, state, new)
        del new
        broken = {name: np.zeros((self.last + 1, len(state.participated)), bool) for name in records.broken}
        for name, flags in records.broken.items():
            broken[name][:, window.lanes[window.real]] = np.asarray(flags)[:, window.real]
        return state, records._replace(broken=broken), self._counts(world, state, jnp.int32(int(first) + self.last))

    def memory_analysis(self) -> Any:
        """That of the program that needs most; one runs at a time, beside which the next window's rows may wait."""
        return max((self.draw, self.train, self.read), key=program_bytes).memory_analysis()

    def _counts(self, world: World, state: State, round_: Array) -> Any:
        """Counts of all lanes."""
        lanes, whole = len(state.participated), None
        found = (
            (window, self.read(jax.device_put(window.world), _fetch(window, _to_read(state)), round_))
            for window in self.hosted.windows(world)
        )
        for window, counts in _one_ahead(found):
            counts = jax.tree.map(np.asarray, counts)
            if whole is None:
                whole = jax.tree.map(lambda leaf: np.zeros((lanes, *leaf.shape[1:]), leaf.dtype), counts)
            for into, leaf in zip(jax.tree.leaves(whole), jax.tree.leaves(counts), strict=True):
                into[window.lanes[window.real]] = leaf[window.real]
        return whole


def make_hosted(context: Context, name: str, longest: int) -> Hosted:
    """Prepares a simulation whose clients' state is on the host.

    Args:
        context: The context of all lanes.
        name: The executor's name.
        longest: Training samples of the client that has most.

    Returns:
        It.

    Raises:
        UsageError: Clients differ in shape, or executor or devices do not go with it.
    """
    settings = context.settings
    shapes = len(shape_groups(context.stores))
    if shapes > 1:
        raise UsageError(
            f"client_state=host needs clients of one shape, and these have {shapes}: give all of them the same "
            "modalities and, under model=pool, one kind in encoders and one entry in widths; or use client_state=device"
        )
    if name == "debug":
        raise UsageError("client_state=host does not go with executor=debug: use another, or client_state=device")
    if (settings.devices or 1) > 1 or jax.process_count() > 1:
        raise UsageError("client_state=host uses one device of one process: set devices=1, or client_state=device")
    block = min(settings.eval_every, settings.rounds) * context.cohort
    clients, seeds = min(context.clients, max(block, LEAST)), context.seeds
    lanes = (np.arange(seeds)[:, None] * context.clients + np.arange(clients)).reshape(-1)
    seed = np.repeat(np.arange(seeds), clients)
    stores = {module: restrict(store, lanes, seed) for module, store in context.stores.items()}
    here = dataclasses.replace(context, stores=stores, clients=clients)
    # Who is long and who is short differs by window.
    sizes = np.full((seeds, clients), longest)
    executor = make_executor(name, here, sizes)
    return Hosted(context, here, executor, make_executor(name, dataclasses.replace(here, cohort=clients), sizes))


def _one_ahead(items: Iterator[Tree]) -> Iterator[Tree]:
    """The items, each once the next is begun: the host fetches rows while the device computes."""
    held = next(items)
    for item in items:
        yield held
        held = item
    yield held


def _to_read(state: State) -> State:
    """What an evaluation reads of a state."""
    return state._replace(optimisers=[])


def _fetch(window: Window, state: State) -> State:
    """A window's part of a state, on the device."""
    return jax.device_put(map_rows(lambda leaf, rows: leaf[rows.source], window.maps, state))


def _put(window: Window, state: State, new: State) -> None:
    """Writes a window's part of a state into the whole."""

    def write(leaf: np.ndarray, value: Array, rows: Picked) -> None:
        leaf[rows.source[rows.real]] = np.asarray(value)[rows.real]

    map_rows(write, window.maps, state, new)
