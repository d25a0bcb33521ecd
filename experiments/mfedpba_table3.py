"""Table 3 of MFedPBA: test accuracy by the dimension d of the feature space."""

import pathlib

from experiments import published
from experiments.common import Case, Scale, explain, paper_methods, prepare, publish, run_cases, start, tabulate

REFERENCE = "local"
DATA_SET = "mfeat"
"""In the place of Youtube."""
PARTITION = "M1+"
DIMENSIONS = (24, 48, 64, 128, 256)


def cases(scale: Scale) -> dict[Case, int]:
    """The rows of the table, and the dimension of each."""
    return {
        Case(DATA_SET, f"d{d}", PARTITION.lower(), paper_methods(), scale.training(DATA_SET, dim=d)): d
        for d in DIMENSIONS
    }


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_table3")) -> None:
    """Table 3: test accuracy by feature dimension; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    rows = cases(scale)
    text, table = tabulate(
        run_cases(list(rows), folder),
        REFERENCE,
        head=lambda case: {"d": str(rows[case])},
        beside=lambda case: {name: str(cell) for name, cell in published.TABLE3[str(rows[case]),].items()},
    )
    explain(scale)
    publish(f"Table 3: {DATA_SET} in the place of Youtube, {PARTITION}", text, table, folder / "table3.csv")


if __name__ == "__main__":
    start(main)
