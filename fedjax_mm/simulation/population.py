"""Lanes: every client of every seed, as rows of index tables over one copy of the data."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.data.standardise import fit
from fedjax_mm.data.text import LENGTH, hash_text, is_text
from fedjax_mm.errors import UsageError
from fedjax_mm.federation.federation import Federation
from fedjax_mm.methods.method import Batch, Info

Array = jax.Array


class Tables(NamedTuple):
    """What lives on the device, for F distinct federations of K clients over n samples with M modalities.

    Attributes:
        inputs: Modality -> `[n + 1, ...]`: numbers as in the data, text as ids, int32 `[n + 1, 32]`. Entries that may
            not be read, and the last row, to which padding points, hold NaN if floating and 0 if ids.
        shift: Modality that is not text -> `[F, ...]`; the standardised input is `(x - shift) * scale`.
        scale: Modality that is not text -> `[F, ...]`.
        labels: Class ids, int32 `[n + 1]`.
        observed: Bool `[F, n + 1, M]`.
        train: Rows of the training samples, int32 `[F * K, width]`.
        evaluated: Rows of validation and test samples, int32 `[F * K, width]`.
        part: 1 for test samples, 0 for all others, int32 `[F, n + 1]`.
        evaluated_n: Entries in use of `evaluated`, int32 `[F * K]`.
        info: The clients, leaves `[F * K, ...]`.
        seed: Position of the lane's seed, int32 `[L]`.
        member: Row of the lane's client in the tables, int32 `[L]`.
    """

    inputs: Mapping[str, Array]
    shift: Mapping[str, Array]
    scale: Mapping[str, Array]
    labels: Array
    observed: Array
    train: Array
    evaluated: Array
    part: Array
    evaluated_n: Array
    info: Info
    seed: Array
    member: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """The lanes of a simulation: lane `s * K + k` is client k of seed s.

    Attributes:
        seeds: The S seeds.
        federations: The federation of each seed; seeds may share one.
        tables: What lives on the device.
        copies: Number of devices -> the tables that all of them have whole, laid over them once for all engines.
    """

    seeds: tuple[int, ...]
    federations: tuple[Federation, ...]
    tables: Tables
    copies: dict[int, Any] = dataclasses.field(default_factory=dict)

    @property
    def clients(self) -> int:
        """The number of clients K."""
        return self.federations[0].size

    @property
    def lanes(self) -> int:
        """The number of lanes S * K."""
        return len(self.seeds) * self.clients

    @property
    def modalities(self) -> tuple[str, ...]:
        """The M modality names."""
        return self.federations[0].data.modalities

    def train_sizes(self) -> np.ndarray:
        """Training samples per lane, `[S, K]`."""
        return np.stack([federation.train.sizes for federation in self.federations])


def build_population(seeds: Sequence[int], federations: Sequence[Federation], *, hosted: bool = False) -> Population:
    """Puts data and index tables on the device, each once.

    Args:
        seeds: The S seeds.
        federations: One per seed, over the same data and the same number of clients; the same object may repeat.
        hosted: Whether the tables that have a row per client or lane stay on the host, in NumPy.

    Returns:
        The population.

    Raises:
        UsageError: The federations do not belong together.
    """
    data, clients = federations[0].data, federations[0].size
    if len(seeds) != len(federations):
        raise UsageError(f"{len(seeds)} seeds need as many federations, not {len(federations)}")
    if any(federation.data is not data or federation.size != clients for federation in federations):
        raise UsageError("the federations of a simulation must share one data set and one number of clients")
    distinct = list({id(federation): federation for federation in federations}.values())
    which = [next(f for f, other in enumerate(distinct) if other is federation) for federation in federations]
    readable = np.any([federation.observed for federation in distinct], axis=0)
    standard = {m: _standardisation(distinct, i) for i, m in enumerate(data.modalities) if not is_text(data.inputs[m])}
    evaluated, evaluated_n = _evaluation_rows(distinct, data.size)
    by_client = ClientTables(
        _padded([f.train.rows for f in distinct], data.size), evaluated, evaluated_n, _infos(distinct)
    )
    lanes = {
        "seed": np.repeat(np.arange(len(seeds), dtype=np.int32), clients),
        "member": np.concatenate([f * clients + np.arange(clients) for f in which]).astype(np.int32),
    }
    own = by_client._asdict() | lanes
    tables = Tables(
        inputs={m: _readable(data.inputs[m], readable[:, i]) for i, m in enumerate(data.modalities)},
        shift={m: jnp.asarray(shift) for m, (shift, _) in standard.items()},
        scale={m: jnp.asarray(scale) for m, (_, scale) in standard.items()},
        labels=jnp.asarray(np.append(data.labels, 0), jnp.int32),
        observed=jnp.asarray([np.vstack([f.observed, np.zeros_like(f.observed[:1])]) for f in distinct]),
        part=jnp.asarray(_parts(distinct, data.size)),
        **(own if hosted else jax.tree.map(jnp.asarray, own)),
    )
    return Population(tuple(seeds), tuple(federations), tables)


class ClientTables(NamedTuple):
    """The tables with a row per client, fields of `Tables`."""

    train: Any
    evaluated: Any
    evaluated_n: Any
    info: Info


def pick_clients(tables: Tables, rows: np.ndarray, real: np.ndarray) -> ClientTables:
    """Some rows of the tables with a row per client.

    Args:
        tables: The tables, of F federations of K clients.
        rows: The rows, int `[...]`.
        real: False for padding, which has no samples and the id K, bool `[...]`.

    Returns:
        NumPy leaves `[..., *]`.
    """
    nobody, everyone = tables.labels.shape[0] - 1, tables.train.shape[0] // tables.observed.shape[0]

    def pick(table: Any, filler: int) -> np.ndarray:
        table = np.asarray(table)[rows]
        return np.where(real.reshape(real.shape + (1,) * (table.ndim - real.ndim)), table, filler).astype(table.dtype)

    info = tables.info
    return ClientTables(
        train=pick(tables.train, nobody),
        evaluated=pick(tables.evaluated, nobody),
        evaluated_n=pick(tables.evaluated_n, 0),
        info=info._replace(
            id=pick(info.id, everyone),
            task=pick(info.task, 0),
            modalities=np.asarray(info.modalities)[rows],
            counts=pick(info.counts, 0),
            n=pick(info.n, 0),
            n_m=pick(info.n_m, 0),
        ),
    )


def federation_of(tables: Tables, member: Array) -> Array:
    """Position of the federation, 0..F-1, of rows in the tables."""
    return member // (tables.train.shape[0] // tables.observed.shape[0])


def read_batch(tables: Tables, info: Info, member: Array, rows: Array) -> Batch:
    """Labels and masks of some samples of one lane.

    Args:
        tables: The tables.
        info: The lane's client.
        member: The lane's row in the tables, int32 scalar.
        rows: Rows of the data set, int32 `[B]`; n, one past the last, for padding.

    Returns:
        The batch. A sample without any modality of the client's is not valid.
    """
    observed = tables.observed[federation_of(tables, member), rows] & info.modalities
    valid = jnp.any(observed, axis=1)
    return Batch(jnp.where(valid, tables.labels[rows], 0), valid, observed.T, rows)


def read_inputs(tables: Tables, modality: str, member: Array, rows: Array, mask: Array, dtype: Any) -> Array:
    """Standardised inputs, or ids of text, of one slot, 0 where masked; the only place where inputs are read.

    Args:
        tables: The tables.
        modality: The modality's name.
        member: The lane's row in the tables, int32 scalar.
        rows: Rows of the data set, int32 `[B]`.
        mask: Bool `[B]`.
        dtype: Floating dtype of the result, if it is not ids.

    Returns:
        `[B, ...]`.
    """
    values = tables.inputs[modality][rows]
    if modality in tables.scale:
        federation = federation_of(tables, member)
        shift, scale = (table[modality][federation].astype(dtype) for table in (tables.shift, tables.scale))
        values = (values.astype(dtype) - shift) * scale
    return jnp.where(mask.reshape((-1,) + (1,) * (values.ndim - 1)), values, 0)


def _standardisation(distinct: Sequence[Federation], position: int) -> tuple[np.ndarray, np.ndarray]:
    data = distinct[0].data
    modality = data.modalities[position]
    fits = []
    for federation in distinct:
        holders = np.flatnonzero(federation.holds[:, position])
        rows = np.concatenate([federation.train.of(int(client)) for client in holders] or [np.zeros(0, np.int32)])
        rows = rows[federation.observed[rows, position]]
        fits.append(fit(data.inputs[modality], data.kinds[modality], rows))
    return np.stack([shift for shift, _ in fits]), np.stack([scale for _, scale in fits])


def _readable(values: np.ndarray, readable: np.ndarray) -> Array:
    if is_text(values):
        ids = np.zeros((len(values) + 1, LENGTH), np.int32)
        ids[np.flatnonzero(readable)] = hash_text(values[readable])
        return jnp.asarray(ids)
    table = np.concatenate([values, values[:1]])
    if np.issubdtype(table.dtype, np.floating):
        table[np.flatnonzero(~np.append(readable, False))] = np.nan
    return jnp.asarray(table)


def _padded(tables: Sequence[np.ndarray], filler: int) -> np.ndarray:
    width = max(table.shape[1] for table in tables)
    return np.concatenate(
        [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=filler) for t in tables]
    ).astype(np.int32)


def _evaluation_rows(distinct: Sequence[Federation], filler: int) -> tuple[np.ndarray, np.ndarray]:
    lists = [np.concatenate([f.validation.of(k), f.test.of(k)]) for f in distinct for k in range(f.size)]
    sizes = np.array([len(rows) for rows in lists], np.int32)
    table = np.full((len(lists), sizes.max()), filler, np.int32)
    for row, rows in zip(table, lists, strict=True):
        row[: len(rows)] = rows
    return table, sizes


def _parts(distinct: Sequence[Federation], filler: int) -> np.ndarray:
    parts = np.zeros((len(distinct), filler + 1), np.int32)
    for part, federation in zip(parts, distinct, strict=True):
        part[federation.test.rows[federation.test.rows < filler]] = 1
    return parts


def _infos(distinct: Sequence[Federation]) -> Info:
    data, clients = distinct[0].data, distinct[0].size
    counts, n_m = [], []
    for federation in distinct:
        for client in range(clients):
            rows = federation.train.of(client)
            counts.append(np.bincount(data.labels[rows], minlength=len(data.classes)))
            n_m.append((federation.observed[rows] & federation.holds[client]).sum(axis=0))
    found: dict[str, Any] = {
        "id": np.tile(np.arange(clients, dtype=np.int32), len(distinct)),
        "task": np.zeros(clients * len(distinct), np.int32),
        "modalities": np.concatenate([f.holds for f in distinct]),
        "counts": np.stack(counts).astype(np.int32),
        "n": np.concatenate([f.train.sizes for f in distinct]).astype(np.int32),
        "n_m": np.stack(n_m).astype(np.int32),
    }
    return Info(**found)
