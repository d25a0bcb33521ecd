"""The same work written by hand in PyTorch: what the engine is measured against. Needs the extra `bench`.

Every reference takes its batches from the pool by index, in an order shuffled anew each epoch, and does plain SGD in
place: as many steps, samples and exchanged quantities as the engine. Nothing is evaluated and nothing is counted.
A network is a list of tensors, weight `[out, in]` and bias `[out]` by layer.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn.functional import (  # pyright: ignore[reportMissingImports]
    cross_entropy,
    linear,
    log_softmax,
    one_hot,
)

from fedjax_mm.bench.workloads import Workload
from fedjax_mm.data.standardise import fit
from fedjax_mm.federation import Federation

Tensor = torch.Tensor
Network = list[Tensor]
THREADS = 2


class Task(NamedTuple):
    """The data of a federation and how it is trained on.

    Attributes:
        inputs: Per modality the standardised samples, float32 `[n, features]`.
        labels: Class ids, int64 `[n]`.
        rows: Each client's training samples, int64 `[K, samples]`.
        encoders: Per client, position of a modality -> widths of its encoder, the input's first.
        classes: The number of classes C.
        epochs: Local epochs.
        batch: Batch size.
        lr: Learning rate.
        options: The method's options.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor
    rows: Tensor
    encoders: Sequence[Mapping[int, tuple[int, ...]]]
    classes: int
    epochs: int
    batch: int
    lr: float
    options: Mapping[str, Any]

    def batches(self, rows: Tensor) -> Iterator[Tensor]:
        """Rows in random order, batch after batch and epoch after epoch; a leading axis of clients is shuffled apart.

        Args:
            rows: Int64 `[..., samples]`.

        Yields:
            Int64 `[..., batch]`, the last of an epoch maybe shorter.
        """
        for _ in range(self.epochs):
            yield from rows.gather(-1, torch.rand(rows.shape).argsort(-1)).split(self.batch, dim=-1)


def make_task(workload: Workload, federation: Federation, encoders: Sequence[Mapping[int, tuple[int, ...]]]) -> Task:
    """A federation as tensors. Standardising is done once, here; the engine does it at every read."""
    data, rows = federation.data, federation.train.rows
    inputs = []
    for m, (name, values) in enumerate(data.inputs.items()):
        shift, scale = fit(values, data.kinds[name], rows[federation.holds[:, m]].reshape(-1))
        standard = values - shift
        standard *= scale
        inputs.append(torch.from_numpy(standard))
    return Task(
        inputs=tuple(inputs),
        labels=torch.from_numpy(data.labels.astype(np.int64)),
        rows=torch.from_numpy(rows.astype(np.int64)),
        encoders=encoders,
        classes=len(data.classes),
        epochs=workload.settings["epochs"],
        batch=workload.settings["batch"],
        lr=workload.settings.get("lr", 0.01),
        options=workload.options,
    )


def fresh(sizes: Sequence[int]) -> Network:
    """A network of dense layers of these widths, weights LeCun-uniform, biases 0."""
    network = []
    for before, after in itertools.pairwise(sizes):
        limit = (3 / before) ** 0.5
        network += [torch.empty(after, before).uniform_(-limit, limit), torch.zeros(after)]
    return [leaf.requires_grad_() for leaf in network]


def features(network: Network, x: Tensor) -> Tensor:
    """Linear-ReLU by layer: features `[..., d]`, at least 0."""
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        x = torch.relu(linear(x, weight, bias))
    return x


def encode(network: Network, x: Tensor) -> Tensor:
    """The same without a ReLU after the last layer."""
    return linear(features(network[:-2], x), *network[-2:])


def train(task: Task, rows: Tensor, params: Network, loss: Callable[[Tensor], Tensor]) -> None:
    """One client's round: SGD in place on `params` along the gradient of `loss` of a batch's rows."""
    for index in task.batches(rows):
        gradients = torch.autograd.grad(loss(index), params)
        with torch.no_grad():
            for leaf, gradient in zip(params, gradients, strict=True):
                leaf.sub_(gradient, alpha=task.lr)


