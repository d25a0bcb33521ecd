"""The PyTorch reference for time series: W4."""

import torch  # pyright: ignore[reportMissingImports]
from torch.nn.functional import conv1d, dropout, linear, max_pool1d  # pyright: ignore[reportMissingImports]

from fedjax_mm.bench.torch_reference import FedAvgLoop, Network, Task, Tensor, fresh

# Of `fedjax_mm.models.sensing`, whose import would bring JAX into this process.
CHANNELS, WINDOWS, DROPOUT = (32, 64, 96), (24, 16, 8), 0.1


class FedAvgStreams(FedAvgLoop):
    """FedAvg of convolutions by stream, attention over streams and a two-layer head, client after client: W4.

    Attributes:
        params: The server's networks: per stream three convolutions (kernel `[out, in, window]`, bias), then the
            attention (W, b, v), then the head.
    """

    def __init__(self, task: Task):
        dim = CHANNELS[-1]
        before, self.task, self.params = task.inputs[0].shape[2], task, []
        for _ in task.inputs:
            for window, channels, inputs in zip(WINDOWS, CHANNELS, (before, *CHANNELS), strict=False):
                limit = (3 / (inputs * window)) ** 0.5
                self.params += [torch.empty(channels, inputs, window).uniform_(-limit, limit), torch.zeros(channels)]
        dense = (*fresh((dim, dim)), fresh((dim, 1))[0], *fresh((dim, dim, task.classes)))
        self.params += [leaf.detach() for leaf in dense]
        self.mine = [leaf.clone().requires_grad_() for leaf in self.params]

    def scores(self, params: Network, index: Tensor) -> Tensor:
        """As `FedAvgLoop.scores`."""
        *encoders, weight, bias, score, first, first_bias, last, last_bias = params
        streams = []
        for m, inputs in enumerate(self.task.inputs):
            x = inputs[index].transpose(1, 2)
            for layer in range(len(CHANNELS)):
                kernel, shift = encoders[2 * (len(CHANNELS) * m + layer) :][:2]
                x = conv1d(x, kernel, shift)
                x = max_pool1d(x, 2) if layer < len(CHANNELS) - 1 else x
                x = dropout(torch.relu(x), DROPOUT)
            streams.append(x.amax(2))
        h = torch.stack(streams)
        shares = torch.softmax(linear(torch.tanh(linear(h, weight, bias)), score), dim=0)
        return linear(torch.relu(linear((shares * h).sum(0), first, first_bias)), last, last_bias)
