"""Table 3 of MFedPBA: test accuracy by the dimension d of the feature space."""

import pathlib

from experiments import mfedpba_published as published
from experiments.common import Case, run_cases, start
from experiments.mfedpba import Scale, explain, make_case, paper_methods, prepare
from experiments.tables import Group, publish, tabulate

REFERENCE = "local"
DATA_SET = "mfeat"
"""In the place of Youtube."""
PARTITION = "M1+"
DIMENSIONS = (24, 48, 64, 128, 256)


def cases(scale: Scale) -> dict[Case, int]:
    """The rows of the table, and the dimension of each."""
    return {
        make_case(DATA_SET, f"d{d}", PARTITION.lower(), paper_methods(), scale.training(DATA_SET, dim=d)): d
        for d in DIMENSIONS
    }


def published_row(dim: int) -> dict[str, str]:
    """Method -> what the paper has for a dimension."""
    return {name: str(cell) for name, cell in published.TABLE3[str(dim),].items()}


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_table3")) -> None:
    """Table 3: test accuracy by feature dimension; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    rows = cases(scale)
    runs = run_cases(list(rows), folder)
    groups = [Group({"d": str(rows[case])}, [run], published_row(rows[case])) for case, run in runs.items()]
    text, table = tabulate(groups, REFERENCE)
    explain(scale)
    publish(f"Table 3: {DATA_SET} in the place of Youtube, {PARTITION}", text, table, folder / "table3.csv")


if __name__ == "__main__":
    start(main)
