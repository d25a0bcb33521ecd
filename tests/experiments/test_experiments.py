"""The machinery of the experiments on one tiny data set; the experiments themselves are never run here."""

import dataclasses
import importlib.util
import json
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import fedjax_mm as fmm
from experiments import (
    common,
    mfedpba,
    mfedpba_figure4,
    mfedpba_figure5,
    mfedpba_figure7,
    mfedpba_figure8,
    mfedpba_table2,
    mfedpba_table3,
    tables,
)
from experiments import mfedpba_published as published
from experiments.published import Cell
from fedjax_mm.data import save_npz
from fedjax_mm.errors import UsageError
from fedjax_mm.methods.local import Local
from fedjax_mm.simulation.engine import Engine

TRAINING = {"rounds": 2, "eval_every": 1, "seeds": (0, 1), "model": "shared", "lr": 0.1}
FILES = [mfedpba_table2, mfedpba_table3, mfedpba_figure4, mfedpba_figure5, mfedpba_figure7, mfedpba_figure8]


def tiny_case(**changes):
    """Two clients with both modalities, all of one shape: one program to compile."""
    case = mfedpba.make_case("leaves100", "M1", "all", {"local": Local()}, TRAINING)
    return dataclasses.replace(case, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with 60 samples under the name of one of the data sets that are not embedded."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    inputs = {name: rng.normal(size=(60, 3)) + np.eye(3)[y] for name in ("a", "b")}
    path = tmp_path_factory.mktemp("data")
    save_npz(fmm.from_arrays(inputs, y), path / "leaves100.npz")
    return path


@pytest.fixture(autouse=True)
def only_that_data(folder, monkeypatch):
    monkeypatch.setenv("FEDJAX_MM_DATA", str(folder))


@pytest.fixture(scope="module")
def interrupted(folder, tmp_path_factory):
    """The folder of the tiny case, whose run was interrupted in the second of its two rounds."""
    out, original = tmp_path_factory.mktemp("out"), Engine.run_block

    def run_block(self, state, first, length):
        if first == 2:
            raise KeyboardInterrupt
        return original(self, state, first, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_MM_DATA", str(folder))
        patch.setattr(Engine, "run_block", run_block)
        with pytest.raises(KeyboardInterrupt):
            common.run_cases([tiny_case()], out)
    return out, fmm.load_run(out / "leaves100-M1").rounds()


@pytest.fixture(scope="module")
def done(folder, interrupted):
    """The tiny case, gone on with to its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_MM_DATA", str(folder))
        ((case, run),) = common.run_cases([tiny_case()], interrupted[0]).items()
    return interrupted[0], case, run


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("a round was run")

    monkeypatch.setattr(Engine, "run_block", refuse)


def test_published_numbers_are_those_of_the_paper():
    # Cells read off the printed tables, corners among them.
    cells = {
        ("Caltech101", "M2"): {"local": (42.65, 1.47), "mfedpba": (49.04, 0.21)},
        ("Caltech101", "K50"): {"fedtgp": (28.77, 1.43)},
        ("Reuters", "M1"): {"harmony": (70.16, 1.14), "fedmvp": (70.18, 0.57)},
        ("NUS-WIDE", "M1+"): {"fedpall": (30.99, 0.63)},
        ("Youtube", "K20"): {"local": (32.01, 0.25), "fedproto": (30.57, 1.49), "mfedpba": (35.07, 0.92)},
    }
    for key, row in cells.items():
        for method, (mean, std) in row.items():
            assert published.TABLE2[key][method] == Cell(mean, std)
    assert len(published.TABLE2) == 16
    # In Table 2 MFedPBA is the best of every row (bold in the paper).
    assert all(max(row, key=lambda name: row[name].mean) == "mfedpba" for row in published.TABLE2.values())
    assert published.TABLE3["48",] == {
        name: Cell(mean)
        for name, mean in zip(published.METHODS, (42.34, 39.05, 43.85, 44.63, 44.43, 45.21, 44.57, 47.02), strict=True)
    }
    assert published.TABLE3["256",]["fedproto"].mean == 26.32
    assert str(published.TABLE2["Youtube", "M2"]["harmony"]) == "43.80 ± 0.76"


@pytest.mark.parametrize("setting", ["short", "full"])
def test_every_row_of_table_2_has_its_published_row(setting):
    rows = mfedpba_table2.cases(setting, mfedpba.SCALES[setting])
    assert len(rows) == 3 * 4 == len({case.name for case in rows})
    assert {case.training["rounds"] for case in rows} == ({40} if setting == "short" else {400, 200})
    for case in rows:
        assert set(mfedpba_table2.published_row(case)) == set(published.METHODS)
        assert [*case.methods][:: len(case.methods) - 1] == ["local", "mfedpba"]
    many = next(case for case in rows if case.data == "reuters1200" and "clients" in case.options)
    hint = "" if setting == "full" else " (K100)"
    assert mfedpba_table2.published_row(many)["mfedpba"] == f"57.83 ± 0.97{hint}"


def test_the_grid_of_figure_8_varies_what_it_says():
    steps, grid = mfedpba_figure8.cases("full", mfedpba.SCALES["full"])
    asked = {(m.lambda_fea, m.lambda_logit) for case in grid for m in case.methods.values()}
    assert len(asked) == 81 and {(0.001, 10.0), (10.0, 0.001)} <= asked
    assert [method.server_steps for case in steps for method in case.methods.values()] == [1, 5, 10, 20, 50, 100]


def test_a_table_from_start_to_end_without_some_of_the_data(done, monkeypatch, capsys, no_training):
    # Table 2 with the finished case and one whose data is not there: nothing is run, the rest is reported.
    out, case, run = done
    (out / "short").symlink_to(out, target_is_directory=True)
    absent = tiny_case(data="reuters1200", stands_for="Reuters")
    monkeypatch.setattr(mfedpba_table2, "cases", lambda setting, scale: [absent, case])
    mfedpba_table2.main("short", out)
    printed = capsys.readouterr().out
    assert "reuters1200 (in the place of Reuters) is left out: put reuters1200.npz into" in printed
    assert "cannot be below 0.0625" in printed and "published (other data)" in printed
    table = pd.read_csv(out / "short" / "table2.csv")
    assert list(table["data"]) == ["leaves100"] and list(table["in place of"]) == ["Caltech101"]
    assert table["published (other data)"].item() == "38.47 ± 0.45"
    last = run.clients().query("split == 'test' and metric == 'accuracy' and round == 2")
    sums = last.assign(right=last["value"] * last["n"]).groupby("seed")[["right", "n"]].sum()
    shares = 100 * sums["right"] / sums["n"]
    assert table["last"].item() == pytest.approx(shares.mean())
    assert table["last_sd"].item() == pytest.approx(shares.std(ddof=1))
    assert np.isnan(table["difference"].item())


def test_an_interrupted_case_goes_on_and_a_finished_one_is_loaded(interrupted, done, no_training):
    out, before = interrupted
    rounds = done[2].rounds()
    assert set(before["round"]) == {1}
    pd.testing.assert_frame_equal(rounds[rounds["round"] == 1].reset_index(drop=True), before, check_exact=True)
    assert list(rounds.query("metric == 'ce' and seed == 1")["round"]) == [1, 2]
    # Killed while the last tables were written: what is recorded is enough.
    results = done[2].results()
    for name in ("rounds.csv", "summary.json"):
        (out / "leaves100-M1" / name).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (again,) = common.run_cases([tiny_case()], out).values()
    assert again.results() == results
    pd.testing.assert_frame_equal(again.rounds(), rounds, check_exact=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"training": {**TRAINING, "rounds": 3}}, "training"),
        ({"training": {**TRAINING, "seeds": (0,)}}, "training"),
        ({"options": {"partition": "all", "alpha": 0.5, "clients": 3}}, "federation"),
        ({"methods": {"local": Local(), "fedproto": fmm.methods.find("fedproto")()}}, "methods"),
    ],
)
def test_another_run_in_the_folder_is_refused(done, no_training, change, what):
    out, case, _ = done
    fresh = tiny_case(label="fresh")
    with pytest.raises(UsageError, match=f"leaves100-M1 holds a run with other {what} than this experiment asks for"):
        common.run_cases([fresh, dataclasses.replace(case, **change)], out)
    assert not (out / fresh.name).exists()


def test_scores_are_paired_by_seed(tmp_path):
    # Two methods, three seeds, made up: differences 2, 1 and 3 points.
    class Made:
        methods, seeds = ("local", "mine"), (0, 1, 2)

        def results(self):
            def entry(*values):
                return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)), "per_seed": list(values)}

            a, b = entry(0.5, 0.6, 0.7), entry(0.52, 0.61, 0.73)
            return {
                "local": {tables.HEADLINE: a, f"{tables.HEADLINE}:last": b},
                "mine": {tables.HEADLINE: b, f"{tables.HEADLINE}:last": a},
            }

    table = tables.scores([Made()], "local")
    mine = table.iloc[1]
    assert mine["accuracy"] == pytest.approx(62.0) and mine["last"] == pytest.approx(60.0)
    assert mine["last_sd"] == pytest.approx(10.0)
    # t(0.975, 2) = 4.302653; SD of the differences 1; all of one sign: 2 of 8 patterns.
    half = 4.302653 / 3**0.5
    assert [mine[name] for name in ("difference", "low", "high")] == pytest.approx([2, 2 - half, 2 + half], rel=1e-6)
    assert (mine["p"], mine["p_min"]) == (0.25, 0.25)
    text = tables.shown(table, "local")
    assert list(text.iloc[1]) == ["mine", "62.00 ± 10.54", "60.00 ± 10.00", "+2.00 [-0.48, +4.48]", "0.25"]
    assert text["minus local [95 %]"].iloc[0] == ""


@pytest.mark.parametrize("file", FILES)
def test_an_unknown_setting_is_refused(file, tmp_path, monkeypatch, capsys, no_training):
    monkeypatch.setattr(sys, "argv", ["experiment", "--setting", "shrot", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        common.start(file.main)
    assert stop.value.code == 2
    assert "unknown setting 'shrot'; did you mean short?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", FILES[2:])
def test_without_matplotlib_nothing_is_run(file, tmp_path, monkeypatch, no_training):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    with pytest.raises(UsageError, match=r"this figure needs matplotlib: pip install -e '\.\[experiments\]'"):
        file.main("short", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_curves_are_means_over_seeds(done, tmp_path):
    run = done[2]
    table = mfedpba_figure4.curves(run)
    assert list(table["round"]) == [1, 2]
    rows = run.rounds().query("split == 'test' and metric == 'accuracy/pooled' and round == 2")["value"]
    assert table["mean"].iloc[1] == pytest.approx(100 * rows.mean())
    assert table["std"].iloc[1] == pytest.approx(100 * rows.std(ddof=1))
    pytest.importorskip("matplotlib")
    mfedpba_figure4.draw({"tiny": table}, tmp_path / "a.svg")
    mfedpba_figure4.draw({"tiny": table}, tmp_path / "b.svg")
    assert ">tiny<" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.slow
def test_prototypes_are_class_means_of_the_features(done, tmp_path):
    _, case, run = done
    federation = case.federation()
    client = mfedpba_figure5.choose_client(federation)
    assert federation.train.sizes[client] == federation.train.sizes.max()
    table = mfedpba_figure5.features(run, federation, client, "local", 1)
    rows = federation.train.of(client)
    found = run.features(client, {m: federation.data.inputs[m][rows] for m in ("a", "b")}, seed=1)
    for modality in ("a", "b"):
        part = table[table["modality"] == modality]
        np.testing.assert_array_equal(mfedpba_figure5.vectors(part[part["kind"] == "sample"]), found[modality])
        for y in np.unique(federation.data.labels[rows]):
            chosen = part[(part["kind"] == "prototype") & (part["class"] == federation.data.classes[y])]
            expected = found[modality][federation.data.labels[rows] == y].mean(axis=0)
            np.testing.assert_allclose(mfedpba_figure5.vectors(chosen)[0], expected, rtol=1e-5, atol=1e-6)
    pytest.importorskip("matplotlib")
    mfedpba_figure5.draw({"local": mfedpba_figure5.project(table)}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 0


def test_silhouettes_of_separate_points_are_one():
    # Two classes in two modalities, each at a single point: distance 0 within, so 1; the modalities are 10 and 1 apart.
    places = {("m", "0"): (0, 0), ("m", "1"): (0, 1), ("n", "0"): (10, 0), ("n", "1"): (10, 1)}
    rows = [
        {0: x, 1: y, "modality": m, "class": c, "kind": "sample"} for (m, c), (x, y) in places.items() for _ in "ab"
    ]
    found = mfedpba_figure5.separation(pd.DataFrame(rows))
    assert found["classes"] == 1
    # Within a modality: 1 identical and 2 others at distance 1; to the other modality 10 and sqrt(101), equally often.
    within, across = 2 / 3, (10 + 101**0.5) / 2
    assert found["modalities"] == pytest.approx(1 - within / across)


def test_validation_chooses_in_figure_8(tmp_path):
    grid = pd.DataFrame(
        [
            {"lambda_fea": a, "lambda_logit": b, "validation": v, "validation_sd": 0.5, "test": t, "test_sd": 0.1}
            for a, b, v, t in [(0.01, 0.5, 90, 95), (0.01, 1.0, 92, 91), (0.1, 0.5, 92, 99), (0.1, 1.0, 80, 80)]
        ]
    )
    text = mfedpba_figure8.shown(grid)
    assert list(text[""]) == ["", "chosen", "", ""]
    assert list(text.iloc[1])[2:4] == ["92.00 ± 0.50", "91.00 ± 0.10"]
    pytest.importorskip("matplotlib")
    steps = grid.drop(columns=["lambda_fea", "lambda_logit"]).assign(server_steps=[1, 5, 10, 20])
    mfedpba_figure8.draw(steps, grid, tmp_path / "figure.svg")
    assert "lambda_2" in (tmp_path / "figure.svg").read_text()


def test_the_ablations_leave_out_one_part_each(tmp_path):
    full = json.loads(json.dumps(dataclasses.asdict(mfedpba_figure7.VARIANTS["full"])))
    for label, method in mfedpba_figure7.VARIANTS.items():
        if label not in ("full", "local"):
            changed = {name: value for name, value in dataclasses.asdict(method).items() if value != full[name]}
            assert list(changed.values()) == [False]
    pytest.importorskip("matplotlib")
    labels = list(mfedpba_figure7.VARIANTS)
    table = pd.DataFrame({"method": labels, "accuracy": 90.0, "accuracy_sd": 1.0, "difference": -0.5, "high": 0.2})
    mfedpba_figure7.draw(table, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert all(f">{name}<" in text for name in ("MFedPBA", "w/o rec", "w/o logit", "EA", "Local"))
