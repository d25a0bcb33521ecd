"""Small data sets for the federation tests; inputs are placeholders, for a federation never reads them."""

import numpy as np
import pytest

from fedjax_mm.data.dataset import MultimodalDataset


def build(labels, *, modalities=3, observed=None, **more):
    labels = np.asarray(labels, np.int32)
    observed = np.ones((len(labels), modalities), bool) if observed is None else np.asarray(observed, bool)
    names = more.pop("names", [f"m{number}" for number in range(observed.shape[1])])
    return MultimodalDataset(
        name="tiny",
        inputs={name: np.zeros((len(labels), 1), np.float32) for name in names},
        labels=labels,
        classes=tuple(f"class {label}" for label in range(more.pop("classes", labels.max(initial=0) + 1))),
        kinds=dict.fromkeys(names, "vector"),
        observed=observed,
        **{key: np.asarray(value) for key, value in more.items()},
    )


def load(path):
    with np.load(path, allow_pickle=False) as file:
        names = [key[2:] for key in file.files if key.startswith("x.")]
        size = len(file["y"])
        observed = [file[key] if (key := f"observed.{name}") in file else np.ones(size, bool) for name in names]
        extras = {"client": "client", "order": "order", "group": "group", "series": "group"}
        more = {attribute: file[key] for key, attribute in extras.items() if key in file}
        return build(file["y"], observed=np.stack(observed, 1), names=names, classes=len(file["classes"]), **more)


@pytest.fixture(scope="session")
def make():
    return build


@pytest.fixture
def real(shared_data):
    return lambda name: load(shared_data(name))
