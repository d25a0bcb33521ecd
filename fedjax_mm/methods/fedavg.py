"""FedAvg: every parameter is averaged (McMahan et al. 2017, Algorithm 1)."""

from typing import ClassVar

from fedjax_mm.methods.layout import Layout, Spec, shared_model
from fedjax_mm.methods.method import Method, method


@method
class FedAvg(Method):
    """w <- sum_k n_k w_k / sum_k n_k over the cohort; an encoder by n_{k,m} over its holders, kept if there is none."""

    name: ClassVar[str] = "fedavg"
    kind: ClassVar[str] = "global"
    averages_encoders: ClassVar[bool] = True

    def layout(self, spec: Spec) -> Layout:
        """Encoders and head are averaged."""
        return shared_model(spec, encoders="mean", head="mean")
