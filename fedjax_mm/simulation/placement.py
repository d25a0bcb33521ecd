"""Which executor suits a simulation."""

import jax

from fedjax_mm.simulation.context import Context
from fedjax_mm.simulation.executors import Debug, Executor, Lockstep, Map
from fedjax_mm.simulation.plans import lockstep_plans, shape_groups, single_plans
from fedjax_mm.simulation.population import Population

FEW_SHAPES = 4
"""Up to so many client shapes a CPU is faster client after client: a client's parameters stay in cache."""


def choose_executor(context: Context, population: Population) -> tuple[str, str]:
    """The executor's name, and why.

    Args:
        context: The context; its settings may name an executor.
        population: The lanes.

    Returns:
        One of `map`, `lockstep`, `debug`, and a sentence.
    """
    asked = context.settings.executor
    if asked != "auto":
        return ("lockstep" if asked == "vmap" else asked), "asked for"
    shapes = len(shape_groups(context.stores))
    backend = jax.default_backend()
    if backend != "cpu":
        return "lockstep", f"all lanes at once on {backend}"
    if shapes <= FEW_SHAPES:
        return "map", f"{shapes} client shape(s) on a CPU: client after client"
    return "lockstep", f"{shapes} client shapes on a CPU: encoders of one shape step together"


def make_executor(name: str, context: Context, population: Population) -> Executor:
    """The executor of that name for a context's cohort."""
    if name == "lockstep":
        # An accelerator is better off with padding than with one class of clients waiting for the other.
        split = jax.default_backend() == "cpu"
        batch = context.settings.batch or 1
        return Lockstep(lockstep_plans(context.stores, population, context.cohort, batch=batch, split=split))
    plans = tuple(single_plans(context.stores))
    if name == "map":
        return Map(plans, context.seeds, context.clients)
    names = tuple(
        f"client {client} (seed {seed})"
        for seed, federation in zip(population.seeds, population.federations, strict=True)
        for client in federation.clients
    )
    return Debug(plans, context.seeds, context.clients, names)
