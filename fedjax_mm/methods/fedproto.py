"""FedProto: clients exchange class prototypes only (Tan et al. 2022)."""

from typing import ClassVar

import jax.numpy as jnp

from fedjax_mm.errors import UsageError
from fedjax_mm.methods.layout import Rows, Spec, Upload
from fedjax_mm.methods.method import Array, Info, Lane, Mean, Method, Server, Terms, Tree, method
from fedjax_mm.objectives.prototypes import (
    class_means,
    class_sums,
    merge_prototypes,
    nearest_prototype_scores,
    pull_to_prototype,
)
from fedjax_mm.objectives.supervised import cross_entropy


@method
class FedProto(Method):
    """Cross-entropy plus a pull of each sample's fused feature to the global prototype of its class.

    Attributes:
        lam: Weight of the pull, at least 0. The pull is a mean over the d dimensions; for the paper's squared Euclidean
            norm multiply by d.
        weight: How clients count in a global prototype: `counts` of the class (paper) or `uniform` (its code).
    """

    lam: float = 1.0
    weight: str = "counts"

    name: ClassVar[str] = "fedproto"
    primary: ClassVar[str] = "prototype"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a negative `lam` or an unknown `weight`."""
        if not 0 <= self.lam < float("inf"):
            raise UsageError(f"fedproto: lam is {self.lam}, must be finite and at least 0")
        if self.weight not in ("counts", "uniform"):
            raise UsageError(f"fedproto: weight is {self.weight!r}, must be 'counts' or 'uniform'")

    def init_server(self, key: Array, spec: Spec) -> Rows:
        """No class has a prototype before the first round."""
        return Rows(jnp.zeros((spec.classes, spec.fused)), jnp.zeros(spec.classes, bool))

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L = CE(h(z), y) + lam * mean_i ||z_i - P_{y_i}||^2 / d."""
        batch, prototypes = lane.batch, lane.download
        z = lane.fuse()
        ce, n = cross_entropy(lane.apply("head", z), batch.y, batch.valid)
        pull = pull_to_prototype(z, batch.y, batch.valid, prototypes.value, prototypes.present)
        return ce + self.lam * pull, {"ce": (ce * n, n), "prototype": (pull * n, n)}

    def collect(self, lane: Lane) -> Tree:
        """Class sums of the fused feature."""
        return class_sums(lane.fuse(), lane.batch.y, lane.batch.valid, lane.info.counts.shape[0])

    def upload(self, start: Tree, end: Tree, sums: Tree, info: Info, state: Tree) -> Upload:
        """The prototypes of the classes the client holds, with their counts."""
        totals, counts = sums
        return Upload(stack=(Rows(class_means(totals, counts), counts > 0), Rows(counts, counts > 0)), state=state)

    def server(self, server: Server, mean: Mean, stack: Tree, mask: Array, key: Array) -> tuple[Server, Terms]:
        """P_c <- weighted mean over the members that hold c; kept, with its validity, if none does."""
        prototypes, counts = stack
        held = prototypes.present & mask[:, None]
        weights = jnp.where(held, counts.value if self.weight == "counts" else 1.0, 0.0)
        merged = merge_prototypes(prototypes.value, weights, server.state.value, server.state.present)
        covered = jnp.sum(merged[1], dtype=weights.dtype)
        return Server(mean.modules, Rows(*merged)), {"prototypes_present": (covered, jnp.ones_like(covered))}

    def predict(self, lane: Lane) -> dict[str, Array]:
        """The nearest global prototype, the nearest among the client's own classes, and the head."""
        z, prototypes = lane.fuse(), lane.download
        own = prototypes.present & (lane.info.counts > 0)
        return {
            "prototype": nearest_prototype_scores(z, prototypes.value, prototypes.present),
            "prototype_own": nearest_prototype_scores(z, prototypes.value, own),
            "head": lane.apply("head", z),
        }
