"""What the experiments share: data and scales, cases that are run once and found again, tables and figures."""

import dataclasses
import importlib.util
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import typer

import fedjax_mm as fmm
from experiments import published
from fedjax_mm.data import available_names
from fedjax_mm.errors import RunError, UsageError, choose
from fedjax_mm.methods import Method, available
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.options import as_json
from fedjax_mm.runs.run import HEADLINE


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A data set in the place of one of the paper's, with what the paper's Table 5 sets for that one.

    Attributes:
        stands_for: The paper's data set.
        rounds: Rounds T.
        dim: Width d of the feature space.
        lr: Learning rate of the clients, from the paper's range.
    """

    stands_for: str
    rounds: int
    dim: int
    lr: float


DATA = {
    "mfeat": StandIn("Youtube", rounds=400, dim=48, lr=0.01),
    "reuters1200": StandIn("Reuters", rounds=200, dim=24, lr=0.005),
    "leaves100": StandIn("Caltech101", rounds=400, dim=64, lr=0.01),
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long and how often an experiment trains.

    Attributes:
        seeds: Number of seeds n; the seeds are 0..n-1.
        rounds: Rounds; None for the paper's.
        eval_every: Rounds between evaluations.
        encoders: Kinds of encoder in the pool; None for all of the paper's Table 4, which train and compile several
            times as long as `dnn` alone.
    """

    seeds: int
    rounds: int | None
    eval_every: int
    encoders: tuple[str, ...] | None

    def training(self, data: str, **options: Any) -> dict[str, Any]:
        """The training options of a case on a data set; `options` come on top."""
        source = DATA[data]
        common = {"seeds": tuple(range(self.seeds)), "eval_every": self.eval_every, "dim": source.dim, "lr": source.lr}
        return common | {"rounds": self.rounds or source.rounds, "encoders": self.encoders} | options