class FedAvgLoop:
    """FedAvg, client after client: W1.

    Attributes:
        params: The server's network.
    """

    def __init__(self, task: Task):
        self.task = task
        self.params = fresh((*task.encoders[0][0], task.classes))
        self.mine = [leaf.detach().clone().requires_grad_() for leaf in self.params]

    def round(self) -> None:
        """Every client trains from the average and is averaged by its samples."""
        task, mine = self.task, self.mine
        totals = [torch.zeros_like(leaf) for leaf in self.params]
        for rows in task.rows:
            with torch.no_grad():
                for leaf, start in zip(mine, self.params, strict=True):
                    leaf.copy_(start)
            train(task, rows, mine, lambda index: cross_entropy(self.scores(mine, index), task.labels[index]))
            with torch.no_grad():
                for total, leaf in zip(totals, mine, strict=True):
                    total.add_(leaf, alpha=len(rows))
        with torch.no_grad():
            for leaf, total in zip(self.params, totals, strict=True):
                leaf.copy_(total / task.rows.numel())

    def scores(self, params: Network, index: Tensor) -> Tensor:
        """Logits `[B, C]` of the samples in rows `index`."""
        return linear(features(params[:-2], self.task.inputs[0][index]), *params[-2:])


class FedAvgVmap:
    """FedAvg, all clients at once by `torch.func.vmap`; attributes as `FedAvgLoop`."""

    def __init__(self, task: Task):
        self.task = task
        self.params = [leaf.detach() for leaf in fresh((*task.encoders[0][0], task.classes))]

        def loss(params: Network, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(linear(features(params[:-2], x), *params[-2:]), y)

        self.gradient = torch.func.vmap(torch.func.grad(loss))

    def round(self) -> None:
        """As `FedAvgLoop.round`."""
        task, clients = self.task, len(self.task.rows)
        stacked = [leaf.expand(clients, *leaf.shape).clone() for leaf in self.params]
        for index in task.batches(task.rows):
            gradients = self.gradient(stacked, task.inputs[0][index], task.labels[index])
            for leaf, gradient in zip(stacked, gradients, strict=True):
                leaf.sub_(gradient, alpha=task.lr)
        weights = torch.full((clients,), task.rows.shape[1] / task.rows.numel())
        self.params = [torch.tensordot(weights, leaf, 1) for leaf in stacked]


class FedAvgBmm:
    """FedAvg of a network with one hidden layer, all clients at once by `torch.baddbmm`, its gradients by hand.

    Attributes:
        params: The server's network, as of `FedAvgLoop`.
    """

    def __init__(self, task: Task):
        self.task = task
        self.params = [leaf.detach() for leaf in fresh((*task.encoders[0][0], task.classes))]

    def round(self) -> None:
        """As `FedAvgLoop.round`."""
        task, clients = self.task, len(self.task.rows)
        first, first_bias, last, last_bias = (
            (leaf.T if leaf.ndim == 2 else leaf[None])
            .expand(clients, -1, -1)
            .clone(memory_format=torch.contiguous_format)
            for leaf in self.params
        )
        for index in task.batches(task.rows):
            x, y = task.inputs[0][index], task.labels[index]
            hidden = torch.baddbmm(first_bias, x, first).relu_()
            slope = torch.softmax(torch.baddbmm(last_bias, hidden, last), dim=-1)
            slope.scatter_add_(-1, y[..., None], torch.full((*y.shape, 1), -1.0))
            slope /= y.shape[-1]
            back = torch.bmm(slope, last.transpose(1, 2)).mul_(hidden > 0)
            last.baddbmm_(hidden.transpose(1, 2), slope, alpha=-task.lr)
            last_bias.sub_(slope.sum(1, keepdim=True), alpha=task.lr)
            first.baddbmm_(x.transpose(1, 2), back, alpha=-task.lr)
            first_bias.sub_(back.sum(1, keepdim=True), alpha=task.lr)
        weights = torch.full((clients,), task.rows.shape[1] / task.rows.numel())
        means = [torch.tensordot(weights, leaf, 1) for leaf in (first, first_bias, last, last_bias)]
        self.params = [mean[0] if position % 2 else mean.T.contiguous() for position, mean in enumerate(means)]


class Prototypes(NamedTuple):
    """Prototypes `[..., C, d]` and which of them there are, bool `[..., C]`."""

    value: Tensor
    present: Tensor


def class_sums(values: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sums `[..., C, d]` of `values` `[..., n, d]` by class `y` `[..., n]`, and counts `[..., C]`."""
    member = one_hot(y, classes).to(values.dtype)
    return member.transpose(-1, -2) @ values, member.sum(-2)


def merged(values: Tensor, weights: Tensor, old: Prototypes) -> Prototypes:
    """Per class the mean of `values` `[K, ..., C, d]` by `weights` `[K, ..., C]`; the old one where there is none."""
    total = weights.sum(0)
    mean = (values * weights[..., None]).sum(0) / total.clamp(min=1e-30)[..., None]
    return Prototypes(torch.where(total[..., None] > 0, mean, old.value), old.present | (total > 0))


def fedproto_loss(params: Network, x: Tensor, y: Tensor, target: Tensor, present: Tensor, lam: float) -> Tensor:
    """Cross-entropy and the pull of features to the prototypes `target` `[C, d]` of their classes, where `present`."""
    z = features(params[:-2], x)
    gap = (z - target[y]) * present[y][:, None]
    return cross_entropy(linear(z, *params[-2:]), y) + lam * gap.square().mean()


class FedProtoLoop:
    """FedProto, client after client: W2.

    Attributes:
        clients: Every client's network, its last layer the head.
        prototypes: The global ones.
    """

    def __init__(self, task: Task):
        self.task, dim = task, task.encoders[0][0][-1]
        self.clients = [fresh((*encoder[0], task.classes)) for encoder in task.encoders]
        self.prototypes = Prototypes(torch.zeros(task.classes, dim), torch.zeros(task.classes, dtype=torch.bool))

    def round(self) -> None:
        """Every client trains, then sums its features by class; the server merges the prototypes."""
        task, lam, uploads = self.task, self.task.options.get("lam", 1.0), []
        for rows, params in zip(task.rows, self.clients, strict=True):

            def loss(index: Tensor, params: Network = params) -> Tensor:
                return fedproto_loss(params, task.inputs[0][index], task.labels[index], *self.prototypes, lam)

            train(task, rows, params, loss)
            with torch.no_grad():
                uploads.append(class_sums(features(params[:-2], task.inputs[0][rows]), task.labels[rows], task.classes))
        sums, counts = map(torch.stack, zip(*uploads, strict=True))
        self.prototypes = merged(sums / counts.clamp(min=1)[..., None], counts, self.prototypes)


class FedProtoVmap:
    """FedProto, all clients of one shape at once by `torch.func.vmap`.

    Attributes:
        groups: Per shape, its clients and their networks, leaves `[clients, ...]`.
        prototypes: The global ones.
    """

    def __init__(self, task: Task):
        loop = FedProtoLoop(task)
        self.task, self.prototypes, shapes = task, loop.prototypes, [encoder[0] for encoder in task.encoders]
        self.groups = []
        for shape in dict.fromkeys(shapes):
            members = [client for client, other in enumerate(shapes) if other == shape]
            leaves = zip(*(loop.clients[client] for client in members), strict=True)
            self.groups.append((members, [torch.stack(leaf).detach() for leaf in leaves]))
        self.gradient = torch.func.vmap(torch.func.grad(fedproto_loss), in_dims=(0, 0, 0, None, None, None))
        self.features = torch.func.vmap(features)

    def round(self) -> None:
        """As `FedProtoLoop.round`."""
        task, lam, uploads = self.task, self.task.options.get("lam", 1.0), []
        for members, params in self.groups:
            rows = task.rows[members]
            for index in task.batches(rows):
                x, y = task.inputs[0][index], task.labels[index]
                for leaf, gradient in zip(params, self.gradient(params, x, y, *self.prototypes, lam), strict=True):
                    leaf.sub_(gradient, alpha=task.lr)
            z = self.features(params[:-2], task.inputs[0][rows])
            uploads.append(class_sums(z, task.labels[rows], task.classes))
        sums, counts = map(torch.cat, zip(*uploads, strict=True))
        self.prototypes = merged(sums / counts.clamp(min=1)[..., None], counts, self.prototypes)


class MFedPBALoop:
    """MFedPBA without server steps, client after client: W3.

    Attributes:
        clients: Every client's networks: position of a modality -> encoder; -1 -> head.
        autoencoder: Phi_m, kernels `[M, d, h]` and biases `[M, 1, h]`; psi, kernel `[h, d]` and bias `[d]`.
        features: The global feature prototypes.
        logits: The global logit prototypes.
    """

    def __init__(self, task: Task):
        modalities, classes = len(task.inputs), task.classes
        dim = next(iter(task.encoders[0].values()))[-1]
        self.task = task
        self.clients = [
            {m: fresh(sizes) for m, sizes in encoders.items()} | {-1: fresh((dim, classes))}
            for encoders in task.encoders
        ]
        hidden = max(dim // 2, 1)
        phi = [fresh((dim, hidden))[0].detach().T for _ in range(modalities)]
        psi = fresh((hidden, dim))[0].detach().T
        self.autoencoder = [torch.stack(phi), torch.zeros(modalities, 1, hidden), psi, torch.zeros(dim)]
        nothing = torch.zeros(modalities, classes, dtype=torch.bool)
        self.features = Prototypes(torch.zeros(modalities, classes, dim), nothing)
        self.logits = Prototypes(torch.zeros(classes, classes), nothing[0])

    def round(self) -> None:
        """Every client trains, then averages features and logits by class; the server merges these prototypes."""
        task, uploads = self.task, []
        for rows, networks in zip(task.rows, self.clients, strict=True):

            def loss(index: Tensor, networks: dict[int, Network] = networks) -> Tensor:
                return self._loss(networks, index)

            train(task, rows, [leaf for network in networks.values() for leaf in network], loss)
            with torch.no_grad():
                uploads.append(self._summarise(networks, rows))
        self._merge(uploads)

    def _forward(self, networks: dict[int, Network], index: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features by held modality, and logits."""
        held = [encode(networks[m], self.task.inputs[m][index]) for m in networks if m >= 0]
        return held, linear(torch.stack(held).sum(0), *networks[-1])

    def _loss(self, networks: dict[int, Network], index: Tensor) -> Tensor:
        """L_ce + lambda_1 L_fea + lambda_2 L_logit (Eq. 13, 14 and 16 of MFedPBA)."""
        task, y = self.task, self.task.labels[index]
        held, logits = self._forward(networks, index)
        modalities = [m for m in networks if m >= 0]
        sums, counts = class_sums(torch.stack(held), y.expand(len(held), -1), task.classes)
        local = sums / counts.clamp(min=1)[..., None]
        both = (counts > 0) & self.features.present[modalities]
        fea = ((self.features.value[modalities] - local).square().sum(-1) * both).mean()
        sums, counts = class_sums(logits, y, task.classes)
        log_q = log_softmax(sums / counts.clamp(min=1)[:, None], -1)
        log_p = log_softmax(self.logits.value, -1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        kl = (divergence * ((counts > 0) & self.logits.present)).mean()
        options = task.options
        return cross_entropy(logits, y) + options.get("lambda_fea", 0.01) * fea + options.get("lambda_logit", 1.0) * kl

    def _summarise(self, networks: dict[int, Network], rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Feature prototypes `[M, C, d]` with counts `[M, C]`, logit prototypes `[C, C]` with counts `[C]`."""
        task, y = self.task, self.task.labels[rows]
        held, logits = self._forward(networks, rows)
        value, count = torch.zeros_like(self.features.value), torch.zeros(self.features.present.shape)
        for m, z in zip(networks, held, strict=False):
            value[m], count[m] = class_sums(z, y, task.classes)
        sums, counts = class_sums(logits, y, task.classes)
        return value / count.clamp(min=1)[..., None], count, sums / counts.clamp(min=1)[:, None], counts

    def _merge(self, uploads: list[tuple[Tensor, ...]]) -> None:
        """Projects and averages feature prototypes (Eq. 7, 8), averages logit prototypes by confidence (Eq. 6)."""
        value, count, logits, counts = map(torch.stack, zip(*uploads, strict=True))
        log_p = log_softmax(logits, -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        self.logits = merged(logits, (counts > 0) / (entropy + 1e-8), self.logits)
        phi, phi_bias, psi, psi_bias = self.autoencoder
        projected = torch.relu(value @ phi + phi_bias) @ psi + psi_bias
        self.features = merged(projected, (count > 0).float(), self.features)


REFERENCES = {
    ("fedavg", "torch-loop"): FedAvgLoop,
    ("fedavg", "torch-vmap"): FedAvgVmap,
    ("fedavg", "torch-bmm"): FedAvgBmm,
    ("fedproto", "torch-loop"): FedProtoLoop,
    ("fedproto", "torch-vmap"): FedProtoVmap,
    ("mfedpba", "torch-loop"): MFedPBALoop,
}
