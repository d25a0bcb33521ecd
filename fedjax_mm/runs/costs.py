"""What a method costs: bytes, parameters, work, time, memory and padding."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_mm.process import peak_memory
from fedjax_mm.runs.records import MethodRecord
from fedjax_mm.simulation.costs import forward_operations, module_bytes
from fedjax_mm.simulation.engine import Block, Engine
from fedjax_mm.simulation.executors import Lockstep


@dataclasses.dataclass(frozen=True)
class Clock:
    """Time spent on a method, over every session that worked on the run.

    Attributes:
        compile_seconds: Compiling.
        run_seconds: Running compiled blocks, evaluations included.
        rounds_run: Rounds run; above the run's rounds where an interrupted block was run again.
        program_bytes: The most a compiled program needed on a device: arguments, results and temporaries.
    """

    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    rounds_run: int = 0
    program_bytes: int = 0

    def add(self, block: Block) -> "Clock":
        """The time with one more block."""
        return Clock(
            self.compile_seconds + block.compile_seconds,
            self.run_seconds + block.run_seconds,
            self.rounds_run + len(block.rounds),
            max(self.program_bytes, block.program_bytes),
        )


def fixed_costs(engine: Engine) -> dict[str, float]:
    """The costs of one method that are known before it runs.

    Returns:
        `parameters_per_client`: mean over clients and seeds of all networks a client runs. `flops_per_round_estimate`:
        local training of one seed's cohort as the method defines it, a backward pass counted as two forward ones
        (`forward_operations`); what is computed may be less, where first layers are trained in the span of samples.
        `samples_per_round`: training samples that one seed's cohort goes through, epochs counted, on average.
        `padding_share`: the share in [0, 1] of the batch positions computed in local training that hold no sample.
    """
    return {
        "parameters_per_client": float(parameters(engine).mean()),
        "flops_per_round_estimate": float(work(engine).mean() * engine.context.cohort),
        "samples_per_round": float(engine.population.train_sizes().mean() * engine.context.cohort * _epochs(engine)),
        "padding_share": padding(engine),
    }


def _epochs(engine: Engine) -> float:
    """Passes over a client's data in a round, on average over the rounds."""
    default = engine.context.spec.epochs
    passes = [
        (stage.rounds or 0) * sum(default if phase.epochs is None else phase.epochs for phase in stage.phases)
        for stage in engine.stages
    ]
    return sum(passes) / sum(stage.rounds or 0 for stage in engine.stages)


def running_costs(record: MethodRecord, clock: Clock, samples: float) -> dict[str, Any]:
    """The costs of one method so far.

    Args:
        record: What it has recorded.
        clock: The time it took.
        samples: `samples_per_round`.

    Returns:
        `bytes_up_per_client_and_round`, `bytes_down_per_client_and_round`: means over rounds, seeds and the clients of
        a cohort, None before the first block. `seconds_per_round`: of all seeds together, without compiling.
        `samples_per_second`: useful training samples, padding left out, of all seeds.
        `peak_memory_bytes`: of the process so far. And the fields of `Clock`.
    """
    return {
        "bytes_up_per_client_and_round": _mean(record, "bytes_up"),
        "bytes_down_per_client_and_round": _mean(record, "bytes_down"),
        **dataclasses.asdict(clock),
        "seconds_per_round": clock.run_seconds / clock.rounds_run if clock.rounds_run else None,
        "samples_per_second": samples * len(record.seeds) * clock.rounds_run / clock.run_seconds
        if clock.rounds_run
        else None,
        "peak_memory_bytes": peak_memory(),
    }


def _mean(record: MethodRecord, term: str) -> float | None:
    if term not in record.terms:
        return None
    total, weight = record.terms[term]
    return float(total.sum() / weight.sum())


def _held(engine: Engine, prices: Mapping[str, Sequence[float]]) -> dict[str, np.ndarray]:
    """Module -> what each lane's networks come to at a price for each of the module's pieces, `[L, J]`."""
    held = {}
    for name, store in engine.context.stores.items():
        pieces = np.where(store.bucket >= 0, np.asarray(prices[name])[store.bucket], 0)
        held[name] = pieces.reshape(len(pieces), -1, store.network.shape[1]).sum(axis=1)
    return held


def parameters(engine: Engine) -> np.ndarray:
    """Parameters of all networks each lane runs, int64 `[L]`."""
    context, itemsize = engine.context, np.dtype(engine.context.settings.dtype).itemsize
    sizes = {name: [size["params"] // itemsize for size in module_bytes(context, name)] for name in context.stores}
    return np.sum([counts.sum(axis=1) for counts in _held(engine, sizes).values()], axis=0)


def work(engine: Engine) -> np.ndarray:
    """Floating-point operations of each lane's local training in a round, estimated, float64 `[L]`."""
    context, tables = engine.context, engine.population.tables
    member = np.asarray(tables.member)
    n, n_m = np.asarray(tables.info.n, np.float64)[member], np.asarray(tables.info.n_m, np.float64)[member]
    dtype = context.settings.dtype
    prices = {name: [forward_operations(spec, dtype) for spec in store.specs] for name, store in context.stores.items()}
    passes = [
        (counts * (n_m if context.layout.modules[name].by_modality else n[:, None])).sum(axis=1)
        for name, counts in _held(engine, prices).items()
    ]
    return 3 * context.spec.epochs * np.sum(passes, axis=0)


def padding(engine: Engine) -> float:
    """The share of the batch positions computed in local training that hold no sample, in [0, 1]; 0 if there is none.

    Lane after lane, a client pays for its own last batch; in lockstep every lane of the plan pays for the longest
    client, absent ones too.
    """
    context, n = engine.context, engine.population.train_sizes().reshape(-1).astype(np.int64)
    batch = context.settings.batch or 1
    used = n // batch * batch if context.settings.drop_last else n
    steps = -(-used // batch)
    share = context.cohort / context.clients
    lanes = steps.sum() * share
    if isinstance(engine.executor, Lockstep) and engine.hosted:
        lanes = steps.max() * sum(plan.size * plan.turns for plan in engine.executor.plans)
    elif isinstance(engine.executor, Lockstep):
        # What devices hold to come out even counts too.
        held = engine.shards.division.lanes if engine.shards else np.arange(len(steps))[None]
        plans = engine.executor.plans
        lanes = sum(steps[mine[plan.members]].max() * plan.size * plan.turns for mine in held for plan in plans)
    return float(1 - used.sum() * share / (lanes * batch)) if lanes else 0.0