SCALES = {
    "short": Scale(seeds=5, rounds=40, eval_every=5, encoders=("dnn",)),
    "full": Scale(seeds=5, rounds=None, eval_every=10, encoders=None),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Methods compared on one federation: a run directory.

    Attributes:
        data: The data set.
        label: What it is called beside its data set, such as `M1+`.
        partition: A partition of `fmm.federate`.
        methods: Label -> method.
        training: Training options of `fmm.compare`.
        clients: Number of clients K; None for the number of modalities.
    """

    data: str
    label: str
    partition: str
    methods: Mapping[str, Method]
    training: Mapping[str, Any]
    clients: int | None = None

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.data}-{self.label}"

    def federation(self) -> fmm.Federation:
        """The federation: Dirichlet(0.5) over the clients, 75 % for training and validation, split seed 0."""
        data = fmm.load_data(self.data)
        return fmm.federate(data, partition=self.partition, clients=self.clients, alpha=0.5, split_seed=0)


def paper_methods() -> dict[str, Method]:
    """Those methods of the paper's tables that the package has, in their order, with their defaults."""
    return {name: available()[name]() for name in published.METHODS if name in available()}


def require(*packages: str) -> None:
    """Raises `UsageError` unless the packages that figures need are installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"this figure needs {' and '.join(missing)}: pip install -e '.[experiments]'")


def run_cases(cases: Sequence[Case], folder: pathlib.Path) -> dict[Case, fmm.Run]:
    """Runs what is not there yet, and goes on with what was interrupted.

    Args:
        cases: The cases. Those whose data set is not there are left out, with a line that says so.
        folder: Where their run directories are.

    Returns:
        The run of each case that could be run, in order.

    Raises:
        UsageError: A run directory holds something else; nothing was run.
        RunError: A run failed.
    """
    names = set(available_names())
    for data in dict.fromkeys(case.data for case in cases):
        if data not in names:
            print(
                f"{data} (in the place of {DATA[data].stands_for}) is left out: put {data}.npz into the folder that "
                "$FEDJAX_MM_DATA names"
            )
    kept = [case for case in cases if case.data in names]
    begun = [_begun(case, folder / case.name) for case in kept]
    runs = {}
    for number, (case, there) in enumerate(zip(kept, begun, strict=True), start=1):
        path = folder / case.name
        print(f"case {number} of {len(kept)}: {path}", file=sys.stderr)
        if there:
            with warnings.catch_warnings():
                # Of a finished run this loads the results, and writes tables that a kill left half written.
                warnings.filterwarnings("ignore", message=".* is finished: nothing to do")
                runs[case] = fmm.resume(path, progress=True)
        else:
            runs[case] = fmm.compare(case.methods, case.federation(), out=path, progress=True, **case.training)
    return runs


def _begun(case: Case, path: pathlib.Path) -> bool:
    """Whether the case's run is there, finished or not.

    Raises:
        UsageError: Another one is.
    """
    if not (path / "manifest.json").exists():
        return False
    stored, methods = fmm.load_run(path).manifest, make_entries(case.methods)
    federation = {"partition": case.partition} | ({} if case.clients is None else {"clients": case.clients})
    asked = {
        "data": (stored["data"]["name"], case.data),
        "federation": ({name: stored["federation"][name] for name in federation}, federation),
        "methods": (
            {label: (method["name"], method["options"]) for label, method in stored["methods"].items()},
            {entry.label: (entry.method.name, entry.options) for entry in methods},
        ),
        "training": (
            {name: stored["settings"][name] for name in case.training},
            {name: as_json(value) for name, value in case.training.items()},
        ),
    }
    other = [what for what, (there, wanted) in asked.items() if there != wanted]
    if other:
        raise UsageError(
            f"{path} holds a run with other {' and '.join(other)} than this experiment asks for: choose another --out, "
            "or move it away"
        )
    return True


def scores(run: fmm.Run, reference: str, *, metric: str = HEADLINE) -> pd.DataFrame:
    """Results of a run's methods, and how much better each is than the reference, in % and percentage points.

    Args:
        run: The run.
        reference: A label. Where the run does not have it, differences are NaN, like those of the reference itself.
        metric: A name of `summary.json`, selected on validation data.

    Returns:
        A row per method: `method`; `accuracy` and `accuracy_sd`, mean and sample SD over the seeds; `last` and
        `last_sd`, those of the last round; the mean `difference` paired by seed, its 95 % t interval `low` to `high`,
        `p` of the exact sign-flip test and the least it can be, `p_min`; `seeds`, their number. NaN where undefined.
    """
    rows = []
    for label, entries in run.results().items():
        row: dict[str, Any] = {"method": label}
        for name, entry in (("accuracy", entries[metric]), ("last", entries[f"{metric}:last"])):
            row |= {name: _percent(entry["mean"]), f"{name}_sd": _percent(entry["std"])}
        result = None
        if label != reference and reference in run.methods:
            result = run.compare(label, reference, metric=metric)
        low, high = (result and result.interval) or (None, None)
        row |= {"difference": _percent(result and result.mean), "low": _percent(low), "high": _percent(high)}
        row |= {name: np.nan if result is None else getattr(result, name) for name in ("p", "p_min")}
        rows.append(row | {"seeds": len(run.seeds)})
    table = pd.DataFrame(rows)
    return table.astype(dict.fromkeys(table.columns.drop(["method", "seeds"]), "float64"))


def _percent(share: float | None) -> float:
    return np.nan if share is None else 100 * share


def shown(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """The columns of `scores` as text for people: at most two digits after the point."""
    difference = [
        "" if np.isnan(d) else f"{d:+.2f}" + ("" if np.isnan(low) else f" [{low:+.2f}, {high:+.2f}]")
        for d, low, high in zip(table["difference"], table["low"], table["high"], strict=True)
    ]
    return pd.DataFrame(
        {
            "method": table["method"],
            "accuracy": spread(table["accuracy"], table["accuracy_sd"]),
            "last round": spread(table["last"], table["last_sd"]),
            f"minus {reference} [95 %]": difference,
            "p": ["" if np.isnan(p) else f"{p:.3g}" for p in table["p"]],
        }
    )


def tabulate(
    runs: Mapping[Case, fmm.Run],
    reference: str,
    *,
    head: Callable[[Case], Mapping[str, str]],
    beside: Callable[[Case], Mapping[str, str]] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The methods of all cases in one table.

    Args:
        runs: The cases and their runs.
        reference: The method others are compared with.
        head: A case -> the columns in front.
        beside: A case -> what is published in its place, by method.

    Returns:
        The table as text, and as numbers.
    """
    texts, tables = [], []
    for case, run in runs.items():
        table = scores(run, reference)
        printed = (
            {} if beside is None else {published.HEADING: [beside(case).get(name, "") for name in table["method"]]}
        )
        for rows, whole in ((texts, shown(table, reference)), (tables, table)):
            rows.append(pd.DataFrame({**head(case), **whole, **printed}))
    return pd.concat(texts), pd.concat(tables)


def spread(means: Iterable[float], stds: Iterable[float]) -> list[str]:
    """`mean ± SD` with two digits after the point."""
    pairs = zip(means, stds, strict=True)
    return [f"{mean:.2f}" + ("" if np.isnan(std) else f" ± {std:.2f}") for mean, std in pairs]


def explain(scale: Scale) -> None:
    """Says what the numbers of `shown` are."""
    n = scale.seeds
    print(
        "\nAccuracy in %, pooled over the test samples of all clients; each client at the round that is best on its "
        f"validation data.\nMean ± sample SD over {n} seeds (0 to {n - 1}), which vary initial weights and batches; "
        "one split (split seed 0) for all of them.\nDifferences in percentage points, paired by seed; p of the exact "
        f"sign-flip test, which with {n} seeds cannot be below {2 / 2**n:.3g}.\nEncoders drawn from: "
        f"{', '.join(scale.encoders) if scale.encoders else 'the whole pool'}."
    )


def publish(title: str, text: pd.DataFrame, table: pd.DataFrame, path: pathlib.Path) -> None:
    """Prints a table and writes its numbers as a CSV file."""
    print(f"\n{title}\n{text.to_string(index=False)}")
    table.to_csv(path, index=False)
    print(f"{path}")


def new_figure(columns: int, *, width: float = 4.4, height: float = 3.6) -> tuple[Any, Any]:
    """A figure with so many panels beside each other, and the panels; `width` and `height` of each in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def save_figure(figure: Any, path: pathlib.Path) -> None:
    """Writes a figure as SVG, equal bytes for equal figures."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "fedjax_mm", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    print(f"{path}")


def prepare(setting: str, out: pathlib.Path) -> tuple[Scale, pathlib.Path]:
    """The scale of a setting, and the folder of its runs and results, which `run_cases` makes.

    Raises:
        UsageError: The setting is unknown.
    """
    return SCALES[choose("setting", setting, SCALES)], out.expanduser() / setting


def start(main: Callable[..., None]) -> None:
    """Runs an experiment as a command: exit code 1 for a run that failed, 2 for wrong usage, each with one message."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except (UsageError, RunError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
