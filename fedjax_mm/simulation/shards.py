"""A simulation on several devices: one program, a part of the lanes on each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_mm.simulation.blocks import run_rounds
from fedjax_mm.simulation.context import Context, State, World
from fedjax_mm.simulation.division import Division
from fedjax_mm.simulation.evaluate import Counts, Evaluator
from fedjax_mm.simulation.executors import Executor
from fedjax_mm.simulation.placement import make_executor
from fedjax_mm.simulation.population import ClientTables, Population, Tables, pick_clients
from fedjax_mm.simulation.rounds import Record, Round
from fedjax_mm.simulation.rowmaps import RowMap, map_rows, row_maps
from fedjax_mm.simulation.stores import Store, restrict

Array = jax.Array
Tree = Any
AXIS = "lanes"
EACH, ALL = PartitionSpec(AXIS), PartitionSpec()


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """A simulation, divided.

    Attributes:
        division: Who has which lanes.
        mesh: The devices.
        context: The static side as each device sees it.
        world: The arrays no round changes; what differs by device has a leading axis `[D]`.
        parts: The same tree of partition specifications.
        maps: How the state is divided, a prefix of its tree.
        executor: How lanes are trained.
        reader: How lanes are evaluated.
    """

    division: Division
    mesh: Mesh
    context: Context
    world: World
    parts: World
    maps: State
    executor: Executor
    reader: Executor

    def of(self, world: World) -> "Shards":
        """The same for a world that differs in its numbers alone."""

        def by_seed(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: _put(self.mesh, leaf[self.division.seeds], EACH), tree)

        numbers = {"method": by_seed(world.method), "optimisers": by_seed(world.optimisers)}
        return dataclasses.replace(self, world=self.world._replace(**numbers))

    def place(self, state: State) -> State:
        """A state of one device, divided: leaves `[D, r, ...]`, a device's part on the device."""

        def lay(leaf: Array, rows: RowMap) -> Array:
            return _by_host(lambda host: _put(self.mesh, host[rows.source], EACH), leaf)

        return map_rows(lay, self.maps, state)

    def gather(self, state: State) -> State:
        """The inverse of `place`: the state as one device would have it, on this process's first device."""
        first = self.mesh.local_devices[0]

        def collect(leaf: Array, rows: RowMap) -> Array:
            return _by_host(lambda host: jax.device_put(host[rows.device, rows.row], first), leaf)

        return map_rows(collect, self.maps, self._whole(state))

    def function(self, rounds: Round, predictors: tuple[str, ...], length: int) -> tuple[Any, dict[str, str | bool]]:
        """`run_rounds` on all devices.

        Args:
            rounds: The rounds, of this context.
            predictors: Names of the predictors.
            length: The number of rounds.

        Returns:
            A function of (world, state, first round) to the state, records and counts, all but the round with a leading
            axis `[D]`, and the options to compile it with.
        """
        evaluator = Evaluator(self.context, predictors)
        run = functools.partial(run_rounds, self.executor, self.reader, rounds, evaluator, length)

        def local(world: World, state: State, first: Array) -> Tree:
            mine = _map_parts(lambda part, leaf: leaf[0] if part == EACH else leaf, self.parts, world)
            result = run(mine, jax.tree.map(lambda leaf: leaf[0], state), first)
            return jax.tree.map(lambda leaf: leaf[None], result)

        # Whether values are equal on all devices is our own matter: what is, is taken from the first.
        spread = jax.shard_map(local, mesh=self.mesh, in_specs=(self.parts, EACH, ALL), out_specs=EACH, check_vma=False)
        # A device is a core: it must not wait for the others' threads.
        on_cores = self.mesh.devices.flat[0].platform == "cpu"
        return spread, {"xla_cpu_multi_thread_eigen": False} if on_cores else {}

    def merge(self, records: Record, counts: Counts) -> tuple[Record, Counts]:
        """Records and counts as one device would have left them, in NumPy."""
        records, counts = jax.tree.map(np.asarray, self._whole((records, counts)))
        lanes, real = self.division.lanes, self.division.real

        def by_seed(leaf: np.ndarray) -> np.ndarray:
            where: RowMap = self.maps.server
            return np.moveaxis(np.moveaxis(leaf, 2, 1)[where.device, where.row], 0, 1)

        def by_lane(leaf: np.ndarray) -> np.ndarray:
            """From `[D, ..., l, ...]` with the lanes moved to axis 1, to `[L, ...]`."""
            whole = np.zeros((lanes[real].max() + 1, *leaf.shape[2:]), leaf.dtype)
            whole[lanes[real]] = leaf[real]
            return whole

        merged = jax.tree.map(by_seed, records._replace(broken={}))
        broken = {name: by_lane(np.moveaxis(np.asarray(flags), 2, 1)).T for name, flags in records.broken.items()}
        return merged._replace(broken=broken), jax.tree.map(by_lane, counts)

    def _whole(self, tree: Tree) -> Tree:
        """A tree of divided arrays, of which this process can read all."""
        if jax.process_count() > 1:
            return jax.tree.map(lambda leaf: leaf.addressable_data(0), _everywhere(self.mesh)(tree))
        return tree


@functools.cache
def _everywhere(mesh: Mesh) -> Any:
    """A function that lays all of a tree on every device."""
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, ALL))


