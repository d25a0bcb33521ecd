"""What a method costs: bytes, parameters, work, time, memory and padding."""

import dataclasses
import resource
import sys
from typing import Any

import numpy as np

from fedjax_mm.runs.records import MethodRecord
from fedjax_mm.simulation.costs import module_bytes
from fedjax_mm.simulation.engine import Block, Engine
from fedjax_mm.simulation.executors import Lockstep


@dataclasses.dataclass(frozen=True)
class Clock:
    """Time spent on a method, over every session that worked on the run.

    Attributes:
        compile_seconds: Compiling.
        run_seconds: Running compiled blocks, evaluations included.
        rounds_run: Rounds run; above the run's rounds where an interrupted block was run again.
    """

    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    rounds_run: int = 0

    def add(self, block: Block) -> "Clock":
        """The time with one more block."""
        return Clock(
            self.compile_seconds + block.compile_seconds,
            self.run_seconds + block.run_seconds,
            self.rounds_run + len(block.rounds),
        )


def costs(engine: Engine, record: MethodRecord, clock: Clock) -> dict[str, Any]:
    """The entry of one method in `costs.json`.

    Args:
        engine: The method's engine.
        record: What it has recorded.
        clock: The time it took.

    Returns:
        `bytes_up_per_client_and_round`, `bytes_down_per_client_and_round`: means over rounds, seeds and the clients of
        a cohort, None before the first block. `parameters_per_client`: mean over clients and seeds of all networks a
        client runs. `flops_per_round_estimate`: of one seed's cohort, 6 per parameter and sample passed through it
        (forward 2, backward 4). `seconds_per_round`: of all seeds together, without compiling. `peak_memory_bytes`: of
        the process so far. `padding_share`: the share in [0, 1] of the batch positions computed in local training that
        hold no sample. And the fields of `Clock`.
    """
    parameters, flops = _work(engine)
    return {
        "bytes_up_per_client_and_round": _mean(record, "bytes_up"),
        "bytes_down_per_client_and_round": _mean(record, "bytes_down"),
        "parameters_per_client": float(parameters.mean()),
        "flops_per_round_estimate": float(flops.mean() * engine.context.cohort),
        **dataclasses.asdict(clock),
        "seconds_per_round": clock.run_seconds / clock.rounds_run if clock.rounds_run else None,
        "peak_memory_bytes": peak_memory(),
        "padding_share": padding(engine),
    }


def _mean(record: MethodRecord, term: str) -> float | None:
    if term not in record.terms:
        return None
    total, weight = record.terms[term]
    return float(total.sum() / weight.sum())


def _work(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Parameters a lane runs, and the floating-point operations of its round, float64 `[L]` each."""
    context, tables = engine.context, engine.population.tables
    member = np.asarray(tables.member)
    n, n_m = np.asarray(tables.info.n)[member], np.asarray(tables.info.n_m)[member]
    itemsize = np.dtype(context.settings.dtype).itemsize
    parameters, passes = np.zeros(len(member)), np.zeros(len(member))
    for name, store in context.stores.items():
        sizes = np.array([sizes["params"] for sizes in module_bytes(context, name)]) / itemsize
        held = np.where(store.bucket >= 0, sizes[store.bucket], 0)
        parameters += held.sum(axis=1)
        passes += (held * (n[:, None] if name in context.lane_modules else n_m)).sum(axis=1)
    return parameters, 6 * passes * context.spec.epochs


def padding(engine: Engine) -> float:
    """The share of the batch positions computed in local training that hold no sample, in [0, 1]; 0 if there is none.

    Lane after lane, a client pays for its own last batch; in lockstep every lane of the plan pays for the longest
    client, absent ones too.
    """
    context, n = engine.context, engine.population.train_sizes().astype(np.int64)
    batch = context.settings.batch or 1
    used = n // batch * batch if context.settings.drop_last else n
    steps = -(-used // batch)
    share = context.cohort / context.clients
    lanes = steps.sum() * share
    if isinstance(engine.executor, Lockstep):
        lanes = steps.max() * engine.executor.plans[0].size
    return float(1 - used.sum() * share / (lanes * batch)) if lanes else 0.0


def peak_memory() -> int:
    """The largest memory this process has used so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
