"""What users call: simulate, compare, sweep, resume, rerun."""

import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fedjax_mm.data import MultimodalDataset
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation import Federation
from fedjax_mm.methods import Method
from fedjax_mm.runs import files, manifest
from fedjax_mm.runs.backend import prepare_backend
from fedjax_mm.runs.directory import RunDirectory, new_directory, read_manifest
from fedjax_mm.runs.entries import Methods, make_entries
from fedjax_mm.runs.execute import Execution
from fedjax_mm.runs.experiment import EACH, Experiment, distinct, prepare
from fedjax_mm.runs.files import Path
from fedjax_mm.runs.grid import configurations
from fedjax_mm.runs.progress import reporting
from fedjax_mm.runs.run import Run, load_run


def simulate(
    method: str | Method | type[Method],
    federation: Federation,
    *,
    out: Path | None = None,
    progress: bool = False,
    split_seed: str | None = None,
    **settings: Any,
) -> Run:
    """Runs one method.

    Args:
        method: A name, `module:Class` of the user's own, or an instance such as `fmm.methods.FedProto(lam=0.5)`.
        federation: Who holds what.
        out: The run directory to make; None writes nothing.
        progress: Whether to show progress on stderr: a bar, or, not in a terminal, a line per block.
        split_seed: `"each"` draws partition, masks and architectures anew for each seed; None keeps the federation.
        **settings: Training options, the fields of `fedjax_mm.simulation.settings.Settings`: `rounds`, `eval_every`,
            `seeds` (5 means 0..4; or a list), `participation`, `model`, `lr`, `epochs`, `batch` and so on.

    Returns:
        The run.

    Raises:
        UsageError: Something is unknown, out of range or does not go together; nothing was compiled or written.
        RunError: The run started and failed.

    Example:
        >>> run = simulate("fedproto", federation, rounds=20, seeds=5)  # doctest: +SKIP
        >>> run.summary()  # doctest: +SKIP
    """
    return compare([method], federation, out=out, progress=progress, split_seed=split_seed, **settings)


def compare(
    methods: Methods,
    federation: Federation,
    *,
    out: Path | None = None,
    progress: bool = False,
    split_seed: str | None = None,
    **settings: Any,
) -> Run:
    """Runs several methods on the same federation and seeds.

    Args:
        methods: As `simulate` takes one, several of them; a mapping from labels to them, to compare options of one
            method; or `"all"` that apply.
        federation: Who holds what.
        out: As in `simulate`.
        progress: As in `simulate`.
        split_seed: As in `simulate`.
        **settings: As in `simulate`.

    Returns:
        One run. What was replaced or left out is in its `notes`, and is warned of.

    Raises:
        UsageError: As in `simulate`.
        RunError: As in `simulate`.

    Example:
        >>> run = compare(["local", "fedproto"], federation, rounds=20, seeds=5)  # doctest: +SKIP
        >>> run.compare("fedproto", "local").p  # doctest: +SKIP
    """
    _before_anything(split_seed, out, settings)
    everything = isinstance(methods, str) and methods == "all"
    entries = make_entries(methods)
    experiment = prepare(entries, federation, settings, each=split_seed == EACH, optional=everything)
    for note in experiment.notes:
        warnings.warn(note, stacklevel=2)
    return start(experiment, out=out, progress=progress)


def sweep(
    method: str | Method | type[Method],
    federation: Federation,
    *,
    grid: Mapping[str, Sequence[Any]],
    shard: str | None = None,
    out: Path | None = None,
    progress: bool = False,
    split_seed: str | None = None,
    **settings: Any,
) -> Run:
    """Runs one method with every combination of some options.

    Configurations that differ in numbers only (a method's weights, the learning rate and so on) are trained side by
    side in one compiled program, like seeds.

    Args:
        method: As in `simulate`.
        federation: As in `simulate`.
        grid: Option of the method, or setting -> its values.
        shard: `i/n`: only every n-th combination, from the i-th on; i from 1 to n.
        out: As in `simulate`.
        progress: As in `simulate`.
        split_seed: As in `simulate`.
        **settings: As in `simulate`; `nonfinite` is `skip` unless given: a configuration that diverges must not end
            the others.

    Returns:
        One run, whose methods are labelled `option=value+option=value`.

    Raises:
        UsageError: As in `simulate`; or the grid or the shard is wrong.
        RunError: As in `simulate`.

    Example:
        >>> run = sweep("mfedpba", federation, grid={"lambda_fea": [0.01, 0.1], "lr": [0.01, 0.1]})  # doctest: +SKIP
        >>> run.summary()  # doctest: +SKIP
    """
    _before_anything(split_seed, out, settings)
    (base,) = make_entries([method])
    entries = configurations(base, grid, shard)
    experiment = prepare(
        entries, federation, {"nonfinite": "skip", **settings}, each=split_seed == EACH, grid=tuple(grid)
    )
    for note in experiment.notes:
        warnings.warn(note, stacklevel=2)
    return start(experiment, out=out, progress=progress)


