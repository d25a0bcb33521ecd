"""A method of your own is one file: `fedjax-mm run --method examples/my_method.py:FedHead --set mu=0.1`."""

from typing import ClassVar

import jax.numpy as jnp

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Lane, Layout, Method, Module, Spec, method
from fedjax_mm.objectives import cross_entropy
from fedjax_mm.objectives.masked import masked_mean


@method
class FedHead(Method):
    """Private encoders under an averaged head, every client counting the same; features are pulled towards zero.

    L = CE(h(z), y) + mu * mean_i ||z_i||^2 / d, where z is the fused feature and h the head.

    Attributes:
        mu: Weight of the pull, at least 0. A float field is an argument of the compiled program.
    """

    mu: float = 0.01

    name: ClassVar[str] = "fedhead"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a negative `mu`, before anything is compiled."""
        if self.mu < 0:
            raise UsageError(f"fedhead: mu is {self.mu}, must be at least 0")

    def layout(self, spec: Spec) -> Layout:
        """Who owns what: `private` never leaves the client, `mean` is what the server averages."""
        return Layout({"encoders": Module(None), "head": Module(spec.head, share="mean", weight="uniform")})

    def loss(self, lane: Lane):
        """The loss of one batch of one client, and the terms that `rounds.csv` reports, each as (sum, weight)."""
        batch, z = lane.batch, lane.fuse()
        ce, n = cross_entropy(lane.apply("head", z), batch.y, batch.valid)
        pull, _ = masked_mean(jnp.mean(jnp.square(z), axis=1), batch.valid)
        return ce + self.mu * pull, {"ce": (ce * n, n), "pull": (pull * n, n)}
