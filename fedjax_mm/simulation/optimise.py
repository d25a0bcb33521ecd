"""Local optimisers: optax transformations of one slot, clipped per lane."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_mm.simulation.settings import Settings

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Optimiser:
    """A group's optimiser; its numbers are arguments of the compiled program, not part of it.

    Attributes:
        kind: `sgd`, `momentum` or `adam`.
        decay: Whether there is weight decay.
        lr: Learning rate.
        momentum: Momentum, for `momentum`.
        weight_decay: Factor of the parameters added to the gradient.
        clip: Largest Euclidean norm of the group's gradient, or None.
    """

    lr: Any
    momentum: Any
    weight_decay: Any
    clip: Any
    kind: str = dataclasses.field(metadata={"static": True})
    decay: bool = dataclasses.field(metadata={"static": True})

    @property
    def keeps_span(self) -> bool:
        """Whether what it does to a parameter is a combination of the gradients it was given."""
        return self.kind in ("sgd", "momentum") and not self.decay and self.clip is None

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation without the clipping, which spans the modules of a group."""
        rule = {
            "sgd": lambda: optax.sgd(self.lr),
            "momentum": lambda: optax.sgd(self.lr, self.momentum),
            "adam": lambda: optax.adam(self.lr),
        }[self.kind]()
        return optax.chain(optax.add_decayed_weights(self.weight_decay), rule) if self.decay else rule


def optimiser(settings: Settings) -> Optimiser:
    """The optimiser that the settings describe."""
    kind = "momentum" if settings.optimizer == "sgd" and settings.momentum > 0 else settings.optimizer
    return Optimiser(
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        clip=settings.clip,
        kind=kind,
        decay=settings.weight_decay > 0,
    )


def clip_factor(squared_norm: Array, clip: Array | float) -> Array:
    """What to multiply a gradient with so that its norm is at most `clip`; 1 for the zero gradient.

    Args:
        squared_norm: Squared Euclidean norm, any shape.
        clip: Largest norm, above 0.

    Returns:
        In (0, 1], shape of `squared_norm`.
    """
    over = squared_norm > jnp.square(clip)
    return jnp.where(over, clip * jax.lax.rsqrt(jnp.where(over, squared_norm, 1)), 1)
