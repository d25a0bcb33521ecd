"""FedPer: an averaged base under private heads (Arivazhagan et al. 2019)."""

from typing import ClassVar

from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.layout import Layout, Spec, shared_model
from fedjax_mm.methods.method import method


@method
class FedPer(FedAvg):
    """Base and head learn jointly; encoders and fusion are averaged, each client keeps its head.

    Attributes:
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m}, or
            `naive`, the whole cohort by n_k, untrained copies included.
    """

    name: ClassVar[str] = "fedper"
    kind: ClassVar[str] = "personal"

    def layout(self, spec: Spec) -> Layout:
        """Encoders and fusion are averaged, the head stays."""
        return shared_model(spec, encoders="mean", head="private", fusion="mean", blocks=self.blocks)
