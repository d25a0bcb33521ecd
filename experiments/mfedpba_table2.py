"""Table 2 of MFedPBA: test accuracy by data set, partition and method."""

import pathlib

from experiments import published
from experiments.common import DATA, Case, Scale, explain, paper_methods, prepare, publish, run_cases, start, tabulate

REFERENCE = "local"
PARTITIONS = {"M2": "m2", "M1+": "m1+", "M1": "m1"}
"""As many clients as modalities."""
MANY_CLIENTS = {
    "short": {"mfeat": 20, "reuters1200": 20, "leaves100": 20},
    "full": {"mfeat": 20, "reuters1200": 100, "leaves100": 50},
}
"""The `K` rows, in M1+: in full the paper's number of clients for the data set that is stood in for."""
PUBLISHED_MANY = {"mfeat": "K20", "reuters1200": "K100", "leaves100": "K50"}


def cases(setting: str, scale: Scale) -> list[Case]:
    """The rows of the table."""
    rows = []
    for data in DATA:
        k = MANY_CLIENTS[setting][data]
        many = (f"K{k}", "m1+", k)
        for label, partition, clients in [*((label, name, None) for label, name in PARTITIONS.items()), many]:
            rows.append(Case(data, label, partition, paper_methods(), scale.training(data), clients))
    return rows


def head(case: Case) -> dict[str, str]:
    """The columns that say where a row was measured."""
    return {"data": case.data, "in place of": DATA[case.data].stands_for, "partition": case.label}


def published_row(case: Case) -> dict[str, str]:
    """Method -> what the paper has in the place of this case; with its number of clients where that is another."""
    label = case.label if case.clients is None else PUBLISHED_MANY[case.data]
    row = published.TABLE2[DATA[case.data].stands_for, label]
    return {name: f"{cell}{'' if label == case.label else f' ({label})'}" for name, cell in row.items()}


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_table2")) -> None:
    """Table 2: test accuracy by data set, partition and method; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    runs = run_cases(cases(setting, scale), folder)
    text, table = tabulate(runs, REFERENCE, head=head, beside=published_row)
    explain(scale)
    publish("Table 2", text, table, folder / "table2.csv")


if __name__ == "__main__":
    start(main)