def make_shards(context: Context, world: World, population: Population, division: Division, name: str) -> Shards:
    """Divides a simulation.

    Args:
        context: The context of all lanes.
        world: The world of all lanes.
        population: The lanes.
        division: Who has which lanes.
        name: The executor's name.

    Returns:
        The shards.
    """
    seeds = division.seeds.shape[1]
    seed = np.repeat(np.arange(seeds), division.lanes.shape[1] // seeds)
    stores = {module: restrict(store, division.lanes[0], seed) for module, store in context.stores.items()}
    local = dataclasses.replace(
        context,
        stores=stores,
        seeds=seeds,
        clients=len(seed) // seeds,
        axis=AXIS if division.by == "clients" else None,
    )
    mesh = jax.make_mesh(
        (division.devices,),
        (AXIS,),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=_some_of_each_process(division.devices),
    )
    sizes = population.train_sizes().reshape(-1)
    longest = np.where(division.real, sizes[division.lanes], 0).max(axis=0).reshape(seeds, -1)
    parts = _parts(division)
    return Shards(
        division=division,
        mesh=mesh,
        context=local,
        world=place_world(mesh, parts, _laid(mesh, parts, world, population), division, stores),
        parts=parts,
        maps=row_maps(context, stores, division),
        executor=make_executor(name, local, longest),
        reader=make_executor(name, dataclasses.replace(local, cohort=local.clients), longest),
    )


def _some_of_each_process(count: int) -> list[Any]:
    """So many devices, as many of each process, in order of processes."""
    processes = jax.process_count()
    by_process = [[d for d in jax.devices() if d.process_index == p] for p in range(processes)]
    return [device for devices in by_process for device in devices[: count // processes]]


def _laid(mesh: Mesh, parts: World, world: World, population: Population) -> World:
    """The world with the tables that every device has whole laid over the devices already."""
    wholes = [name for name, part in parts.tables._asdict().items() if part == ALL]
    kept = population.copies.setdefault(mesh.size, {})
    for name in wholes:
        if name not in kept:
            kept[name] = jax.tree.map(lambda leaf: _put(mesh, leaf, ALL), getattr(world.tables, name))
    return world._replace(tables=world.tables._replace(**{name: kept[name] for name in wholes}))


def place_world(mesh: Mesh, parts: World, world: World, division: Division, stores: Mapping[str, Store]) -> World:
    """The world of all lanes, divided; `parts` says which leaves get a leading axis of devices."""
    devices, lanes = division.lanes.shape
    seeds = division.seeds
    mine = {
        "seed": np.tile(np.repeat(np.arange(seeds.shape[1]), lanes // seeds.shape[1]), (devices, 1)).astype(np.int32)
    }
    mine |= _clients_of(world.tables, division) if division.by == "clients" else _members_of(world.tables, division)
    by_seed = functools.partial(jax.tree.map, lambda leaf: leaf[seeds])
    divided = World(
        tables=world.tables._replace(**mine),
        rows={name: dict(store.rows) for name, store in stores.items()},  # pyright: ignore[reportArgumentType]
        keys=world.keys[seeds],
        method=by_seed(world.method),
        optimisers=by_seed(world.optimisers),
    )
    return _map_parts(lambda part, leaf: _put(mesh, leaf, part), parts, divided)


def _parts(division: Division) -> World:
    named = dict.fromkeys(Tables._fields, ALL) | {"seed": EACH, "member": EACH}
    if division.by == "clients":
        named |= dict.fromkeys(ClientTables._fields, EACH)
    return World(Tables(**named), rows=ALL, keys=EACH, method=EACH, optimisers=EACH)  # pyright: ignore[reportArgumentType]


def _members_of(tables: Any, division: Division) -> dict[str, Any]:
    return {"member": np.asarray(tables.member)[division.lanes]}


def _clients_of(tables: Any, division: Division) -> dict[str, Any]:
    """The tables of each device's clients alone, leaves `[D, F * k, ...]`; padding has no samples and the id K."""
    federations, seeds = tables.observed.shape[0], division.seeds.shape[1]
    everyone, here = tables.train.shape[0] // federations, division.lanes.shape[1] // seeds
    clients, real = division.lanes[:, :here] % everyone, division.real[:, :here]
    rows = (np.arange(federations)[None, :, None] * everyone + clients[:, None]).reshape(division.devices, -1)
    real = np.tile(real, (1, federations))
    federation = np.asarray(tables.member).reshape(seeds, everyone)[:, 0] // everyone
    member = (federation[:, None] * here + np.arange(here)).reshape(-1).astype(np.int32)
    return pick_clients(tables, rows, real)._asdict() | {"member": np.tile(member, (division.devices, 1))}


def _map_parts(function: Any, parts: World, world: World) -> World:
    """`function(partition specification, leaf)` for every leaf of a world."""

    def below(part: PartitionSpec, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: function(part, leaf), tree)

    return jax.tree.map(below, parts, world, is_leaf=lambda node: isinstance(node, PartitionSpec))


def _by_host(function: Callable[[np.ndarray], Array], leaf: Array) -> Array:
    """A function of an array's values on the host; a program would compile anew for each shape."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _by_host(function, jax.random.key_data(leaf))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    return function(np.asarray(leaf))


def _put(mesh: Mesh, leaf: Any, part: PartitionSpec) -> Array:
    """An array that every process has whole, laid over the devices."""
    if isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(mesh, jax.random.key_data(leaf), part), impl=jax.random.key_impl(leaf))
    sharding = NamedSharding(mesh, part)
    if isinstance(leaf, Array) and leaf.sharding == sharding:
        return leaf
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
