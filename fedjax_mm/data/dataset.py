"""What a multimodal data set is, whatever file it came from."""

import dataclasses
from collections.abc import Mapping

import numpy as np

KINDS = ("image", "language", "audio", "time-series", "vector")


@dataclasses.dataclass(frozen=True, eq=False)
class MultimodalDataset:
    """Samples seen through several modalities, in memory, checked.

    The values of an unobserved entry are unspecified and never read.

    Attributes:
        name: Short name, used in tables and manifests.
        inputs: Modality name -> array `[n, ...]`. Floating `[n, d]` are features, `[n, time, channels]` sequences,
            uint8 `[n, height, width(, channels)]` images in 0..255, strings `[n]` text.
        labels: Class ids `[n]`, int32 in 0..C-1.
        classes: The C class names, in the order of their ids.
        kinds: Modality name -> one of `KINDS`: which encoders of a pool may be drawn for it.
        observed: Bool `[n, M]` in the order of `inputs`; False where the modality is naturally missing.
        client: Natural client of each sample, strings `[n]`, or None.
        order: Recording order within the client, integers `[n]` without ties, or None.
        group: Samples that must stay on one side of a random split, any dtype `[n]`, or None.
        other_labels: Further label arrays `[n]` a user may pick instead of `labels`.
        source: What to pass to `load_data` to get this data set again (a name or a path).
        label: The name of the label array in use, `"y"` unless another was picked.
        licence: Licence of the data, empty if unknown.
        origin: Where the data come from, empty if unknown.
        sha256: Hex digest of the file or, for data made in memory, of the content.
    """

    name: str
    inputs: Mapping[str, np.ndarray]
    labels: np.ndarray
    classes: tuple[str, ...]
    kinds: Mapping[str, str]
    observed: np.ndarray
    client: np.ndarray | None = None
    order: np.ndarray | None = None
    group: np.ndarray | None = None
    other_labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    source: str = ""
    label: str = "y"
    licence: str = ""
    origin: str = ""
    sha256: str = ""

    def __repr__(self) -> str:
        """Name and sizes."""
        sizes = f"{self.size} samples, {len(self.classes)} classes, {len(self.inputs)} modalities"
        return f"MultimodalDataset({self.name!r}, {sizes})"

    @property
    def modalities(self) -> tuple[str, ...]:
        """The M modality names, in order."""
        return tuple(self.inputs)

    @property
    def size(self) -> int:
        """The number of samples n."""
        return len(self.labels)
