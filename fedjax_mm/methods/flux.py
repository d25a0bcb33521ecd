"""Flux: private heads tempered by each sample's evidence, over a shared model that never sees the temperature."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.layout import Layout, Module, Spec, Upload, shared_model
from fedjax_mm.methods.method import Array, Info, Lane, Mean, Server, Terms, Tree, method
from fedjax_mm.models.heads import HeadSpec
from fedjax_mm.objectives.proximal import squared_distance
from fedjax_mm.objectives.tempering import fuse_temperatures, temperature, tempered_cross_entropy, unimodal_loss

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "single_path": {"confidence": "fused", "private": False, "temper": "shared"},
    "dual_path": {"confidence": "fused"},
    "shared_private": {"temper": "both"},
    "no_fused_stop": {"stop_fused": False},
    "no_unimodal_stop": {"stop_unimodal": False},
}
"""The rows of Table 6 but the last, as options; the paper says of the first two only that confidence is fused."""


class Paths(NamedTuple):
    """What a batch's samples are told.

    Attributes:
        shared: z_G, logits of the shared head `[B, C]`.
        private: z_P, logits of the private head `[B, C]`; None without one.
        tau: tau_f, `[B]`.
        confidence: The loss of the confidence heads, L_uni, a scalar.
    """

    shared: Array
    private: Array | None
    tau: Array
    confidence: Array


@method
class Flux(FedAvg):
    """Confidence heads learn a temperature per sample; only the private head's loss is divided by it (Algorithm 1).

    Encoders, confidence heads, fusion and shared head are averaged; the private head never leaves. The private head and
    the shared model have no parameter in common, so one gradient of the sum of both losses takes both steps; they are
    clipped apart. The heads G and P_k are of one shape and start from different weights.

    Attributes:
        epsilon: Of Eq. 3, above 0.
        hidden: Hidden width of the confidence heads, at least 1; the paper has 512, for clinical data 128.
        confidence: One head for each `modality`, or one on the `fused` feature (ablation).
        temper: Whose logits the loss divides by the temperature: `private`, or `shared`, `both` or `none` (ablations).
        private: Whether there is a private head; without it (ablation) the shared one predicts alone.
        stop_fused: Whether the private head's gradient stops at the fused feature; false is an ablation.
        stop_unimodal: Whether the confidence heads' gradient stops at the features they read; false is an ablation.
        diagnostics: Whether gradient norms of fusion and shared head, and the drift of clients, are reported: a second
            backward pass through these two, a pass over the data after training and some bytes more.
        blocks: Who counts in the average of a modality's networks: `partial`, those who trained them, by n_{k,m}, or
            `naive`, the whole cohort by n_k, untrained copies included.
    """

    epsilon: float = 1e-6
    hidden: int = 512
    confidence: str = "modality"
    temper: str = "private"
    private: bool = True
    stop_fused: bool = True
    stop_unimodal: bool = True
    diagnostics: bool = False

    name: ClassVar[str] = "flux"
    kind: ClassVar[str] = "personal"
    primary: ClassVar[str] = "sum"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a number out of range, an unknown choice, or choices that contradict each other."""
        super().check(spec)
        if not 0 < self.epsilon < float("inf"):
            raise UsageError(f"flux: epsilon is {self.epsilon}, must be finite and above 0")
        if self.hidden < 1:
            raise UsageError(f"flux: hidden is {self.hidden}, must be at least 1")
        choose("flux.confidence", self.confidence, ("modality", "fused"))
        choose("flux.temper", self.temper, ("private", "shared", "both", "none"))
        if not self.private and self.temper in ("private", "both"):
            raise UsageError(f"flux: temper is {self.temper!r} but private is false; temper=shared or none would do")

    def layout(self, spec: Spec) -> Layout:
        """E_m, F and G are averaged like C_m, which exist per modality; P_k stays."""
        layout = shared_model(spec, encoders="mean", head="mean", fusion="mean", blocks=self.blocks)
        modules, fused = dict(layout.modules), self.confidence == "fused"
        heads = HeadSpec(spec.fused if fused else spec.dim, (self.hidden,), spec.classes + 1)
        weight = modules["encoders"].weight
        modules["confidence"] = Module(heads, share="mean", weight=weight, per_modality=not fused)
        if self.private:
            modules["private"] = Module(spec.head, group="private")
        quantities = ("proximal",) if self.diagnostics else ()
        return dataclasses.replace(layout, modules=modules, quantities=quantities)

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L = CE(z_G, y) + L_uni + CE(z_P / sg(tau_f), y) (Eq. 4, 6)."""
        total, terms = self._objective(lane)
        return total, terms | (self._gradient_norms(lane) if self.diagnostics else {})

    def predict(self, lane: Lane) -> dict[str, Array]:
        """z_G + z_P as the paper has it; each alone; and with z_P as its loss sees it, z_G + z_P / tau_f."""
        paths = self._paths(lane)
        if paths.private is None:
            return {"sum": paths.shared}
        return {
            "sum": paths.shared + paths.private,
            "generic": paths.shared,
            "private": paths.private,
            "tempered": paths.shared + paths.private / paths.tau[:, None],
        }

    def _paths(self, lane: Lane) -> Paths:
        """Both pathways of one forward pass (Algorithm 1, lines 10 to 20)."""
        h_f = lane.fuse()
        tau, confidence = self._confidence(lane, h_f)
        private = lane.apply("private", _stopped(h_f, self.stop_fused)) if self.private else None
        return Paths(lane.apply("head", h_f), private, tau, confidence)

    def _confidence(self, lane: Lane, h_f: Array) -> tuple[Array, Array]:
        """tau_f `[B]` and L_uni, from one head per modality (Eq. 1 to 3) or from one on the fused feature."""
        y, valid, observed = lane.batch.y, lane.batch.valid, lane.batch.observed
        if self.confidence == "fused":
            out = lane.apply("confidence", _stopped(h_f, self.stop_unimodal))
            tau = temperature(out[..., -1], valid)
            return tau, tempered_cross_entropy(out[..., :-1], tau, y, valid)[0]
        h = jnp.where(observed[..., None], lane.features["current"], 0)
        out = lane.apply("confidence", _stopped(h, self.stop_unimodal))
        tau = temperature(out[..., -1], observed)
        loss, _ = unimodal_loss(out[..., :-1], tau, y, observed)
        return fuse_temperatures(tau, observed, self.epsilon), loss

    def _objective(self, lane: Lane) -> tuple[Array, Terms]:
        """The loss and the terms that cost nothing more."""
        paths, y, valid = self._paths(lane), lane.batch.y, lane.batch.valid
        tau, one = jax.lax.stop_gradient(paths.tau), jnp.ones_like(paths.tau)
        shared_tau = tau if self.temper in ("shared", "both") else one
        ce, n = tempered_cross_entropy(paths.shared, shared_tau, y, valid)
        total, terms = ce + paths.confidence, {"ce": (ce * n, n), "uni": (paths.confidence * n, n)}
        if paths.private is not None:
            private_tau = tau if self.temper in ("private", "both") else one
            own, _ = tempered_cross_entropy(paths.private, private_tau, y, valid)
            total, terms["private"] = total + own, (own * n, n)
            z_g, z_p = (_norms(jax.lax.stop_gradient(z), valid) for z in (paths.shared, paths.private))
            terms["logit_ratio"] = (jnp.sum(z_p), jnp.sum(z_g))
        return total, terms | _temperatures(tau, lane)

    def _gradient_norms(self, lane: Lane) -> Terms:
        """Euclidean norms of a step's gradient in the fusion module and in the shared head (Figure 4)."""
        fixed = jax.lax.stop_gradient((lane.features, lane.params))
        lane = dataclasses.replace(lane, features=fixed[0], params=fixed[1])
        now = lane.params["current"]

        def objective(chosen: Tree) -> Array:
            params = {**lane.params, "current": {**now, **chosen}}
            return self._objective(dataclasses.replace(lane, params=params))[0]

        gradients = jax.grad(objective)({name: now[name] for name in ("fusion", "head") if name in now})
        one = jnp.ones_like(lane.encoder["proximal"][0])
        zero = jax.tree.map(jnp.zeros_like, gradients)
        return {f"gradient_{name}": (jnp.sqrt(squared_distance(g, zero[name])), one) for name, g in gradients.items()}

    # What follows is for the diagnostics alone: how far clients end from where their average does.

    def collect(self, lane: Lane) -> Tree:
        """How far each encoder moved, squared `[M]`, once a batch, and the number of batches."""
        moved = lane.encoder["proximal"] if self.diagnostics else None
        return {} if moved is None else {"moved": moved, "batches": jnp.ones_like(moved[0])}

    def upload(self, start: Tree, end: Tree, sums: Tree, info: Info, state: Tree) -> Upload:
        """Nothing besides the shared modules; for the diagnostics, how far each of them moved, squared."""
        if not self.diagnostics:
            return Upload(state=state)
        encoders = sums["moved"] / jnp.maximum(sums["batches"], 1)
        blocks = {name: squared_distance(end[name], start[name]) for name in end}
        if self.confidence == "modality":
            # An encoder and its confidence head are one block theta_m.
            encoders = encoders + jax.vmap(squared_distance)(end["confidence"], start["confidence"])
            del blocks["confidence"]
        weights = jnp.broadcast_to(info.n, encoders.shape) if self.blocks == "naive" else info.n_m
        mean = {name: (value, info.n) for name, value in blocks.items()}
        mean |= {f"block {m}": (encoders[m], weights[m]) for m in range(encoders.shape[0])}
        return Upload(mean=mean, state=state)

    def server(self, server: Server, mean: Mean, stack: Tree, mask: Array, key: Array) -> tuple[Server, Terms]:
        """The averages; with diagnostics, `drift` too: sqrt(mean_k ||D_k - D||^2) / ||D||.

        D is the move of the shared model, D_k a client's; the mean is taken over each network's own members with their
        weights, the sum over all shared networks. The paper says "relative client-to-global update drift" and no more.
        """
        new = Server(mean.modules, server.state)
        if not self.diagnostics:
            return new, {}
        together = squared_distance(mean.modules, server.modules)
        apart = sum(value for value, _ in mean.extra.values())
        moved = together > 0
        drift = jnp.sqrt(jnp.maximum(apart - together, 0) / jnp.where(moved, together, 1))
        return new, {"drift": (jnp.where(moved, drift, 0), moved.astype(drift.dtype))}


