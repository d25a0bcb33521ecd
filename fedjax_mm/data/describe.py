"""A data set at a glance."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedjax_mm.data.dataset import MultimodalDataset


@dataclasses.dataclass(frozen=True, eq=False)
class Description:
    """What `describe` says, as plain tables; `str()` of it is a page of text.

    Attributes:
        facts: Name -> value: what the data set is as a whole.
        modalities: One row per modality: `kind`, `shape` of one sample, `dtype`, `observed` (share of the samples, in
            [0, 1]).
        classes: One row per class: `samples`.
        clients: One row per natural client: `samples`, then one column per class with the client's samples of it; None
            if the data set has no natural clients.
    """

    facts: Mapping[str, str]
    modalities: pd.DataFrame
    classes: pd.DataFrame
    clients: pd.DataFrame | None

    def __str__(self) -> str:
        """All of it as text."""
        tables = [table.to_string() for table in (self.modalities, self.classes, self.clients) if table is not None]
        return "\n\n".join(["\n".join(f"{name}: {value}" for name, value in self.facts.items()), *tables])


def describe(data: MultimodalDataset) -> Description:
    """Describes a data set.

    Args:
        data: The data set.

    Returns:
        Facts and tables.
    """
    modalities = pd.DataFrame(
        {
            "kind": [data.kinds[modality] for modality in data.modalities],
            "shape": ["×".join(map(str, array.shape[1:])) or "text" for array in data.inputs.values()],
            "dtype": ["string" if array.dtype.kind == "U" else str(array.dtype) for array in data.inputs.values()],
            "observed": data.observed.mean(axis=0),
        },
        index=pd.Index(data.modalities, name="modality"),
    )
    names = pd.Index(data.classes, name="class")
    classes = pd.DataFrame({"samples": np.bincount(data.labels, minlength=len(names))}, index=names)
    clients = None
    if data.client is not None:
        counts = pd.crosstab(data.client, data.labels).reindex(columns=range(len(names)), fill_value=0)
        clients = counts.set_axis(names, axis=1).rename_axis(index="client", columns=None)
        clients.insert(0, "samples", counts.sum(axis=1), allow_duplicates=True)
    facts = {
        "name": data.name,
        "samples": str(data.size),
        "classes": str(len(data.classes)),
        "modalities": str(len(data.modalities)),
        "clients": "none" if clients is None else str(len(clients)),
        "without any modality": str(int((~data.observed.any(axis=1)).sum())),
        "order": "no" if data.order is None else "yes",
        "group": "no" if data.group is None else str(len(np.unique(data.group))),
        "label": data.label,
        "other labels": ", ".join(data.other_labels) or "none",
        "licence": data.licence or "unknown",
        "origin": data.origin or "unknown",
        "sha256": data.sha256,
    }
    return Description(facts=facts, modalities=modalities, classes=classes, clients=clients)