def start(
    experiment: Experiment, *, out: Path | None = None, progress: bool = False, command: Sequence[str] = ()
) -> Run:
    """Runs a prepared experiment.

    Args:
        experiment: The experiment.
        out: The run directory to make; None writes nothing.
        progress: Whether to show progress on stderr: a bar, or, not in a terminal, a line per block.
        command: What the user called, for the manifest.

    Returns:
        The run.

    Raises:
        UsageError: The directory cannot be made.
        RunError: The run failed.
    """
    if out is not None and jax.process_count() > 1:
        raise UsageError("several processes share one simulation: only in memory, leave out the run directory")
    directory = None if out is None else new_directory(out)
    content = manifest.describe(experiment, command)
    if directory is not None:
        directory.create(content, distinct(experiment.federations))
    return _run(Execution(experiment, directory, {}), experiment, content, directory, progress)


def resume(path: Path, *, data: MultimodalDataset | None = None, progress: bool = False) -> Run:
    """Goes on with a run that was interrupted; its files come out as if it had not been.

    Args:
        path: The run directory.
        data: The data set, where it was made in memory.
        progress: Whether to show progress on stderr: a bar, or, not in a terminal, a line per block.

    Returns:
        The run. Of a finished one the stored results, with a warning that there was nothing to do.

    Raises:
        UsageError: It is not a run directory, or the data set is missing or has another content.
        RunError: A checkpoint is of another configuration, or the run failed.
    """
    directory = RunDirectory(pathlib.Path(path).expanduser())
    content = directory.manifest()
    settings = content["settings"]
    if not {"rounds", "select"} <= settings.keys():
        raise RunError(f"the manifest of {directory.path} is damaged: its settings lack rounds or select")
    # Looking at checkpoints is using JAX.
    manifest.provide_devices(content)
    stored = [directory.stored(label) for label in content["methods"]]
    finished = [
        record for record in stored if record is not None and record.rounds.max(initial=0) == settings["rounds"]
    ]
    if len(finished) == len(stored):
        warnings.warn(f"{directory.path} is finished: nothing to do", stacklevel=2)
        directory.write_tables(finished, settings["select"])
        return load_run(directory.path, data=data)
    for change in manifest.changes(content):
        warnings.warn(f"{directory.path}: {change}; results may differ in their last bits", stacklevel=2)
    experiment = manifest.restore(content, data)
    costs = directory.path / "costs.json"
    earlier = files.read_json(costs) if costs.exists() else {}
    return _run(Execution(experiment, directory, earlier), experiment, content, directory, progress)


def rerun(path: Path, *, out: Path | None = None, data: MultimodalDataset | None = None, progress: bool = False) -> Run:
    """Runs again what a manifest describes, with the executors it names.

    Args:
        path: A `manifest.json`, or the run directory it lies in.
        out: The run directory to make; None writes nothing.
        data: The data set, where it was made in memory.
        progress: Whether to show progress on stderr: a bar, or, not in a terminal, a line per block.

    Returns:
        The run.

    Raises:
        UsageError: It is not a manifest, or the data set is missing or has another content.
        RunError: The manifest is damaged, or the run failed.
    """
    file = pathlib.Path(path).expanduser()
    content = read_manifest(file / "manifest.json" if file.is_dir() else file)
    return start(manifest.restore(content, data), out=out, progress=progress, command=["rerun", str(path)])


def _before_anything(split_seed: str | None, out: Path | None, settings: Mapping[str, Any]) -> None:
    """Refuses what can be refused at once, then tells JAX what it must know before it is used."""
    if split_seed not in (None, EACH):
        raise UsageError(f"split_seed is {split_seed!r}, must be {EACH!r} or left out: federate takes a number")
    if out is not None:
        new_directory(out)
    prepare_backend(settings.get("devices"))


def _run(
    execution: Execution,
    experiment: Experiment,
    content: dict[str, Any],
    directory: RunDirectory | None,
    progress: bool,
) -> Run:
    with reporting(progress) as report:
        execution.run(report)
    return Run(
        manifest=content,
        path=directory.path if directory else None,
        _recorded=tuple(execution.recorded.values()),
        _costs=execution.costs,
        _states=execution.states,
        _experiment=experiment,
    )
