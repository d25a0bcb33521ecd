"""Table 2 of MFedPBA: test accuracy by data set, partition and method."""

import pathlib

from experiments import mfedpba_published as published
from experiments.common import Case, run_cases, start
from experiments.mfedpba import DATA, Scale, explain, make_case, paper_methods, prepare
from experiments.tables import Group, publish, tabulate

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
            rows.append(make_case(data, label, partition, paper_methods(), scale.training(data), clients))
    return rows


def head(case: Case) -> dict[str, str]:
    """The columns that say where a row was measured."""
    return {"data": case.data, "in place of": case.stands_for, "partition": case.label}


def published_row(case: Case) -> dict[str, str]:
    """Method -> what the paper has in the place of this case; with its number of clients where that is another."""
    label = PUBLISHED_MANY[case.data] if "clients" in case.options else case.label
    row = published.TABLE2[case.stands_for, label]
    return {name: f"{cell}{'' if label == case.label else f' ({label})'}" for name, cell in row.items()}


def main(setting: str = "short", out: pathlib.Path = pathlib.Path("runs/mfedpba_table2")) -> None:
    """Table 2: test accuracy by data set, partition and method; SETTING is short or full."""
    scale, folder = prepare(setting, out)
    runs = run_cases(cases(setting, scale), folder)
    groups = [Group(head(case), [run], published_row(case)) for case, run in runs.items()]
    text, table = tabulate(groups, REFERENCE)
    explain(scale)
    publish("Table 2", text, table, folder / "table2.csv")


if __name__ == "__main__":
    start(main)
