"""MFedPBA: feature prototypes aligned by an autoencoder on the server, logit prototypes weighted by their entropy."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_mm.errors import UsageError, choose
from fedjax_mm.methods.layout import Rows, Spec, Upload
from fedjax_mm.methods.method import Array, Info, Lane, Mean, Method, Server, Terms, Tree, method
from fedjax_mm.objectives.autoencoder import aggregate, init_autoencoder, project, reconstruction
from fedjax_mm.objectives.contrast import intermodal_contrast
from fedjax_mm.objectives.features import align_features
from fedjax_mm.objectives.gromov import COST_SCALES, align_geometry
from fedjax_mm.objectives.logits import align_logits, entropy_weights
from fedjax_mm.objectives.prototypes import class_means, class_sums, merge_prototypes
from fedjax_mm.objectives.solvers import SOLVERS, make_solver
from fedjax_mm.objectives.supervised import cross_entropy


class Prototypes(NamedTuple):
    """Prototypes of one client, or the global ones.

    Attributes:
        features: `[M, C, d]`, present `[M, C]`.
        logits: `[C, C]`, class by logit, present `[C]`.
    """

    features: Rows
    logits: Rows


class Knowledge(NamedTuple):
    """What the server keeps.

    Attributes:
        autoencoder: Parameters of the encoders Phi_m and the decoder psi.
        prototypes: The global prototypes P_G and I_G.
    """

    autoencoder: Tree
    prototypes: Prototypes


@method
class MFedPBA(Method):
    """Clients learn by cross-entropy and from global prototypes, which the server aligns (Liao et al., Algorithm 1).

    What the paper leaves open is an option here; its default is our choice. A client receives the feature prototypes of
    its own modalities: it has no use for others.

    Attributes:
        lambda_fea: lambda_1, weight of the feature alignment (Eq. 13), at least 0.
        lambda_logit: lambda_2, weight of the logit alignment (Eq. 14), at least 0.
        server_lr: Learning rate of the server's SGD, at least 0.
        server_clip: Largest global norm of the server's gradient, above 0; none for no clipping, as written: the summed
            losses then diverge for many classes.
        temperature: tau of the contrast (Eq. 10), above 0.
        epsilon: Weight of the coupling's entropy (Eq. 11), above 0, on the scale of the scaled costs.
        server_steps: S, steps of the server a round, at least 0.
        server_reduce: `sum` as written, or `mean`: each server loss is divided by the number of its terms.
        reconstruction: Whether the server minimises Eq. 9.
        contrast: Whether it minimises Eq. 10.
        alignment: Whether it minimises Eq. 11.
        feature: Whether clients minimise Eq. 13.
        logit: Whether clients minimise Eq. 14.
        entropy_weights: Logit prototypes averaged by Eq. 6 (true), or equally (false; "EA" in Figure 7).
        fea_norm: Eq. 13 with the `sum` over dimensions as written, or with their `mean`.
        class_mean: Eq. 13 and 14 divided by `all` classes as written, or by those `present`.
        cost_scale: What costs of Eq. 11 are divided by: `mean` or `max` of their off-diagonal entries, or `none`.
        solver: Of Eq. 11: `sinkhorn` (the package's own) or `ott` (OTT-JAX).
    """

    lambda_fea: float = 0.01
    lambda_logit: float = 1.0
    server_lr: float = 0.01
    server_clip: float | None = 5.0
    temperature: float = 0.5
    epsilon: float = 0.02
    server_steps: int = 10
    server_reduce: str = "sum"
    reconstruction: bool = True
    contrast: bool = True
    alignment: bool = True
    feature: bool = True
    logit: bool = True
    entropy_weights: bool = True
    fea_norm: str = "sum"
    class_mean: str = "all"
    cost_scale: str = "mean"
    solver: str = "sinkhorn"

    name: ClassVar[str] = "mfedpba"

    def check(self, spec: Spec) -> None:
        """Raises `UsageError` for a number out of range or an unknown choice."""
        for name in ("lambda_fea", "lambda_logit", "server_lr", "server_steps"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"mfedpba: {name} is {getattr(self, name)}, must be finite and at least 0")
        for name in ("temperature", "epsilon", "server_clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"mfedpba: {name} is {value}, must be finite and above 0")
        choose("mfedpba.server_reduce", self.server_reduce, ("sum", "mean"))
        choose("mfedpba.fea_norm", self.fea_norm, ("sum", "mean"))
        choose("mfedpba.class_mean", self.class_mean, ("all", "present"))
        choose("mfedpba.cost_scale", self.cost_scale, COST_SCALES)
        choose("mfedpba.solver", self.solver, SOLVERS)

    def init_server(self, key: Array, spec: Spec) -> Knowledge:
        """Fresh Phi_m and psi; no prototype before the first round, in which clients learn by cross-entropy alone."""
        m, c, d = len(spec.modalities), spec.classes, spec.dim
        features = Rows(jnp.zeros((m, c, d)), jnp.zeros((m, c), bool))
        logits = Rows(jnp.zeros((c, c)), jnp.zeros(c, bool))
        return Knowledge(init_autoencoder(key, m, d, jnp.zeros(()).dtype), Prototypes(features, logits))

    def download(self, server: Knowledge, info: Info) -> Prototypes:
        """P_G of the client's modalities, and I_G."""
        features, logits = server.prototypes
        return Prototypes(Rows(features.value, features.present & info.modalities[:, None]), logits)

    def loss(self, lane: Lane) -> tuple[Array, Terms]:
        """L_client = L_ce + lambda_1 L_fea + lambda_2 L_logit (Eq. 16), with the prototypes of the batch."""
        batch, target = lane.batch, lane.download
        logits = lane.logits()
        total, n = cross_entropy(logits, batch.y, batch.valid)
        terms = {"ce": (total * n, n)}
        local = _prototypes(*_sums(lane, logits))
        if self.feature:
            both = local.features.present & target.features.present
            fea = align_features(
                local.features.value,
                target.features.value,
                both,
                lane.info.modalities,
                norm=self.fea_norm,
                class_mean=self.class_mean,
            )
            total, terms["fea"] = total + self.lambda_fea * fea, (fea * n, n)
        if self.logit:
            both = local.logits.present & target.logits.present
            kl = align_logits(local.logits.value, target.logits.value, both, class_mean=self.class_mean)
            total, terms["logit"] = total + self.lambda_logit * kl, (kl * n, n)
        return total, terms

    def collect(self, lane: Lane) -> Tree:
        """Class sums of each modality's feature and of the fused logits."""
        return _sums(lane, lane.logits())

    def upload(self, start: Tree, end: Tree, sums: Tree, info: Info, state: Tree) -> Upload:
        """The prototypes E_k (Eq. 2) and I_k (Eq. 3) of what the client holds."""
        return Upload(stack=_prototypes(*sums), state=state)

    def server(self, server: Server, mean: Mean, stack: Prototypes, mask: Array, key: Array) -> tuple[Server, Terms]:
        """Aggregates logits, trains the autoencoder for S steps, and aggregates the prototypes it projects."""
        old: Knowledge = server.state
        logits, terms = self._aggregate_logits(stack.logits, mask, old.prototypes.logits)
        uploaded = Rows(stack.features.value, stack.features.present & mask[:, None, None])
        objective = _Objective(self, uploaded, jnp.sum(mask), old.prototypes.features, logits)
        autoencoder, new = objective.minimise(old.autoencoder)
        features = Rows(*objective.aggregate(autoencoder)[1])
        new["prototypes_present"] = _once(jnp.sum(features.present))
        return Server(mean.modules, Knowledge(autoencoder, Prototypes(features, logits))), terms | new

    def predict(self, lane: Lane) -> dict[str, Array]:
        """The client's own head, argmax h_k(sum_m f_k^m)."""
        return {"head": lane.logits()}

    def _aggregate_logits(self, uploaded: Rows, mask: Array, old: Rows) -> tuple[Rows, Terms]:
        """I_G: per class the mean over the members that hold it, by Eq. 6 or equally; kept if none does."""
        held = uploaded.present & mask[:, None]
        weights = entropy_weights(uploaded.value, held) if self.entropy_weights else held.astype(old.value.dtype)
        merged = Rows(*merge_prototypes(uploaded.value, weights, old.value, old.present))
        largest = jnp.max(weights / jnp.maximum(jnp.sum(weights, axis=0), 1e-30), axis=0)
        covered = jnp.any(held, axis=0)
        share = jnp.sum(jnp.where(covered, largest, 0)), jnp.sum(covered).astype(weights.dtype)
        return merged, {"largest_logit_weight": share}


class _Objective(NamedTuple):
    """L_server of one round (Eq. 12).

    Attributes:
        method: Its options.
        uploaded: E_k, `[cohort, M, C, d]`, present where held and heard.
        members: Cohort members that were heard, integer scalar.
        old: Previous P_G.
        logits: I_G of this round.
    """

    method: MFedPBA
    uploaded: Rows
    members: Array
    old: Rows
    logits: Rows

    def aggregate(self, autoencoder: Tree) -> tuple[Array, tuple[Array, Array]]:
        """P_k (Eq. 7), and P_G with its validity (Eq. 8)."""
        projected = project(autoencoder, *_pair(self.uploaded))
        return projected, aggregate(projected, self.uploaded.present, *_pair(self.old))

    def minimise(self, autoencoder: Tree) -> tuple[Tree, Terms]:
        """S steps of SGD on Phi_m and psi; terms are summed over the steps."""
        options = self.method
        clip = [] if options.server_clip is None else [optax.clip_by_global_norm(options.server_clip)]
        rule = optax.chain(*clip, optax.sgd(options.server_lr))

        def step(carry: tuple[Tree, Any], _: None) -> tuple[tuple[Tree, Any], Terms]:
            params, state = carry
            gradients, terms = jax.grad(self.loss, has_aux=True)(params)
            updates, state = rule.update(gradients, state)
            terms["server_gradient"] = _once(optax.tree.norm(gradients))
            return (optax.apply_updates(params, updates), state), terms

        (autoencoder, _), terms = jax.lax.scan(step, (autoencoder, rule.init(autoencoder)), length=options.server_steps)
        return autoencoder, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), terms)

    def loss(self, autoencoder: Tree) -> tuple[Array, Terms]:
        """L_server = L_rec + L_con + L_align, and its terms."""
        options, mean = self.method, self.method.server_reduce == "mean"
        projected, (features, present) = self.aggregate(autoencoder)
        total, terms = jnp.zeros((), features.dtype), {}
        if options.reconstruction:
            value = reconstruction(projected, *_pair(self.uploaded), self.members)
            entries = jnp.sum(self.uploaded.present) / jnp.maximum(self.members, 1)
            total, terms["rec"] = total + _reduced(value, entries, mean), _once(value)
        if options.contrast:
            value = intermodal_contrast(features, present, temperature=options.temperature)
            holders = jnp.sum(present, axis=0)
            total, terms["con"] = total + _reduced(value, jnp.sum(holders * (holders - 1)), mean), _once(value)
        if options.alignment:
            both, solver = present & self.logits.present, make_solver(options.solver)
            aligned = align_geometry(
                features, self.logits.value, both, options.epsilon, solver, scale=options.cost_scale
            )
            problems, value = jnp.sum(both, axis=1) >= 2, jnp.sum(aligned.value)
            total, terms["align"] = total + _reduced(value, jnp.sum(problems), mean), _once(value)
            solved = jnp.sum(problems & aligned.converged).astype(features.dtype)
            terms["gw_converged"] = solved, jnp.sum(problems).astype(features.dtype)
        return total, terms


def _sums(lane: Lane, logits: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Class sums and counts of features `[M, C, d]`, `[M, C]` and of logits `[C, C]`, `[C]`."""
    batch, classes = lane.batch, lane.info.counts.shape[0]
    features = jax.vmap(lambda f, observed: class_sums(f, batch.y, observed, classes))(
        lane.features["current"], batch.observed
    )
    return features, class_sums(logits, batch.y, batch.valid, classes)


def _prototypes(features: tuple[Array, Array], logits: tuple[Array, Array]) -> Prototypes:
    """Prototypes from class sums (Eq. 2, 3)."""
    means = jax.vmap(class_means)(*features)
    return Prototypes(Rows(means, features[1] > 0), Rows(class_means(*logits), logits[1] > 0))


def _reduced(value: Array, terms: Array, mean: bool) -> Array:
    return value / jnp.maximum(terms, 1).astype(value.dtype) if mean else value


def _once(value: Array) -> tuple[Array, Array]:
    value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
    return value, jnp.ones_like(value)


def _pair(rows: Rows) -> tuple[Array, Array]:
    return rows.value, rows.present
