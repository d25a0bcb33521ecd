"""FedRoD: an averaged head for all classes alike and a private one for the client's own (Chen and Chao 2022)."""

import dataclasses
from typing import ClassVar

import jax

from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.layout import Layout, Module, Spec
from fedjax_mm.methods.method import Array, Lane, Terms, method
from fedjax_mm.objectives.supervised import balanced_cross_entropy, cross_entropy


@method
class FedRoD(FedAvg):
    """The base and the generic head g learn by balanced softmax; the private head p adds to g and learns on its own.

    The private head starts as a copy of the generic one. Both losses are of the same forward pass: the two steps that
    the paper takes one after the other have no parameter in common, and so are one.

    Attributes:
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m}, or
            `naive`, the whole cohort by n_k, untrained copies included.
    """

    name: ClassVar[str] = "fedrod"
    kind: ClassVar[str] = "personal"
    primary: ClassVar[str] = "sum"

    def layout(self, spec: Spec) -> Layout:
        """FedAvg's and a private head, clipped apart."""
        layout = super().layout(spec)
        private = Module(spec.head, group="private", start="head")
        return dataclasses.replace(layout, modules={**layout.modules, "private": private})

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L = CE(g(z) + log n_k, y) + CE(sg(g(z)) + p(sg(z)), y)."""
        y, valid, z = lane.batch.y, lane.batch.valid, lane.fuse()
        generic = lane.apply("head", z)
        balanced, n = balanced_cross_entropy(generic, y, valid, lane.info.counts)
        personal = jax.lax.stop_gradient(generic) + lane.apply("private", jax.lax.stop_gradient(z))
        own, _ = cross_entropy(personal, y, valid)
        return balanced + own, {"balanced": (balanced * n, n), "ce": (own * n, n)}

    def predict(self, lane: Lane) -> dict[str, Array]:
        """Both heads together, and the generic one alone, without the counts."""
        z = lane.fuse()
        generic = lane.apply("head", z)
        return {"sum": generic + lane.apply("private", z), "generic": generic}
