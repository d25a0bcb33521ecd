"""Where parameters live: one stacked array per bucket of equal shape, a row per owner.

Dense encoders are kept layer by layer (see `dense`), everything else whole; either is a piece here. A slot is (lane,
level and modality) for encoders and other networks per modality, (lane,) for the rest. Each slot points at a row of its
bucket. What is private has a row per slot; what the server averages has a row per seed (level and modality), to which
the slots of that seed point. Owning is nothing but this map.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_mm.data.dataset import MultimodalDataset
from fedjax_mm.data.text import LENGTH, VOCABULARY, is_text
from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Layout, Module
from fedjax_mm.models import applicable, networks
from fedjax_mm.models.networks import NetworkSpec
from fedjax_mm.models.pool import draw_encoder, shared_encoder
from fedjax_mm.simulation.dense import LayerSpec, joined, layer_key, layer_numbers, split
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.population import Population
from fedjax_mm.simulation.settings import Settings

Array = jax.Array
Tree = Any
PARTS = ("params", "statistics")
ROWS = (*PARTS, "slots")


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
    """The storage of one module, described.

    Attributes:
        name: The module's name.
        module: The module.
        networks: The distinct architectures.
        network: The one of each (lane, j), int32 `[L, J]`, -1 where there is none; J is M per modality, else 1.
        specs: The piece that is in each bucket.
        bucket: Bucket of each slot, int32 `[L, levels * J]`, -1 where there is none.
        rows: Part (`params`, `statistics`) -> row of each slot within its bucket, int32, likewise; under `slots` a row
            of its own for every slot, for what a client keeps of a network whoever owns it.
        owners: Part -> per bucket, for each row, a lane of its owner and its column, `[rows, 2]`.
    """

    name: str
    module: Module
    networks: tuple[NetworkSpec, ...]
    network: np.ndarray
    specs: tuple[NetworkSpec, ...]
    bucket: np.ndarray
    rows: Mapping[str, np.ndarray]
    owners: Mapping[str, tuple[np.ndarray, ...]]

    def shared(self, part: str) -> bool:
        """True if the server averages the part; what a client keeps in `slots` is its own, whoever owns the network."""
        local = part == "slots" or (part == "statistics" and self.module.statistics == "local")
        return self.module.share == "mean" and not local


def build_stores(layout: Layout, population: Population, settings: Settings) -> dict[str, Store]:
    """The storage of every module of a layout, by name."""
    stores = {}
    for name, module in layout.modules.items():
        if settings.statistics is not None:
            module = dataclasses.replace(module, statistics=settings.statistics)
        if module.network is None:
            found, network = encoder_architectures(population, settings)
        elif module.per_modality:
            holds = np.concatenate([federation.holds for federation in population.federations])
            found, network = (module.network,), np.where(holds, 0, -1).astype(np.int32)
        else:
            found, network = (module.network,), np.zeros((population.lanes, 1), np.int32)
        seeds = np.repeat(np.arange(len(population.seeds)), population.clients)
        stores[name] = _store(name, module, found, network, seeds)
    return stores


def restrict(store: Store, lanes: np.ndarray, seeds: np.ndarray) -> Store:
    """The storage of some lanes alone, numbered anew.

    Args:
        store: The storage.
        lanes: The lanes, int `[l]`.
        seeds: Position of each one's seed, from 0, ascending, int `[l]`.

    Returns:
        A storage with the same buckets and, in each, only the rows of these lanes.
    """
    return _store(store.name, store.module, store.networks, store.network[lanes], seeds)


def encoder_architectures(population: Population, settings: Settings) -> tuple[tuple[NetworkSpec, ...], np.ndarray]:
    """The distinct encoder architectures and the one of each (lane, modality), int32 `[L, M]`, -1 where none.

    Raises:
        UsageError: No kind of `settings.encoders` applies to a modality that some client holds.
    """
    data = population.federations[0].data
    positions: dict[NetworkSpec, int] = {}
    tables = {}
    for federation in population.federations:
        if id(federation) in tables:
            continue
        table = np.full(federation.holds.shape, -1, np.int32)
        for client, m in np.argwhere(federation.holds):
            shape, vocabulary, kinds = _described(data, data.modalities[m], settings)
            if settings.model == "shared":
                options = {"vocabulary": vocabulary, "widths": settings.widths}
                spec = shared_encoder(shape, settings.dim, kind=kinds[0], **options)
            else:
                spec = draw_encoder(
                    shape,
                    settings.dim,
                    kinds=kinds,
                    split_seed=federation.split_seed,
                    client=int(client),
                    modality=int(m),
                    vocabulary=vocabulary,
                    pool_size=settings.pool_size,
                    widths=settings.widths,
                )
            table[client, m] = positions.setdefault(spec, len(positions))
        tables[id(federation)] = table
    return tuple(positions), np.concatenate([tables[id(federation)] for federation in population.federations])


def _described(
    data: MultimodalDataset, modality: str, settings: Settings
) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Shape of one input, vocabulary (0 for numbers) and kinds of encoder to choose from."""
    text = is_text(data.inputs[modality])
    shape = (LENGTH,) if text else tuple(data.inputs[modality].shape[1:])
    valid = applicable(data.kinds[modality], shape, text=text)
    kinds = tuple(kind for kind in dict.fromkeys(settings.encoders or ()) if kind in valid)
    if not kinds:
        raise UsageError(
            f"encoders is {','.join(settings.encoders or ())}, none of which applies to modality {modality!r} "
            f"({'text' if text else data.kinds[modality]}, {'x'.join(map(str, shape))}); {', '.join(valid)} would"
        )
    return shape, VOCABULARY if text else 0, kinds