def temperatures(scores: Mapping[str, Any]) -> np.ndarray:
    """tau_f of samples (Eq. 3), from the scores that Flux has for them: `tempered` is `generic + private / tau_f`.

    Args:
        scores: Predictor -> scores `[n, C]`, as `Run.predict` returns them for Flux with a private head.

    Returns:
        Float64 `[n]`, exact up to the rounding of the scores; NaN where the private scores are all 0.

    Raises:
        UsageError: One of the three predictors is not there.

    Example:
        >>> z_g, z_p = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
        >>> temperatures({"generic": z_g, "private": z_p, "tempered": z_g + z_p / 0.5}).tolist()
        [0.5]
    """
    absent = [name for name in ("generic", "private", "tempered") if name not in scores]
    if absent:
        raise UsageError(f"temperatures need the scores of Flux with a private head; there is no {absent[0]!r}")
    generic, private, tempered = (np.asarray(scores[name], np.float64) for name in ("generic", "private", "tempered"))
    # The factor of z_P that comes nearest in squares: every class has a say, the largest scores most.
    inverse = np.sum((tempered - generic) * private, axis=1)
    size = np.sum(private**2, axis=1)
    return np.divide(size, inverse, out=np.full(len(size), np.nan), where=(size > 0) & (inverse > 0))


def _stopped(features: Array, stop: bool) -> Array:
    return jax.lax.stop_gradient(features) if stop else features


def _norms(logits: Array, valid: Array) -> Array:
    """Euclidean norm of each valid sample's logits, else 0, `[B]`; not to be differentiated."""
    return jnp.sqrt(jnp.sum(jnp.square(jnp.where(valid[:, None], logits, 0)), axis=1))


def _temperatures(tau: Array, lane: Lane) -> Terms:
    """The mean of tau_f over all samples, and over those with one modality, with two, and so on."""
    valid, observed = lane.batch.valid, jnp.sum(lane.batch.observed, axis=0)
    masks = {"tau": valid}
    masks |= {f"tau_of_{count}": valid & (observed == count) for count in range(1, lane.batch.observed.shape[0] + 1)}
    return {name: (jnp.sum(jnp.where(mask, tau, 0)), jnp.sum(mask, dtype=tau.dtype)) for name, mask in masks.items()}
