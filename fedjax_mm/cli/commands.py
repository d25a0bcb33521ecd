"""The commands. Heavy imports wait until one is called."""

import sys
import warnings
from typing import Annotated

import typer

from fedjax_mm.cli import options as o

app = typer.Typer(
    help="Simulates multimodal federated learning: clients and seeds are lanes of one compiled program.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        import fedjax_mm

        print(fedjax_mm.__version__)
        raise typer.Exit


@app.command()
def run(
    context: typer.Context,
    method: o.Method = None,
    data: o.Data = None,
    label: o.Label = None,
    config: o.Config = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    alpha: o.Alpha = None,
    split: o.Split = None,
    missing: o.Missing = None,
    test_missing: o.TestMissing = None,
    split_seed: o.SplitSeed = None,
    participation: o.Participation = None,
    rounds: o.Rounds = None,
    eval_every: o.EvalEvery = None,
    seeds: o.Seeds = None,
    model: o.Model = None,
    set_: o.Set = None,
    executor: o.Executor = None,
    devices: o.Devices = None,
    precision: o.Precision = None,
    out: o.Out = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
) -> None:
    """Runs one method and prints its results."""
    _launch("run", context)


@app.command()
def compare(
    context: typer.Context,
    methods: o.Methods = None,
    data: o.Data = None,
    label: o.Label = None,
    config: o.Config = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    alpha: o.Alpha = None,
    split: o.Split = None,
    missing: o.Missing = None,
    test_missing: o.TestMissing = None,
    split_seed: o.SplitSeed = None,
    participation: o.Participation = None,
    rounds: o.Rounds = None,
    eval_every: o.EvalEvery = None,
    seeds: o.Seeds = None,
    model: o.Model = None,
    set_: o.Set = None,
    executor: o.Executor = None,
    devices: o.Devices = None,
    precision: o.Precision = None,
    out: o.Out = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
) -> None:
    """Runs several methods on the same federation and seeds: one table, one run directory."""
    _launch("compare", context)


@app.command()
def sweep(
    context: typer.Context,
    method: o.Method = None,
    grid: o.Grid = None,
    shard: o.Shard = None,
    data: o.Data = None,
    label: o.Label = None,
    config: o.Config = None,
    partition: o.Partition = None,
    clients: o.Clients = None,
    alpha: o.Alpha = None,
    split: o.Split = None,
    missing: o.Missing = None,
    test_missing: o.TestMissing = None,
    split_seed: o.SplitSeed = None,
    participation: o.Participation = None,
    rounds: o.Rounds = None,
    eval_every: o.EvalEvery = None,
    seeds: o.Seeds = None,
    model: o.Model = None,
    set_: o.Set = None,
    executor: o.Executor = None,
    devices: o.Devices = None,
    precision: o.Precision = None,
    out: o.Out = None,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
) -> None:
    """Runs one method with every combination of some options; validation chooses."""
    _launch("sweep", context)


@app.command()
def resume(run: RunArgument, quiet: o.Quiet = False) -> None:
    """Goes on with an interrupted run; its files come out as if it had not been interrupted."""
    from fedjax_mm.cli import report
    from fedjax_mm.runs import api

    with report.resumable(run):
        report.show(api.resume(run, progress=not quiet), quiet=quiet)


@app.command()
def rerun(
    manifest: Annotated[str, typer.Argument(metavar="MANIFEST", help="A manifest.json, or its run directory.")],
    out: o.Out = None,
    quiet: o.Quiet = False,
) -> None:
    """Runs again what a manifest describes, into a directory of its own."""
    from fedjax_mm.cli import report
    from fedjax_mm.runs import api
    from fedjax_mm.runs.directory import default_directory

    target = default_directory("rerun") if out is None else out
    with report.resumable(target):
        report.show(api.rerun(manifest, out=target, progress=not quiet), quiet=quiet)


@app.command("list")
def list_(
    what: Annotated[
        str | None, typer.Argument(metavar="WHAT", help="methods, data, partitions, regimes or options.")
    ] = None,
) -> None:
    """Lists what can be named in an option."""
    from fedjax_mm.cli import listing

    listing.show(what)


@app.command()
def describe(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set, as --data takes it.")],
    label: o.Label = None,
) -> None:
    """Shows what a data set holds: modalities, classes, clients, licence and origin."""
    from fedjax_mm.data import describe, load_data

    print(describe(load_data(data, label=label or "y")))


@app.command()
def bench(
    workload: o.Workload = None,
    clients: o.BenchClients = None,
    variants: o.Variants = None,
    seeds: o.BenchSeeds = None,
    repeats: o.Repeats = None,
    json_: o.Json = None,
    quiet: o.BenchQuiet = False,
) -> None:
    """Times fixed workloads, each variant in a process of its own, and prints ratios.

    Programs compiled by an earlier process are found again, here as in a run; with JAX_ENABLE_COMPILATION_CACHE=false
    in the environment each first call compiles anew.
    """
    from fedjax_mm.cli import benchmark

    benchmark.run(workload, clients, variants, seeds, repeats, json_, quiet=quiet)


def _launch(command: str, context: typer.Context) -> None:
    from fedjax_mm.cli import dry_run, report, request
    from fedjax_mm.runs import api
    from fedjax_mm.runs.directory import default_directory, new_directory

    given = request.merged(command, context.params)
    quiet, out = given.pop("quiet", False), given.pop("out", None)
    only_plan = given.pop("dry_run", False)
    if out is not None:
        new_directory(out)
    experiment = request.experiment(command, given, own=bool(context.obj))
    if only_plan:
        dry_run.show(experiment)
        return
    for note in experiment.notes:
        warnings.warn(note, stacklevel=1)
    name = experiment.entries[0].label if command == "run" else command
    target = default_directory(name) if out is None else out
    with report.resumable(target):
        report.show(api.start(experiment, out=target, progress=not quiet, command=sys.argv), quiet=quiet)
