"""What the experiments share: cases that are run once and found again, figures, and how a command starts."""

import dataclasses
import importlib.util
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import typer

import fedjax_mm as fmm
from fedjax_mm.data import available_names
from fedjax_mm.errors import RunError, UsageError, choose
from fedjax_mm.methods import Method, available
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.experiment import EACH
from fedjax_mm.runs.options import as_json

S = TypeVar("S")


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Methods compared on one federation: a run directory.

    Attributes:
        data: The data set.
        stands_for: The paper's data set in whose place it is.
        label: What it is called beside its data set, such as `M1+`.
        options: Options of `fmm.federate`.
        methods: Label -> method.
        training: Training options of `fmm.compare`.
        each: Whether each seed draws partition, masks and split of its own; else all have split seed 0.
    """

    data: str
    stands_for: str
    label: str
    options: Mapping[str, Any]
    methods: Mapping[str, Method]
    training: Mapping[str, Any]
    each: bool = False

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.data}-{self.label}"

    def federation(self, split_seed: int = 0) -> fmm.Federation:
        """The federation of a split seed."""
        return fmm.federate(fmm.load_data(self.data), **self.options, split_seed=split_seed)


def methods_here(names: Iterable[str], **options: Mapping[str, Any]) -> dict[str, Method]:
    """Those of a paper's methods that the package has, in their order, with their defaults or the options given."""
    return {name: available()[name](**options.get(name, {})) for name in names if name in available()}


def first_there(names: Sequence[str]) -> str:
    """The first of several data sets that is there; the last must be embedded."""
    return next(name for name in names if name in available_names())


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
    for data, stands_for in dict.fromkeys((case.data, case.stands_for) for case in cases):
        if data not in names:
            print(
                f"{data} (in the place of {stands_for}) is left out: put {data}.npz into the folder that "
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
            seeds = {"split_seed": EACH if case.each else None}
            runs[case] = fmm.compare(case.methods, case.federation(), out=path, progress=True, **seeds, **case.training)
    return runs


def _begun(case: Case, path: pathlib.Path) -> bool:
    """Whether the case's run is there, finished or not.

    Raises:
        UsageError: Another one is.
    """
    if not (path / "manifest.json").exists():
        return False
    stored, methods = fmm.load_run(path).manifest, make_entries(case.methods)
    federation = {**case.options, "split_seed": EACH if case.each else 0}
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


def prepare(setting: str, out: pathlib.Path, scales: Mapping[str, S]) -> tuple[S, pathlib.Path]:
    """The scale of a setting, and the folder of its runs and results.

    Raises:
        UsageError: The setting is unknown.
    """
    return scales[choose("setting", setting, scales)], out.expanduser() / setting


def start(main: Callable[..., None]) -> None:
    """Runs an experiment as a command: exit code 1 for a run that failed, 2 for wrong usage, each with one message."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except (UsageError, RunError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
