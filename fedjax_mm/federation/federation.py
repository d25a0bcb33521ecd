"""Who holds what: index tables over one data set, nothing copied."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_mm.data.dataset import MultimodalDataset

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class IndexTable:
    """The samples of every client in one part of the split.

    Attributes:
        rows: Sample indices, int32 `[K, width]`; entries beyond a client's size hold n, one past the last sample.
        sizes: Samples per client, int32 `[K]`.
    """

    rows: np.ndarray
    sizes: np.ndarray

    def of(self, client: int) -> np.ndarray:
        """The sample indices of one client, int32 `[sizes[client]]`, in ascending order."""
        return self.rows[client, : self.sizes[client]]


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
    """A data set divided among clients.

    A client's sample has modality m where `holds[client, m]` and `observed[sample, m]`; every sample in a table has at
    least one.

    Attributes:
        data: The data set the tables point into (n samples, M modalities).
        clients: The K client names; a client's id is its position, 0..K-1.
        holds: Bool `[K, M]`, True where the client has the modality at all.
        observed: Bool `[n, M]`, True where the modality of the sample may be read: what the data have and the
            missingness leaves.
        train: Samples to learn from.
        validation: Samples to select on.
        test: Samples to report on.
        split_seed: The seed of partition, masks and architectures.
        settings: Every option that made this federation, resolved, JSON-ready: `federate(data, **settings)` makes it
            again.
        counts: What was left out, merged or repaired on the way, by name, and how often.
        missing_rates: The realised shares of missing modalities, in [0, 1]: axis -> `natural`, `before repair`,
            `after repair`, see `counting.missing_rates`; `test client axis` and `test sample axis` where testing has a
            missingness of its own.
    """

    data: MultimodalDataset
    clients: tuple[str, ...]
    holds: np.ndarray
    observed: np.ndarray
    train: IndexTable
    validation: IndexTable
    test: IndexTable
    split_seed: int
    settings: Mapping[str, Any]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missing_rates: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        """Data, partition, clients and split seed."""
        partition = self.settings.get("partition")
        return f"Federation({self.data.name!r}, {partition}, {self.size} clients, split seed {self.split_seed})"

    def table(self, split: str) -> IndexTable:
        """The index table of `"train"`, `"validation"` or `"test"`."""
        return getattr(self, split)

    @property
    def size(self) -> int:
        """The number of clients K."""
        return len(self.clients)
