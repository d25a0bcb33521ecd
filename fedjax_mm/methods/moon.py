"""MOON: FedAvg with features drawn to the global model's and away from the client's last one's (Li et al. 2021)."""

import dataclasses
from typing import ClassVar

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.layout import Layout, Spec
from fedjax_mm.methods.method import Array, Lane, Terms, method
from fedjax_mm.objectives.contrast import model_contrast


@method
class Moon(FedAvg):
    """Cross-entropy plus a contrast of the fused feature under three models, with the same modalities observed.

    The negative is the model the client last finished with; before it ever did, it is the global one, and the contrast
    is log 2 without gradient.

    Attributes:
        mu: Weight of the contrast, at least 0; 0 is FedAvg.
        temperature: tau of the contrast, above 0.
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m}, or
            `naive`, the whole cohort by n_k, untrained copies included.
    """

    mu: float = 1.0
    temperature: float = 0.5

    name: ClassVar[str] = "moon"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a number out of range or an unknown `blocks`."""
        super().check(spec)
        if not 0 <= self.mu < float("inf"):
            raise UsageError(f"moon: mu is {self.mu}, must be finite and at least 0")
        if not 0 < self.temperature < float("inf"):
            raise UsageError(f"moon: temperature is {self.temperature}, must be finite and above 0")

    def layout(self, spec: Spec) -> Layout:
        """FedAvg's, with the received model and the one the client last finished with."""
        return dataclasses.replace(super().layout(spec), views=("download", "previous"))

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L = CE(h(z), y) + mu l_con(z, z_global, z_previous)."""
        ce, terms = super().loss(lane)
        contrast, n = model_contrast(
            lane.fuse(),
            lane.fuse("download"),
            lane.fuse("previous"),
            lane.batch.valid,
            temperature=self.temperature,
        )
        return ce + self.mu * contrast, {**terms, "contrast": (contrast * n, n)}
