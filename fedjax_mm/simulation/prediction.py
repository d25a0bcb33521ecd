"""Prediction: what a method's predictors are called, and what networks make of inputs nobody trained on."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.data.text import hash_text, is_text
from fedjax_mm.errors import UsageError
from fedjax_mm.simulation.context import Context, Slots, State, World
from fedjax_mm.simulation.forward import Crowd, encode, gather_crowd, per_lane, read, see
from fedjax_mm.simulation.plans import Plan, single_plans
from fedjax_mm.simulation.population import Population, Tables
from fedjax_mm.simulation.waits import traced

Array = jax.Array


def predictor_names(context: Context, plan: Plan, world: World, state: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The method's predictors, the primary one first, and the operations in them that wait; computes nothing.

    Raises:
        UsageError: The primary predictor is not among them.
    """

    def scores(world: World, state: State) -> dict[str, Array]:
        lanes, rows = jnp.zeros(plan.size, jnp.int32), jnp.zeros((plan.size, 1), jnp.int32)
        return _scores(context, plan, world, state, lanes, rows)

    waits, found = traced(scores, world, state)
    if not isinstance(found, dict):
        raise UsageError(f"{context.method.name}: predict must return a dict of name -> scores")
    names, expected = list(found), (plan.size, 1, context.spec.classes)
    for name, value in found.items():
        if value.shape != expected:
            raise UsageError(
                f"{context.method.name}: scores {name!r} of a batch of 1 are {list(value.shape[1:])}, must be "
                f"[1, {context.spec.classes}]: one per sample and class"
            )
    primary = context.method.primary
    if primary not in names:
        raise UsageError(f"{context.method.name}: its primary predictor {primary!r} is not among {names}")
    return (primary, *(name for name in names if name != primary)), waits


def scores_of(
    context: Context,
    population: Population,
    world: World,
    state: State,
    seed: int,
    client: int,
    inputs: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Scores of one client on new inputs; see `Engine.predict`."""
    plan, world, lanes, rows = _question(context, population, world, seed, client, inputs)
    scores = _scores(context, plan, world, state, lanes, rows)
    return {name: np.asarray(value[0]) for name, value in scores.items()}


def features_of(
    context: Context,
    population: Population,
    world: World,
    state: State,
    seed: int,
    client: int,
    inputs: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Features of one client on new inputs, in evaluation mode.

    Args:
        context: The context.
        population: The population.
        world: The world.
        state: The state to use.
        seed: Position of the seed.
        client: Client id.
        inputs: Modality -> raw inputs `[n, ...]`, for one or more of the client's modalities.

    Returns:
        Modality of `inputs` -> what the client's encoder makes of them, `[n, d]`.

    Raises:
        UsageError: A modality is unknown or not the client's, or shapes do not match.
    """
    plan, world, lanes, rows = _question(context, population, world, seed, client, inputs)
    crowd, networks = _crowd(context, plan, world, state, lanes)
    batch, keys = read(world, crowd, rows), world.keys[crowd.seed]
    features, _ = encode(context, plan, world, crowd, networks["encoders"], batch, keys, train=False)
    return {modality: np.asarray(features[0, context.modalities.index(modality)]) for modality in inputs}


def _question(
    context: Context, population: Population, world: World, seed: int, client: int, inputs: Mapping[str, Any]
) -> tuple[Plan, World, Array, Array]:
    """The plan of a client alone, a world of the given inputs, the client's lane `[1]` and all rows `[1, n]`."""
    lane = seed * context.clients + client
    tables = _tables_for(world.tables, population, seed, client, inputs)
    plan = next(plan for plan in single_plans(context.stores, population.train_sizes()) if lane in plan.members)
    rows = jnp.arange(tables.labels.shape[0] - 1, dtype=jnp.int32)[None]
    return plan, world._replace(tables=tables), jnp.asarray([lane], jnp.int32), rows


def _crowd(context: Context, plan: Plan, world: World, state: State, lanes: Array) -> tuple[Crowd, Slots]:
    return gather_crowd(context, plan, world, state, lanes, jnp.ones(lanes.shape, bool), jnp.int32(context.spec.rounds))


def _scores(context: Context, plan: Plan, world: World, state: State, lanes: Array, rows: Array) -> dict[str, Array]:
    crowd, networks = _crowd(context, plan, world, state, lanes)
    batch, keys = read(world, crowd, rows), world.keys[crowd.seed]
    sight, _ = see(context, plan, world, crowd, networks, batch, keys, train=False)
    return per_lane(context, crowd, lambda method, lane: method.predict(lane), sight, batch, keys)


def _tables_for(tables: Tables, population: Population, seed: int, client: int, inputs: Mapping[str, Any]) -> Tables:
    """Tables that hold the given inputs in place of the data."""
    modalities, federation = population.modalities, population.federations[seed]
    held = [m for m, holds in zip(modalities, federation.holds[client], strict=True) if holds]
    if not isinstance(inputs, Mapping) or not inputs or not set(inputs) <= set(held):
        raise UsageError(f"inputs must be given by modality, of the client's: {', '.join(held)}")
    data = population.federations[0].data
    given = {m: _read(m, value, text=is_text(data.inputs[m])) for m, value in inputs.items()}
    sizes = {modality: len(value) if value.ndim else 0 for modality, value in given.items()}
    n = next(iter(sizes.values()))
    if n == 0 or len(set(sizes.values())) > 1:
        raise UsageError(f"inputs must be as many samples in every modality, at least one; they are {sizes}")
    new = {}
    for modality in modalities:
        shape, dtype = tables.inputs[modality].shape[1:], tables.inputs[modality].dtype
        value = given.get(modality, np.zeros((n, *shape), dtype))
        if value.shape != (n, *shape):
            raise UsageError(
                f"inputs of {modality!r} are {list(value.shape)}, must be [n, {', '.join(map(str, shape))}]"
            )
        if not np.can_cast(value.dtype, dtype, "same_kind"):
            raise UsageError(f"inputs of {modality!r} are {value.dtype}, must be {dtype} as in the data")
        new[modality] = jnp.asarray(np.concatenate([value.astype(dtype), np.zeros((1, *shape), dtype)]))
    observed = np.zeros((tables.observed.shape[0], n + 1, len(modalities)), bool)
    observed[:, :n] = [modality in inputs for modality in modalities]
    return tables._replace(inputs=new, labels=jnp.zeros(n + 1, jnp.int32), observed=jnp.asarray(observed))


def _read(modality: str, values: Any, *, text: bool) -> np.ndarray:
    """Inputs of one modality as an array; texts as their ids."""
    array = np.asarray(values)
    if not text:
        return array
    if array.ndim != 1 or not all(isinstance(entry, str) for entry in array):
        raise UsageError(f"inputs of {modality!r} must be strings [n], as in the data")
    return hash_text(array)
