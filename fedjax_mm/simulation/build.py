"""Setting a simulation up: from method, population and settings to context, world and first state."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Layout, Spec, with_fusion
from fedjax_mm.methods.method import Method, stages_of
from fedjax_mm.models import networks
from fedjax_mm.models.fusion import FUSIONS
from fedjax_mm.models.heads import HeadSpec
from fedjax_mm.simulation.context import Context, Slots, State, World
from fedjax_mm.simulation.keys import derive, seed_keys
from fedjax_mm.simulation.optimise import optimiser
from fedjax_mm.simulation.population import Population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import ROWS, Store, build_stores, initial_values, value_shapes

Array = jax.Array
Tree = Any


def build_spec(population: Population, settings: Settings) -> Spec:
    """The static facts a method's layout may depend on."""
    data = population.federations[0].data
    fused = settings.dim * len(data.modalities) if settings.fusion == "concat" else settings.dim
    hidden = (settings.dim,) if settings.model == "shared" else ()
    return Spec(
        modalities=data.modalities,
        classes=len(data.classes),
        clients=population.clients,
        dim=settings.dim,
        fusion=settings.fusion or "sum",
        model=settings.model or "pool",
        head=HeadSpec(fused, hidden, len(data.classes)),
        rounds=settings.rounds,
        epochs=settings.epochs or 1,
    )


def build_context(method: Method, population: Population, settings: Settings) -> Context:
    """The static side of a simulation.

    Raises:
        UsageError: The method does not suit the federation or the settings.
    """
    if jax.tree_util.all_leaves([method]):
        raise UsageError(f"{type(method).__name__} is not a pytree: put @fedjax_mm.methods.method above the class")
    spec = build_spec(population, settings)
    method.check(spec)
    layout = with_fusion(method.layout(spec), spec)
    stores = build_stores(layout, population, settings)
    _check(method, layout, stores, spec, settings)
    return Context(
        method=method,
        spec=spec,
        layout=layout,
        settings=settings,
        stores=stores,
        networks=_network_functions(layout, spec, settings),
        modalities=spec.modalities,
        seeds=len(population.seeds),
        clients=population.clients,
        everyone=population.clients,
        cohort=settings.cohort(population.clients),
    )


def build_world(context: Context, population: Population) -> World:
    """The arrays no round changes. The method's numbers, like the optimisers', become arrays with a seed axis.

    Raises:
        UsageError: One of these numbers is too large or too small for the run's precision.
    """
    dtype, seeds = context.settings.dtype, context.seeds
    laid: Any = np.asarray if context.settings.client_state == "host" else jnp.asarray

    def held(number: float) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            value = np.asarray(number, dtype)
        if np.isfinite(number) and (not np.isfinite(value) or (value == 0) != (number == 0)):
            raise UsageError(f"{context.method.name}: {number} is out of the range of {context.settings.precision}")
        return jnp.full(seeds, value)

    def spread(tree: Tree) -> Tree:
        return jax.tree.map(held, tree)

    default = optimiser(context.settings)
    return World(
        tables=population.tables,
        rows={name: {part: laid(store.rows[part]) for part in ROWS} for name, store in context.stores.items()},
        keys=seed_keys(population.seeds),
        method=spread(context.method),
        optimisers=spread(dict(context.method.optimisers(default, context.layout))),
    )


def initial_state(context: Context, population: Population, world: World) -> State:
    """The state before the first round."""
    return state_with(context, world, jax.device_put(initial_stores(context, population, world)))


def initial_stores(context: Context, population: Population, world: World) -> Slots:
    """The networks before the first round, in NumPy."""
    return {
        name: initial_values(store, population, world.keys, context.settings) for name, store in context.stores.items()
    }


def state_shapes(context: Context, world: World) -> State:
    """Shapes and dtypes of the state, without computing it."""
    values = {name: value_shapes(store, context.settings) for name, store in context.stores.items()}
    return jax.eval_shape(lambda world, values: state_with(context, world, values), world, values)


