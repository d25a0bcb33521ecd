"""The process that runs one variant of one workload: `python -m fedjax_mm.bench.worker REQUEST`.

It answers in lines of JSON: one after the first call, one for every line it is sent, each after one more timed block.
What else is printed goes to stderr.
"""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from fedjax_mm.bench.workloads import WORKLOADS, Workload, architectures, make_federation
from fedjax_mm.federation import Federation
from fedjax_mm.process import peak_memory

Block = Callable[[], dict[str, float]]
"""Runs the next block; what it tells of it, `seconds` among it."""


def engine_blocks(workload: Workload, federation: Federation, seeds: int, executor: str, devices: int | None) -> Block:
    """The engine's blocks, set up as a user's run is; nothing is compiled before the first."""
    from fedjax_mm import methods
    from fedjax_mm.runs.backend import prepare_backend
    from fedjax_mm.simulation.engine import build_engine
    from fedjax_mm.simulation.population import build_population
    from fedjax_mm.simulation.settings import Settings
    from fedjax_mm.simulation.shelf import open_shelf

    prepare_backend(devices)
    rounds = workload.rounds(federation.size, seeds)
    settings = Settings(
        rounds=10**6,
        eval_every=rounds,
        seeds=tuple(range(seeds)),
        executor=executor,
        devices=devices,
        **{"model": "pool", **workload.settings},
    ).resolved(workload.partition, federation.size)
    population = build_population(settings.seeds, [federation] * seeds)
    method = methods.find(workload.method)(**workload.options)
    engine = build_engine(method, population, settings, shelf=open_shelf())
    state, done = engine.initial_state(), 0

    def block() -> dict[str, float]:
        nonlocal state, done
        start = time.perf_counter()
        state, ran = engine.run_block(state, done + 1, rounds)
        done += rounds
        return {
            "seconds": time.perf_counter() - start - ran.compile_seconds,
            "compile_seconds": ran.compile_seconds,
        }

    return block


def torch_blocks(
    workload: Workload, federation: Federation, seeds: int, variant: str, encoders: list[dict[int, tuple[int, ...]]]
) -> Block:
    """The blocks of a PyTorch reference, seed after seed."""
    import torch  # pyright: ignore[reportMissingImports]

    from fedjax_mm.bench.torch_reference import REFERENCES, THREADS, make_task
    from fedjax_mm.bench.torch_streams import FedAvgStreams

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    task = make_task(workload, federation, encoders)
    kind = FedAvgStreams if workload.kind == "time-series" else REFERENCES[workload.method, variant]
    references = [kind(task) for _ in range(seeds)]
    rounds = workload.rounds(federation.size, seeds)

    def block() -> dict[str, float]:
        start = time.perf_counter()
        for reference in references:
            for _ in range(rounds):
                reference.round()
        return {"seconds": time.perf_counter() - start}

    return block


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result, computed in another process: what it imports does not count as this one's memory."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def prepare(workload: Workload, clients: int, seeds: int, variant: str) -> Callable[[], Block]:
    """Makes the data and imports what is needed; what is left to do is the first call."""
    federation = make_federation(workload, clients)
    name, _, devices = variant.partition("@")
    if name.startswith("torch-"):
        import torch  # noqa: F401  # pyright: ignore[reportMissingImports]

        encoders = apart(architectures, workload, clients)
        return lambda: torch_blocks(workload, federation, seeds, name, encoders)
    import fedjax_mm.runs.backend
    import fedjax_mm.simulation.engine  # noqa: F401

    return lambda: engine_blocks(workload, federation, seeds, name, int(devices) if devices else None)


def main() -> int:
    """Serves one request."""
    # Answers alone go to the pipe, whatever a library prints.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**content: Any) -> None:
        print(json.dumps(content), file=answers)

    try:
        request = json.loads(sys.argv[1])
        workload, clients, seeds = WORKLOADS[request["workload"]], request["clients"], request["seeds"]
        rounds = workload.rounds(clients, seeds)
        make = prepare(workload, clients, seeds, request["variant"])
        start = time.perf_counter()
        block = make()
        told = block()
        first = time.perf_counter() - start
        answer(
            first_call_seconds=first,
            compile_seconds=told.get("compile_seconds"),
            rounds=rounds,
            peak_bytes=peak_memory(),
        )
        for _ in sys.stdin:
            answer(seconds_per_round=block()["seconds"] / rounds, peak_bytes=peak_memory())
    except Exception as error:
        answer(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
