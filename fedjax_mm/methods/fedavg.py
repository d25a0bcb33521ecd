"""FedAvg: every parameter is averaged (McMahan et al. 2017, Algorithm 1)."""

from typing import ClassVar

from fedjax_mm.errors import choose
from fedjax_mm.methods.layout import BLOCKS, Layout, Spec, shared_model
from fedjax_mm.methods.method import Method, method


@method
class FedAvg(Method):
    """w <- sum_k n_k w_k / sum_k n_k over the cohort; what exists per modality by `blocks`.

    Attributes:
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m} (kept
            if there is none), or `naive`, the whole cohort by n_k, untrained copies included.
    """

    blocks: str = "partial"

    name: ClassVar[str] = "fedavg"
    kind: ClassVar[str] = "global"
    averages_encoders: ClassVar[bool] = True

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for an unknown `blocks`."""
        choose(f"{self.name}.blocks", self.blocks, BLOCKS)

    def layout(self, spec: Spec) -> Layout:
        """Encoders and head are averaged."""
        return shared_model(spec, encoders="mean", head="mean", blocks=self.blocks)
