import textwrap

import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import UsageError
from fedjax_mm.methods import FedAvg, FedProto, Local  # pyright: ignore
from fedjax_mm.runs.entries import Entry, make_entries, suited, with_options


def labels(entries):
    return [entry.label for entry in entries]


def test_names_instances_and_labels():
    assert labels(make_entries("local")) == ["local"]
    assert labels(make_entries(["fedproto", Local()])) == ["fedproto", "local"]
    assert set(labels(make_entries("all"))) == set(fmm.methods.available())
    (entry,) = make_entries(FedProto(lam=0.5))
    assert (entry.source, entry.options) == ("fedproto", {"lam": 0.5, "weight": "counts"})
    entries = make_entries({"weak": FedProto(lam=0.1), "strong": FedProto(lam=10)})
    assert [(entry.label, entry.options["lam"]) for entry in entries] == [("weak", 0.1), ("strong", 10.0)]


def test_a_method_of_the_users_own(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent(
            """
            from typing import ClassVar
            from fedjax_mm.methods import Method, method

            @method
            class Mine(Method):
                strength: float = 2.0
                name: ClassVar[str] = "mine"
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    (entry,) = make_entries("mine.py:Mine")
    assert (entry.label, entry.source, entry.options) == ("mine", f"{file}:Mine", {"strength": 2.0})
    assert with_options(entry.source, {"strength": "3"}).strength == 3.0


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("fedporto", "did you mean fedproto"),
        ([], "no method is named"),
        (["local", "local"], "'local' is named twice"),
        ({"a/b": "local"}, "cannot be labelled 'a/b'"),
        ({"..": "local"}, r"cannot be labelled '\.\.'"),
        ({"schema_version": "local"}, "cannot be labelled"),
        ([3], "3 is not a method"),
        (FedProto(lam="strong"), "fedproto.lam is 'strong', must be a finite number"),
        (FedProto(lam=float("nan")), "fedproto.lam is nan"),
        (FedProto(weight=None), "fedproto.weight is None, must be text"),
    ],
)
def test_wrong_methods(methods, message):
    with pytest.raises(UsageError, match=message):
        make_entries(methods)


def test_wrong_options():
    with pytest.raises(UsageError, match=r"unknown option of fedproto 'lamb'; did you mean lam"):
        with_options("fedproto", {"lamb": "1"})


def test_under_the_pool_fedavg_becomes_lg_fedavg_once():
    kept, notes = suited(make_entries(["fedavg", "local"]), "pool")
    assert labels(kept) == ["lg_fedavg", "local"]
    assert notes == ("fedavg averages encoders, which differ in shape under model=pool: lg_fedavg takes its place",)
    for names in (["fedavg", "lg_fedavg"], ["lg_fedavg", "fedavg"]):
        kept, notes = suited(make_entries(names), "pool")
        assert labels(kept) == ["lg_fedavg"]
        assert len(notes) == 1
    assert labels(suited(make_entries(["fedavg"]), "shared")[0]) == ["fedavg"]


def test_other_methods_that_average_encoders_are_left_out_with_the_reason():
    other = Entry("other", "other", type("Other", (FedAvg,), {"name": "other"})())
    kept, notes = suited([other, *make_entries("local")], "pool")
    assert labels(kept) == ["local"]
    assert notes == ("other averages encoders, which differ in shape under model=pool: left out",)
    with pytest.raises(UsageError, match=r"no method is left to run: other averages encoders.*use model=shared"):
        suited([other], "pool")
