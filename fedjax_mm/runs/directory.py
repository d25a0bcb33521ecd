"""A run directory: where its files are, when it may be made, and how they are written."""

import dataclasses
import datetime
import itertools
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation import SPLITS, Federation
from fedjax_mm.runs import checkpoints, files, records
from fedjax_mm.runs.files import Path
from fedjax_mm.runs.records import MethodRecord


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A run directory.

    Attributes:
        path: The directory.
    """

    path: pathlib.Path

    def federation(self, split_seed: int) -> pathlib.Path:
        """Who holds what under a split seed: split and masks."""
        return self.path / "federation" / f"{split_seed}.npz"

    def checkpoints(self, label: str) -> pathlib.Path:
        """The checkpoints of a method."""
        return self.path / "checkpoints" / label

    def records(self, label: str) -> tuple[pathlib.Path, pathlib.Path]:
        """What a method has recorded, for `resume`: the file, and the one before it."""
        return self.checkpoints(label) / "record.npz", self.checkpoints(label) / "record.previous.npz"

    def create(self, manifest: Mapping[str, Any], federations: Sequence[Federation] = ()) -> None:
        """Makes the directory, with its manifest, who holds what, and tables without rows.

        Raises:
            UsageError: It cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_json(self.path / "manifest.json", manifest)
            for federation in federations:
                write_federation(self.federation(federation.split_seed), federation)
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error
        self.write_tables([], "accuracy")
        self.write_costs({})

    def keep(self, record: MethodRecord, state: Any, fingerprint: Mapping[str, Any]) -> None:
        """Saves what a method recorded, then its state: a checkpoint never lacks its records."""
        self.checkpoints(record.name).mkdir(parents=True, exist_ok=True)
        current, previous = self.records(record.name)
        if current.exists():
            current.replace(previous)
        records.save(record, current)
        checkpoints.save(self.checkpoints(record.name), int(record.rounds[-1]), state, fingerprint=fingerprint)

    def stored(self, label: str) -> MethodRecord | None:
        """What a method has recorded, up to its last checkpoint; None if there is nothing to go on from.

        A damaged file is passed over for the one before it, with a warning.
        """
        last = checkpoints.latest(self.checkpoints(label))
        if last is None:
            return None
        for path in self.records(label):
            try:
                return records.until(records.load(path), last)
            except (RunError, UsageError) as error:
                warnings.warn(f"{error}; trying what was recorded before", stacklevel=2)
        return None

    def write_tables(self, recorded: Sequence[MethodRecord], metric: str) -> None:
        """Writes `rounds.csv`, `clients.csv`, `subsets.csv` and `summary.json`; `metric` is what selects a round."""
        files.write_csv(self.path / "rounds.csv", records.rounds_table(recorded))
        files.write_csv(self.path / "clients.csv", records.clients_table(recorded))
        files.write_csv(self.path / "subsets.csv", records.subsets_table(recorded, metric=metric))
        files.write_json(self.path / "summary.json", records.summary(recorded, metric=metric))

    def write_costs(self, content: Mapping[str, Any]) -> None:
        """Writes `costs.json`."""
        files.write_json(self.path / "costs.json", content)

    def manifest(self) -> dict[str, Any]:
        """The manifest.

        Raises:
            UsageError: This is not a run directory.
            RunError: The manifest is damaged.
        """
        if not (self.path / "manifest.json").is_file():
            raise UsageError(f"{self.path} is not a run directory: it has no manifest.json")
        return read_manifest(self.path / "manifest.json")


def write_federation(path: pathlib.Path, federation: Federation) -> None:
    """Writes the tables of a federation, readable without this package.

    Arrays: `clients` [K] and `modalities` [M], names; `holds`, bool [K, M]; for each of the n samples of the data set
    `client`, its client's id, and `part`, 0 train, 1 validation and 2 test, both -1 where it is not used; and
    `observed`, bool [n, M], the masks. The header holds the data's SHA-256, the settings, counts and missing rates.
    """
    data = federation.data
    client, part = np.full(data.size, -1, np.int32), np.full(data.size, -1, np.int8)
    for number, name in enumerate(SPLITS):
        table = federation.table(name)
        for owner in range(federation.size):
            client[table.of(owner)], part[table.of(owner)] = owner, number
    path.parent.mkdir(exist_ok=True)
    header = {
        "data": {"name": data.name, "sha256": data.sha256},
        "settings": dict(federation.settings),
        "counts": dict(federation.counts),
        "missing_rates": {axis: dict(rates) for axis, rates in federation.missing_rates.items()},
    }
    names = {"clients": np.array(federation.clients), "modalities": np.array(data.modalities)}
    arrays = {"holds": federation.holds, "client": client, "part": part, "observed": federation.observed}
    files.write_npz(path, header, names | arrays)


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads a manifest.

    Raises:
        UsageError: The file is missing or is not a manifest of this schema version.
        RunError: It is damaged.
    """
    content = files.read_json(path)
    missing = [key for key in ("data", "federation", "settings", "methods") if key not in content]
    if missing:
        raise RunError(f"{path} is not a manifest: it lacks {', '.join(missing)}")
    return content


def new_directory(out: Path) -> RunDirectory:
    """A directory for a new run; nothing is made yet.

    Raises:
        UsageError: `out` exists and is not an empty folder.
    """
    path = pathlib.Path(out).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "already holds a run" if (path / "manifest.json").exists() else "exists and is not an empty folder"
        raise UsageError(f"{path} {what}; nothing is overwritten: choose another --out, or resume it if it is a run")
    return RunDirectory(path)


def default_directory(name: str) -> pathlib.Path:
    """`runs/<date>-<time>-<name>`, numbered where that exists."""
    stem = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}"
    candidates = (pathlib.Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in itertools.count(1))
    return next(path for path in candidates if not path.exists())
