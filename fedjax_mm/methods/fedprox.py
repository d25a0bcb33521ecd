"""FedProx: FedAvg with clients held near the model they received (Li et al. 2020)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.layout import Layout, Spec
from fedjax_mm.methods.method import Array, Lane, Terms, method
from fedjax_mm.objectives.proximal import squared_distance


@method
class FedProx(FedAvg):
    """Cross-entropy plus (mu / 2) ||w - w_t||^2, w_t the downloaded model, over the networks the client has.

    Attributes:
        mu: Weight of the proximal term, at least 0; 0 is FedAvg.
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m}, or
            `naive`, the whole cohort by n_k, untrained copies included.
    """

    mu: float = 0.01

    name: ClassVar[str] = "fedprox"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a negative `mu` or an unknown `blocks`."""
        super().check(spec)
        if not 0 <= self.mu < float("inf"):
            raise UsageError(f"fedprox: mu is {self.mu}, must be finite and at least 0")

    def layout(self, spec: Spec) -> Layout:
        """FedAvg's, with the encoders' distance to what was downloaded."""
        return dataclasses.replace(super().layout(spec), quantities=("proximal",))

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L = CE(h(z), y) + (mu / 2) ||w - w_t||^2."""
        ce, terms = super().loss(lane)
        others = squared_distance(lane.params["current"], lane.params["download"])
        proximal = (jnp.sum(lane.encoder["proximal"]) + others) / 2
        n = terms["ce"][1]
        return ce + self.mu * proximal, {**terms, "proximal": (proximal * n, n)}
