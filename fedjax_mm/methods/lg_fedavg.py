"""LG-FedAvg: private encoders under an averaged head (Liang et al. 2020)."""

from typing import ClassVar

from fedjax_mm.methods.layout import Layout, Spec, shared_model
from fedjax_mm.methods.method import Method, method


@method
class LgFedAvg(Method):
    """Encoder and head learn jointly; only the head is sent, averaged by n_k. With unlike encoders this is FedAvg."""

    name: ClassVar[str] = "lg_fedavg"

    def layout(self, spec: Spec) -> Layout:
        """Encoders stay, the head is averaged."""
        return shared_model(spec, encoders="private", head="mean")
