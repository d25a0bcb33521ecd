"""What is known of a simulation before it is compiled: predictors, prices, operations that wait."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.simulation.build import state_shapes
from fedjax_mm.simulation.context import Context, World
from fedjax_mm.simulation.costs import Exchange, exchange
from fedjax_mm.simulation.plans import Plan
from fedjax_mm.simulation.prediction import predictor_names
from fedjax_mm.simulation.rounds import Round


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """Facts about a simulation.

    Attributes:
        predictors: The method's predictors, the primary one first.
        waits: Operations of the program that wait for threads of XLA's pool.
        upload: Price list of the way up, by stage: only what the stage trains is sent.
        download: Price list of the way down.
    """

    predictors: tuple[str, ...]
    waits: frozenset[str]
    upload: tuple[Exchange, ...]
    download: Exchange

    def as_json(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return {
            "predictors": list(self.predictors),
            "waits": sorted(self.waits),
            "upload": [_priced(each) for each in self.upload],
            "download": _priced(self.download),
        }


def from_json(content: Mapping[str, Any]) -> Facts:
    """The inverse of `Facts.as_json`."""
    return Facts(
        predictors=tuple(content["predictors"]),
        waits=frozenset(content["waits"]),
        upload=tuple(_exchange(each) for each in content["upload"]),
        download=_exchange(content["download"]),
    )


def find_facts(context: Context, here: Context, plan: Plan, world: World, rounds: Sequence[Round]) -> Facts:
    """Traces prediction and a round of each stage on shapes alone.

    Args:
        context: The context of all lanes.
        here: The context of those on the device.
        plan: A plan of some of these.
        world: Their world.
        rounds: Their rounds of each stage.

    Returns:
        The facts.

    Raises:
        UsageError: What the method returns does not fit.
    """
    state = state_shapes(here, world)
    predictors, waits = predictor_names(here, plan, world, state)
    waits = waits.union(*(stage.check(plan, world, state) for stage in rounds))
    lanes = jax.ShapeDtypeStruct((plan.size,), jnp.int32)
    active, round_ = jax.ShapeDtypeStruct((plan.size,), bool), jax.ShapeDtypeStruct((), jnp.int32)
    outcome = jax.eval_shape(rounds[0].trainer(plan).train, world, state, lanes, active, round_)
    sent = (outcome.upload.mean, outcome.upload.stack)
    return Facts(
        predictors=predictors,
        waits=waits,
        upload=tuple(exchange(context, stage.trained, sent, plan.size) for stage in rounds),
        download=exchange(context, context.layout.modules, outcome.crowd.download, plan.size),
    )


def _priced(prices: Exchange) -> dict[str, Any]:
    return {"modules": prices.modules.tolist(), "fixed": int(prices.fixed), "row": [int(row) for row in prices.row]}


def _exchange(content: Mapping[str, Any]) -> Exchange:
    return Exchange(np.asarray(content["modules"], np.int64), content["fixed"], tuple(content["row"]))
