"""The experiments of Flux on one tiny data set; the experiments themselves are never run here."""

import dataclasses
import importlib.util
import types

import numpy as np
import pandas as pd
import pytest

import fedjax_mm as fmm
from experiments import (
    common,
    flux,
    flux_figure4,
    flux_figure5,
    flux_table1,
    flux_table2,
    flux_table3,
    flux_table4,
    flux_table5,
    flux_table6,
    flux_tau,
    tables,
)
from experiments import flux_published as published
from experiments.published import Cell, average
from fedjax_mm.data import save_npz
from fedjax_mm.errors import UsageError
from fedjax_mm.methods.flux import Flux
from fedjax_mm.simulation.engine import Engine

TINY = flux.Scale(
    seeds=2,
    rounds=2,
    clinical_rounds=2,
    regimes=("mod,mod",),
    tempering=("high,high",),
    encoder="mlp",
    eval_every=1,
)
FILES = [flux_table1, flux_table2, flux_table3, flux_table4, flux_table5, flux_table6, flux_figure4, flux_figure5]
SHORT, FULL = flux.SCALES["short"], flux.SCALES["full"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with three clients of 24 samples along recordings, in the place of `wisdm8`."""
    rng = np.random.default_rng(0)
    client, y = np.repeat(np.arange(3), 24), np.tile(np.arange(24) // 8, 3)
    inputs = {name: rng.normal(size=(72, 4, 2)) + y[:, None, None] for name in ("a", "b")}
    path = tmp_path_factory.mktemp("data")
    save_npz(fmm.from_arrays(inputs, y, client=client, order=np.tile(np.arange(24), 3)), path / "wisdm8.npz")
    return path


@pytest.fixture(autouse=True)
def only_that_data(folder, monkeypatch):
    monkeypatch.setenv("FEDJAX_MM_DATA", str(folder))


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    """Flux in Figure 4's case, without the diagnostics that take long to compile, and its folder."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_MM_DATA", str(folder))
        (case,) = flux_figure4.cases(TINY)
        small = {"dim": 16, "widths": ((8,),), "epochs": 1, "lr": 0.1, "executor": "vmap"}
        methods = {flux_figure4.PRIVATE: Flux(hidden=4)}
        case = dataclasses.replace(case, methods=methods, training={**case.training, **small})
        (run,) = common.run_cases([case], out).values()
    return out, case, run


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("a round was run")

    monkeypatch.setattr(Engine, "run_block", refuse)


class Made:
    """A run with made-up results: metric -> method -> a value per seed; the last round has the same."""

    def __init__(self, costs=None, **metrics):
        first = next(iter(metrics.values()))
        self.methods, self.seeds = tuple(first), tuple(range(len(next(iter(first.values())))))
        self._metrics, self._costs = metrics, costs

    def results(self):
        return {
            method: {
                f"test/{metric}/client_mean{rule}": {"per_seed": list(values[method])}
                for metric, values in self._metrics.items()
                for rule in ("", ":last")
            }
            for method in self.methods
        }

    def costs(self):
        return pd.DataFrame.from_dict(self._costs, orient="index")


def test_published_numbers_are_those_of_the_paper():
    cells = {
        ("PAMAP2", "hom,mod"): {"fedavg": (0.722, 0.007), "flux": (0.761, 0.006)},
        ("SleepEDF", "mod,high"): {"fedper": (0.434, 0.009), "pepsy": (0.442, 0.009)},
        ("RealWorldHAR", "high,high"): {"fedrod": (0.747, 0.009), "flux": (0.766, 0.004)},
    }
    for (data, regime), row in cells.items():
        for method, (mean, std) in row.items():
            assert published.TABLE1[data][regime,][method] == Cell(mean, std, digits=3)
    assert str(published.TABLE2["extreme",]["flux"]) == "0.395 ± 0.032"
    assert published.TABLE3["brier",]["flux"].mean == 0.487 and published.TABLE4["100",]["0.9"].mean == 0.083
    assert published.TABLE5["moon",]["GFLOPs"].mean == 34.19
    assert published.TABLE6["shared_private",]["high,high"] == Cell(0.482, 0.007, digits=3)


@pytest.mark.parametrize(
    ("rows", "printed"),
    [
        (published.TABLE1["PAMAP2"], (0.608, 0.607, 0.607, 0.556, 0.624, 0.614, 0.604, 0.642)),
        (published.TABLE1["SleepEDF"], (0.520, 0.517, 0.519, 0.504, 0.520, 0.515, 0.507, 0.542)),
        (published.TABLE1["RealWorldHAR"], (0.765, 0.763, 0.762, 0.729, 0.791, 0.768, 0.789, 0.799)),
        (published.TABLE2, (0.481, 0.494, 0.491, 0.466, 0.487, 0.283, 0.428, 0.508)),
    ],
)
def test_means_over_regimes_are_the_averages_the_paper_prints(rows, printed):
    for method, mean in zip(published.METHODS, printed, strict=True):
        # The paper's are of unrounded cells: at most one in the last digit.
        assert average([row[method] for row in rows.values()]).mean == pytest.approx(mean, abs=0.0011)


def test_every_case_of_the_tables_has_its_published_row():
    for scale, regimes in ((SHORT, 2), (FULL, 6)):
        rows = flux_table1.cases(scale)
        assert len(rows) == 3 * regimes == len({case.name for case in rows})
        for case in rows:
            assert set(case.methods) <= set(published.TABLE1[case.stands_for][case.options["missing"],])
            assert list(case.methods)[:: len(case.methods) - 1] == ["fedavg", "flux"]
            assert (case.training["rounds"], len(case.training["seeds"])) == ((40, 3) if scale is SHORT else (200, 5))
            assert case.each
            assert case.training.get("widths") == (((64,),) if scale is SHORT else None)
    clinical = flux_table2.cases(FULL)
    assert [case.name for case in clinical if case.options["partition"] == "masks"] == [
        "heart4-extreme",
        "omics92-extreme",
    ]
    assert {case.label for case in clinical} == {key for (key,) in published.TABLE2}
    assert all(case.methods["flux"].hidden == 128 and case.training["lr"] == 1e-4 for case in clinical)
    assert list(flux_table6.VARIANTS) == [key for (key,) in published.TABLE6]
    assert [*flux_table4.cases(FULL).values()] == [int(key) for (key,) in published.TABLE4]
    assert [case.training["rounds"] for case in flux_table4.cases(SHORT)] == [10, 20, 30, 40]


def test_the_mean_over_regimes_is_taken_seed_by_seed():
    first = Made(macro_f1={"fedavg": (0.5, 0.6), "fedrod": (0.5, 0.5), "flux": (0.6, 0.8)})
    second = Made(macro_f1={"fedavg": (0.7, 0.4), "fedrod": (0.5, 0.5), "flux": (0.6, 0.6)})
    scale = dataclasses.replace(SHORT, regimes=("mod,mod", "high,high"))
    asked = [case for case in flux_table1.cases(scale) if case.data == "wisdm8"]
    rows = flux_table1.groups(dict(zip(asked, (first, second), strict=True)))
    text, table = tables.tabulate(rows, "fedavg", measure=flux.MACRO_F1)
    mean = table[(table["H,I"] == "mean") & (table["method"] == "flux")].iloc[0]
    # Flux 0.6 and 0.7 by seed, FedAvg 0.6 and 0.5: differences 0 and 0.2.
    assert mean["macro_f1"] == pytest.approx(0.65) and mean["macro_f1_sd"] == pytest.approx(0.1 / 2**0.5)
    assert mean["difference"] == pytest.approx(0.1) and mean["p_min"] == 0.5
    assert mean["published (other data)"] == f"{(0.683 + 0.520) / 2:.3f}"
    assert text["published (other data)"].iloc[2] == "0.683 ± 0.012"
    text, table = tables.gains(rows, "flux", flux.REFERENCES, measure=flux.MACRO_F1)
    assert list(table["minus"]) == ["fedavg", "fedrod"] * 3
    assert list(table["difference"]) == pytest.approx([0.15, 0.2, 0.05, 0.1, 0.1, 0.15])
    # t(0.975, 1) = 12.7062; SD of 0.1 and 0.2 by sqrt(2).
    assert list(table[["low", "high"]].iloc[0]) == pytest.approx([0.15 - 12.7062 * 0.05, 0.15 + 12.7062 * 0.05], 1e-4)
    assert text.iloc[1]["macro_f1 of flux, difference [95 %]"].startswith("+0.200 [")


def test_updates_that_diverged_are_counted_by_variant():
    rows = [
        ("full", 1, "skipped", 0.0),
        ("naive", 1, "skipped", 2.0),
        ("naive", 2, "skipped", 1.0),
        ("full", 1, "ce", 9.0),
    ]
    run = types.SimpleNamespace(rounds=lambda: pd.DataFrame(rows, columns=["method", "round", "metric", "value"]))
    assert flux.left_out(run) == "naive 3"
    run = types.SimpleNamespace(rounds=lambda: pd.DataFrame(rows[:1], columns=["method", "round", "metric", "value"]))
    assert flux.left_out(run) == "none"


def test_the_ablations_stand_beside_their_published_rows():
    made = Made(macro_f1=dict.fromkeys(flux_table6.VARIANTS, (0.5, 0.5)))
    rows = flux_table6.groups(dict.fromkeys(flux_table6.cases(SHORT), made))
    text, _ = tables.tabulate(rows, "full", measure=flux.MACRO_F1)
    first = dict(zip(text["method"], text["published (other data)"], strict=False))
    assert [row.head["H,I"] for row in rows] == ["high,mod", "high,high", "mean"]
    assert text[text["H,I"] == "high,mod"]["published (other data)"].iloc[0] == "0.594 ± 0.007"
    assert first["full"] == "0.583"


def test_calibration_is_read_by_its_names():
    methods = ("fedavg", "fedprox", "fedrod", "flux")
    values = {
        metric: dict.fromkeys(methods, (level, level + 0.1))
        for metric, level in {"loss": 1.0, "ece": 0.1, "brier": 0.5}.items()
    }
    text, table = flux_table3.tabulate(Made(**values))
    # FedProx is not in the paper's table.
    assert list(table["method"]) == ["fedavg", "fedrod", "flux"] * 3
    assert list(table["measure"].unique()) == ["nll", "ece", "brier"]
    assert list(table["value"].iloc[[0, 3, 6]]) == pytest.approx([1.05, 0.15, 0.55])
    assert list(text["published (other data)"].iloc[[2, 5, 8]]) == ["1.379", "0.162", "0.487"]
    with pytest.raises(UsageError, match="ece"):
        flux_table3.tabulate(Made(loss=values["loss"]))


def test_costs_stand_in_readable_units():
    entry = dict.fromkeys(flux_table5.COSTS, 0.0) | {"flops_per_round_estimate": 2.5e9, "seconds_per_round": 1.23456}
    costs = {"fedavg": entry, "flux": entry | {"bytes_up_per_client_and_round": 12_345.0}}
    text, table = flux_table5.tabulate(Made(costs, macro_f1={"fedavg": (0.5, 0.7), "flux": (0.6, 0.6)}))
    assert list(text.iloc[1][["s a round", "GFLOPs a round", "kB up", "macro-F1"]]) == ["1.235", "2.50", "12", "0.600"]
    assert text.iloc[1]["published (other data)"].startswith("19.40 GFLOPs, inference 1.44 s, F1 0.683")
    assert list(table["flops_per_round_estimate"]) == [2.5e9, 2.5e9]


@pytest.mark.marathon
def test_each_seed_has_its_own_masks_and_a_finished_case_is_loaded(done, no_training):
    out, case, run = done
    assert run.manifest["federation"]["split_seed"] == "each"
    assert run.missing().shape[0] == 2
    (again,) = common.run_cases([case], out).values()
    assert again.results() == run.results()
    with pytest.raises(UsageError, match="a run with other federation than this experiment asks for"):
        common.run_cases([dataclasses.replace(case, each=False)], out)


@pytest.mark.marathon
def test_tau_of_a_sample_is_of_what_it_observes(done):
    _, case, run = done
    federation = case.federation(1)
    label = flux_figure4.PRIVATE
    client = int(np.argmax(federation.holds.sum(axis=1)))
    inputs, _ = flux_tau.client_inputs(federation, client, "train")
    held = [modality in inputs for modality in ("a", "b")]
    n = len(next(iter(inputs.values())))
    whole = np.tile(held, (n, 1))
    ask = {"method": label, "seed": 1, "size": n + 3}
    together = flux_tau.sample_taus(run, client, inputs, whole, **ask)
    assert together.shape == (n,) and (together > 0).all()
    # One by one, and with other samples asked about first, it is the same.
    alone = flux_tau.sample_taus(run, client, {m: x[4:5] for m, x in inputs.items()}, whole[4:5], **ask)
    np.testing.assert_allclose(alone, together[4:5], rtol=1e-5)
    assert sum(held) == 2
    seen = whole.copy()
    seen[::2, 1] = False
    mixed = flux_tau.sample_taus(run, client, inputs, seen, **ask)
    np.testing.assert_allclose(mixed[1::2], together[1::2], rtol=1e-5)
    # 1 / tau_f^2 is a sum over what is observed (Eq. 3): less of it is a higher temperature.
    assert (mixed[::2] > together[::2]).all()


def test_noise_is_in_proportion_to_the_training_data():
    federation = fmm.federate(fmm.load_data("wisdm8"), missing="hom,none")
    clean, seen = flux_tau.client_inputs(federation, 0, "test")
    half, full = (flux_tau.client_inputs(federation, 0, "test", alpha)[0] for alpha in (0.5, 1.0))
    rows = federation.test.of(0)
    np.testing.assert_array_equal(seen, federation.observed[rows] & federation.holds[0])
    for modality, values in clean.items():
        np.testing.assert_array_equal(values, federation.data.inputs[modality][rows])
        np.testing.assert_allclose(full[modality] - values, 2 * (half[modality] - values), atol=1e-5)
        assert np.abs(full[modality] - values).max() > 0


@pytest.mark.marathon
def test_table_4_measures_every_severity(done, monkeypatch):
    _, case, run = done
    monkeypatch.setattr(flux_table4, "METHOD", flux_figure4.PRIVATE)
    found = flux_table4.measure(case, run)
    assert list(found["alpha"]) == [0.0, 0.5, 0.9] * 2 and list(found["seed"]) == [0] * 3 + [1] * 3
    assert (found["tau"] > 0).all() and found["tau"].nunique() == 6 and not found["undefined"].any()
    made = pd.DataFrame({"alpha": [0.0, 0.5, 0.9] * 2, "seed": [0] * 3 + [1] * 3, "tau": [1, 2, 3, 1, 3, 2.0]})
    text = flux_table4.shown(dict.fromkeys((1, 2, 3, 4), made))
    assert list(text.iloc[1]) == [
        "2",
        "1.0000 ± 0.0000",
        "2.5000 ± 0.7071",
        "2.5000 ± 0.7071",
        "1 of 2 seeds",
        "0.063, 0.075, 0.083 (round 100)",
    ]


@pytest.mark.marathon
def test_figure_4_follows_temperatures_and_clients(done, tmp_path):
    _, case, run = done
    table = flux_figure4.terms({case: run})
    assert set(table["metric"]) == {"tau", "tau_of_1", "tau_of_2"}
    text = flux_figure4.temperatures_by_regime(table)
    last = table.query("metric == 'tau' and round == 2")["value"]
    assert text["tau"].item() == f"{last.mean():.4f} ± {last.std():.4f}"
    clients = flux_figure4.of_clients(case, run)
    assert len(clients) == 2 * 3
    entry = clients.iloc[-1]
    recorded = run.clients().query("seed == 1 and client == @entry.client and split == 'validation' and round == 2")
    assert entry["f1"] == recorded.query("metric == 'macro_f1'")["value"].item()
    pytest.importorskip("matplotlib")
    both = pd.concat([table, table.assign(method=flux_figure4.BOTH, metric="gradient_fusion")])
    flux_figure4.draw(both, clients, tmp_path / "figure.svg")
    assert ">shared_private<" in (tmp_path / "figure.svg").read_text()


def test_correlations_and_stability_by_hand():
    clients = pd.DataFrame({"seed": [0] * 4 + [1] * 4, "tau": [1, 2, 3, 4] * 2, "f1": [4, 3, 2, 1, 1, 2, 4, 3.0]})
    found = flux_figure4.correlations(clients)
    # Ranks of the second seed differ by 0, 0, 1, 1: rho = 1 - 6 * 2 / (4 * 15).
    assert list(found["rho"]) == pytest.approx([-1, 0.8]) and list(found["n"]) == [4, 4]
    values = {"private_only": (9, 1, 1, 1), "shared_private": (9, 1, 2, 3)}
    table = pd.DataFrame(
        [
            {
                "H,I": "high,high",
                "method": method,
                "metric": "drift",
                "seed": seed,
                "round": i + 1,
                "value": value + seed,
            }
            for method, levels in values.items()
            for seed in (0, 1)
            for i, value in enumerate(levels)
        ]
    )
    text = flux_figure4.stability_text(flux_figure4.stability(table))
    # The first of the four rounds is left out.
    assert list(text["mean over rounds"]) == ["1.5000 ± 0.7071", "2.5000 ± 0.7071"]
    assert list(text["SD over rounds"]) == ["0.0000 ± 0.0000", "1.0000 ± 0.0000"]


def test_the_picture_shows_who_observes_what(monkeypatch, tmp_path):
    monkeypatch.setattr(flux_figure5, "BINS", 6)
    federation = fmm.federate(fmm.load_data("wisdm8"), missing="high,mod", split_seed=1, gap=0)
    picture = flux_figure5.picture(federation)
    assert picture.shape == (3 * 2, 6)
    np.testing.assert_array_equal(np.isnan(picture).all(axis=1), ~federation.holds.ravel())
    # All 24 samples of a client in order, four in each bin.
    for client, m in np.argwhere(federation.holds):
        seen = federation.observed[24 * client : 24 * (client + 1), m]
        np.testing.assert_allclose(picture[2 * client + m], seen.reshape(6, 4).mean(axis=1))
    pytest.importorskip("matplotlib")
    flux_figure5.main("short", tmp_path)
    table = pd.read_csv(tmp_path / "short" / "figure5.csv")
    assert list(table["H,I"]) == list(flux.REGIMES)
    assert ">(high,high)<" in (tmp_path / "short" / "figure5.svg").read_text()


@pytest.mark.parametrize("file", FILES)
def test_an_unknown_setting_is_refused(file, tmp_path, no_training):
    with pytest.raises(UsageError, match="unknown setting 'shrot'; did you mean short"):
        file.main("shrot", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", [flux_figure4, flux_figure5])
def test_without_matplotlib_nothing_is_run(file, tmp_path, monkeypatch, no_training):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    with pytest.raises(UsageError, match=r"this figure needs matplotlib"):
        file.main("short", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_that_are_not_there_are_left_out(tmp_path, monkeypatch, capsys):
    absent = [case for case in flux_table1.cases(TINY) if case.data == "umafall"]
    assert common.run_cases(absent, tmp_path) == {}
    assert "umafall (in the place of RealWorldHAR) is left out: put umafall.npz into" in capsys.readouterr().out