def initial_values(store: Store, population: Population, keys: Array, settings: Settings) -> list[Tree]:
    """Fresh networks for every row of every bucket.

    A shared network starts from (seed, module, modality); all private copies of one shape start from the same weights
    as it, so that methods are comparable from the first step. Under the pool each client's encoder has its own.

    Args:
        store: The storage.
        population: The lanes.
        keys: One key per seed, `[S]`.
        settings: Resolved settings.

    Returns:
        Per bucket `{"params": tree, "statistics": tree}`, NumPy leaves `[rows, ...]` of their own.
    """
    own, width = store.module.network is None and settings.model == "pool", store.network.shape[1]
    asked, copies_of = [], []
    for owners in store.owners["params"]:
        seed, client = np.divmod(owners[:, 0], population.clients)
        layer = layer_numbers(store.bucket, width)[owners[:, 0], owners[:, 1]]
        drawn = np.stack([seed, client * own, owners[:, 1] % width, layer], axis=1)
        rows, copies = np.unique(drawn, axis=0, return_inverse=True)
        asked.append(rows)
        copies_of.append(copies.reshape(-1))

    @jax.jit
    @jax.vmap
    def words_of(seed: Array, client: Array, j: Array, number: Array) -> tuple[Array, Array]:
        key = derive(keys[seed], f"initial {store.module.start or store.name}", j)
        key = derive(key, "client", client) if own else key
        return jax.random.key_data(key), jax.random.key_data(layer_key(key, number))

    # All at once: each shape would compile anew.
    words = [np.asarray(part) for part in words_of(*np.concatenate(asked).astype(np.int32).T)]
    borders = np.cumsum([len(rows) for rows in asked])[:-1]
    values = []
    for position, (spec, copies, whole, layer) in enumerate(
        zip(store.specs, copies_of, *(np.split(part, borders) for part in words), strict=True)
    ):
        if isinstance(spec, LayerSpec):
            params, statistics = spec.draw(layer, settings.dtype), {}
        else:
            fresh = [networks.init(spec, jax.random.wrap_key_data(mine), settings.dtype) for mine in whole]
            params = jax.tree.map(lambda *leaves: np.stack(leaves), *[params for params, _ in fresh])
            statistics = fresh[0][1]
        count = len(store.owners["statistics"][position])
        values.append(
            {
                "params": at(params, copies),
                "statistics": jax.tree.map(lambda leaf, n=count: np.repeat(np.asarray(leaf)[None], n, 0), statistics),
            }
        )
    return values


def value_shapes(store: Store, settings: Settings) -> list[Tree]:
    """Shapes and dtypes of what `initial_values` returns."""
    values = []
    for position, spec in enumerate(store.specs):
        values.append({})
        for part, tree in zip(PARTS, networks.shapes(spec, settings.dtype), strict=True):
            rows = len(store.owners[part][position])
            values[-1][part] = jax.tree.map(lambda s, n=rows: jax.ShapeDtypeStruct((n, *s.shape), s.dtype), tree)
    return values


def network_of(
    store: Store, values: Sequence[Mapping[str, Tree]], lane: int, j: int = 0, *, part: str = "params", rows: str = ""
) -> Tree | None:
    """One network, in the form `networks.init` gives it.

    Args:
        store: The storage of its module.
        values: What is stored, as `initial_values` returns it.
        lane: Its lane.
        j: Its modality; 0 for a module that exists once a lane.
        part: `params` or `statistics`.
        rows: Rows to follow (`slots`); by default the part's own.

    Returns:
        The tree; None where the lane has no such network.
    """
    width = store.network.shape[1]
    columns = [c for c in range(j, store.bucket.shape[1], width) if store.bucket[lane, c] >= 0]
    pieces = [at(values[store.bucket[lane, c]][part], store.rows[rows or part][lane, c]) for c in columns]
    if not pieces:
        return None
    layers = isinstance(store.specs[store.bucket[lane, j]], LayerSpec)
    return joined(pieces) if layers and part == "params" else pieces[0]


def at(tree: Tree, index: Any) -> Tree:
    """Every leaf indexed along its leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _store(name: str, module: Module, found: Sequence[NetworkSpec], network: np.ndarray, seed: np.ndarray) -> Store:
    specs, bucket = split(found, network)
    store = Store(name, module, tuple(found), network, specs, bucket, {}, {})
    tables = {part: _rows(bucket, len(specs), seed if store.shared(part) else None) for part in ROWS}
    rows = {part: table for part, (table, _) in tables.items()}
    return dataclasses.replace(store, rows=rows, owners={part: owners for part, (_, owners) in tables.items()})


def _rows(bucket: np.ndarray, buckets: int, seed: np.ndarray | None) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Rows in modality-major order for private slots; (seed, modality) in seed-major order for shared ones."""
    rows = np.full(bucket.shape, -1, np.int32)
    owners = []
    for position in range(buckets):
        j, lane = np.nonzero((bucket == position).T)
        if seed is None:
            rows[lane, j] = np.arange(len(lane))
            owners.append(np.stack([lane, j], axis=1))
        else:
            columns = np.unique(j)
            rows[lane, j] = seed[lane] * len(columns) + np.searchsorted(columns, j)
            first_lane = np.searchsorted(seed, np.arange(seed.max() + 1))
            owners.append(np.stack([np.repeat(first_lane, len(columns)), np.tile(columns, len(first_lane))], axis=1))
    return rows, tuple(owners)
