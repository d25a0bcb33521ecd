"""What `--dry-run` prints: everything about an experiment that is known before compiling."""

import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from fedjax_mm.cli import missing
from fedjax_mm.cli.report import counted
from fedjax_mm.federation import Federation, overview
from fedjax_mm.runs.costs import parameters
from fedjax_mm.runs.experiment import Experiment
from fedjax_mm.simulation.build import state_shapes
from fedjax_mm.simulation.costs import Exchange
from fedjax_mm.simulation.engine import Engine

MANY = 20
"""More clients than this are summed up by the modalities they hold."""


def show(experiment: Experiment) -> None:
    """Prints the federation, encoder buckets, and each method's executor, parameters, bytes and memory."""
    console = Console(highlight=False, markup=False)
    seeds = experiment.settings.seeds
    federation = experiment.federations[0]
    title = f"{federation.data.name}, {federation.settings.get('partition')}, {counted(federation.size, 'client')}"
    split = f"split seed {federation.split_seed}{': each seed has its own' if experiment.each else ''}"
    console.print(_frame(f"{title}, {split}", _clients(federation)))
    for line in missing.lines(federation.settings, [federation.counts], [federation.missing_rates]):
        console.print(line)
    engine = experiment.engines[experiment.entries[0].label]
    console.print(_frame(f"Encoders of {counted(len(seeds), 'seed')}, by architecture", _buckets(engine)))
    rows = [{"method": entry.label, **_method(experiment.engines[entry.label])} for entry in experiment.entries]
    console.print(_frame("Methods", pd.DataFrame(rows)))
    for entry in experiment.entries:
        method = experiment.engines[entry.label]
        console.print(f"{entry.label}: executor {method.executor_name} ({method.reason})")
    console.print(
        f"Data and index tables on the device: {_mebibytes(_on_device(engine.population.tables))} MiB, once for all."
    )
    console.print(
        "Bytes are per client and round; 'a + n·b' means a, and b more for each of n rows sent (a row: one class's "
        "prototype, say). Parameters are a client's own networks, mean over clients and seeds."
    )
    for note in experiment.notes:
        console.print(f"Note: {note}.")
    console.print("Nothing was compiled or written.")


def _clients(federation: Federation) -> pd.DataFrame:
    # Lines break at spaces only, so between names.
    table = overview(federation).assign(modalities=lambda frame: frame["modalities"].str.replace("+", " + "))
    if federation.size <= MANY:
        return table
    parts = ["train", "validation", "test", "classes"]
    grouped = table.groupby("modalities", sort=False)
    ranges = grouped[parts].agg(lambda column: f"{column.min()}-{column.max()}")
    ranges.insert(0, "clients", grouped.size())
    return ranges.reset_index()


def _buckets(engine: Engine) -> pd.DataFrame:
    counts = Counter()
    for store in engine.context.stores.values():
        if store.module.network is None:
            for position, spec in enumerate(store.networks):
                counts[str(spec)] += int((store.network == position).sum())
    return pd.DataFrame({"architecture": list(counts), "encoders": list(counts.values())})


def _method(engine: Engine) -> dict[str, Any]:
    state = state_shapes(engine.context, engine.world)
    return {
        "parameters": f"{parameters(engine).mean():,.0f}",
        "bytes up": ", then ".join(dict.fromkeys(_price(stage) for stage in engine.upload)),
        "bytes down": _price(engine.download),
        "state (MiB)": _mebibytes(state),
    }


def _price(exchange: Exchange) -> str:
    fixed = f"{exchange.modules.mean() + exchange.fixed:,.0f}"
    return " + ".join([fixed, *(f"n·{row:,}" for row in exchange.row)])


def _on_device(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def _mebibytes(tree: Any) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return f"{sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves) / 2**20:,.1f}"


def _frame(title: str, frame: pd.DataFrame) -> Table:
    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(column, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*map(str, row))
    return table