def state_with(context: Context, world: World, stores: Slots) -> State:
    """The state before the first round, from the networks; can be compiled."""

    def client(method: Method, key: Array, info: Any) -> Tree:
        return method.init_client(derive(key, "client state", info.id), info)

    def server(method: Method, key: Array) -> Tree:
        return method.init_server(derive(key, "server state"), context.spec)

    @jax.jit
    def states(world: World) -> tuple[Tree, Tree]:
        by_lane = jax.tree.map(lambda leaf: leaf[world.tables.seed], world.method)
        info = jax.tree.map(lambda leaf: leaf[world.tables.member], world.tables.info)
        clients = jax.vmap(client)(by_lane, world.keys[world.tables.seed], info)
        return _cast(context, clients), _cast(context, jax.vmap(server)(world.method, world.keys))

    clients, servers = states(world)
    return State(
        stores=stores,
        previous=_by_slot(context, world, stores) if "previous" in context.layout.views else {},
        participated=jnp.zeros(context.seeds * context.clients, bool),
        clients=clients,
        server=servers,
        optimisers=_kept_optimisers(context, world, stores) if context.settings.optimizer_state == "keep" else [],
    )


def _cast(context: Context, tree: Tree) -> Tree:
    """Floating leaves in the run's precision, so that the state's types never change from round to round."""

    def cast(leaf: Array) -> Array:
        return leaf.astype(context.settings.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


def _by_slot(context: Context, world: World, stores: Tree) -> Tree:
    """Every slot's own copy of its networks."""
    copies = {}
    for name, store in context.stores.items():
        copies[name] = []
        for position, values in enumerate(stores[name]):
            lane, j = store.owners["slots"][position].T
            copies[name].append(
                {
                    part: jax.tree.map(lambda leaf, r=store.rows[part][lane, j]: leaf[r], tree)
                    for part, tree in values.items()
                }
            )
    return copies


def _kept_optimisers(context: Context, world: World, stores: Tree) -> list[Tree]:
    slots = _by_slot(context, world, stores)
    kept = []
    for phase in stages_of(context.layout, context.spec)[0].phases:
        kept.append({})
        for name in phase.trained(context.layout.modules):
            rules = world.optimisers[context.layout.modules[name].group]
            kept[-1][name] = []
            for position, values in enumerate(slots[name]):
                seed = world.tables.seed[context.stores[name].owners["slots"][position][:, 0]]
                rule = jax.tree.map(lambda leaf, s=seed: leaf[s], rules)
                kept[-1][name].append(jax.vmap(lambda o, p: o.transformation().init(p))(rule, values["params"]))
    return kept


def _network_functions(layout: Layout, spec: Spec, settings: Settings) -> dict[str, Callable[..., Array]]:
    def run(network: Any, params: Tree, *inputs: Array) -> Array:
        return networks.apply(network, params, {}, *inputs, dtype=settings.dtype)[0]

    functions: dict[str, Callable[..., Array]] = {"fusion": FUSIONS[spec.fusion]} if spec.fusion in FUSIONS else {}
    for name, module in layout.modules.items():
        if module.network is not None:
            function = functools.partial(run, module.network)
            functions[name] = jax.vmap(function) if module.per_modality else function
    return functions


def _check(method: Method, layout: Layout, stores: dict[str, Store], spec: Spec, settings: Settings) -> None:
    stages = stages_of(layout, spec)
    if settings.optimizer_state == "keep" and len(stages) > 1:
        raise UsageError(f"{method.name}: optimizer_state=keep needs a method with one stage, it has {len(stages)}")
    for stage in stages:
        for phase in stage.phases:
            unknown = set(phase.train or ()) - set(layout.modules)
            if unknown or phase.loss not in method.losses:
                raise UsageError(
                    f"{method.name}: a phase names {sorted(unknown) or phase.loss!r}; modules are "
                    f"{sorted(layout.modules)}, losses {sorted(method.losses)}"
                )
    for name, store in stores.items():
        if store.module.network is not None and jax.tree.leaves(networks.shapes(store.networks[0], settings.dtype)[1]):
            raise UsageError(f"{method.name}: module {name!r} has BatchNorm statistics; only encoders may")
        mixed = [j for j, column in enumerate(store.network.T) if len(set(column[column >= 0])) > 1]
        if store.module.share == "mean" and mixed:
            raise UsageError(
                f"{method.name} averages {name}, but clients' {name} for {spec.modalities[mixed[0]]!r} differ in "
                "shape; use model=shared, or a method that keeps encoders private (lg_fedavg)"
            )
