import dataclasses

import jax
import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Local, method  # pyright: ignore
from fedjax_mm.runs.entries import make_entries
from fedjax_mm.runs.experiment import digest, make_settings, prepare


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "unknown setting 'epoch'; did you mean epochs"),
        ({"widths": ()}, r"widths is \(\), must be at least one"),
        ({"widths": "8,8"}, "widths is .*distinct"),
        ({"widths": "8-0"}, "widths is .*each width at least 1"),
        ({"rounds": 0}, "rounds is 0, must be at least 1"),
        ({"rounds": "many"}, "rounds is 'many', must be an integer"),
        ({"participation": 4}, "participation is 4, must be a count from 1 to the 3 clients"),
        ({"participation": 0}, "participation is 0"),
        ({"participation": 0.0}, r"participation is 0\.0, must be a rate"),
        ({"seeds": [1, 1]}, "seeds is .*distinct"),
        ({"drop_last": "False"}, "drop_last is 'False', must be true or false"),
        ({"model": "pol"}, "unknown model 'pol'; did you mean pool"),
        ({"executor": "maps"}, "unknown executor 'maps'; did you mean map"),
        ({"optimizer": "adam", "momentum": 0.9}, r"momentum is 0\.9, and optimizer adam has none"),
    ],
)
def test_wrong_settings(federation, given, message):
    with pytest.raises(UsageError, match=message):
        make_settings(given, federation)


def test_the_callers_settings_are_not_touched(federation):
    # T84.
    given = {"seeds": [0, 1], "encoders": ["dnn"]}
    first = make_settings(given, federation)
    assert given == {"seeds": [0, 1], "encoders": ["dnn"]}
    assert make_settings(given, federation) == first


def test_settings_are_keywords_only(federation):
    # T87.
    with pytest.raises(TypeError):
        fmm.simulate("local", federation, "somewhere")  # pyright: ignore


def test_each_seed_its_own_federation(federation):
    experiment = prepare(make_entries("local"), federation, {"seeds": (0, 5)}, each=True)
    assert experiment.federations[0] is federation
    again = fmm.federate(federation.data, **{**federation.settings, "split_seed": 5})
    assert digest(experiment.federations[1]) == digest(again) != digest(federation)
    with pytest.raises(UsageError, match="split_seed is '5', must be 'each' or left out"):
        fmm.simulate("local", federation, split_seed="5")


def test_a_method_that_cannot_be_set_up_names_the_place(federation, tmp_path):
    # T114: the original error and where it was raised, not a generic message.
    file = tmp_path / "broken.py"
    file.write_text(
        "from fedjax_mm.methods import Method, method\n"
        "@method\n"
        "class Broken(Method):\n"
        "    name = 'broken'\n"
        "    def loss(self, lane):\n"
        "        raise KeyError('gone')\n"
    )
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=rf"broken cannot be set up: KeyError: 'gone' \({file}:6\)"):
        fmm.simulate(f"{file}:Broken", federation, out=out)
    assert not out.exists()


def test_a_loss_without_terms_is_answered_with_what_hooks_return(federation):
    @method
    class Bare(Local):
        name = "bare"

        def loss(self, lane):
            return Local.loss(self, lane)[0]

    with pytest.raises(UsageError, match=r"bare: loss must return \(loss, terms\)"):
        fmm.simulate(Bare, federation)


def test_of_all_methods_those_that_do_not_suit_are_left_out(federation):
    @method
    class Picky(Local):
        name = "picky"

        def check(self, spec):
            raise UsageError("needs four clients")

    entries = make_entries([Picky, "local"])
    experiment = prepare(entries, federation, {}, optional=True)
    assert [entry.label for entry in experiment.entries] == ["local"]
    assert experiment.notes == ("picky left out: needs four clients",)
    with pytest.raises(UsageError, match="needs four clients"):
        prepare(entries, federation, {})


def test_double_precision_stays_inside(federation):
    experiment = prepare(make_entries("local"), federation, {"precision": "float64"})
    with jax.enable_x64(True):
        state = experiment.engines["local"].initial_state()
    kinds = {leaf.dtype for leaf in jax.tree.leaves(state.stores)}
    assert kinds == {np.dtype("float64")}
    assert not jax.config.jax_enable_x64  # pyright: ignore


def test_the_digest_sees_who_holds_what(federation):
    holds = federation.holds.copy()
    holds[0, 0] = False
    assert digest(dataclasses.replace(federation, holds=holds)) != digest(federation)
    assert digest(dataclasses.replace(federation)) == digest(federation)


def test_a_replacement_is_warned_of(federation, monkeypatch):
    monkeypatch.setattr("fedjax_mm.runs.api.start", lambda experiment, **_: experiment)
    with pytest.warns(UserWarning, match="fedavg averages encoders.*: lg_fedavg takes its place"):
        experiment = fmm.simulate("fedavg", federation, model="pool")
    assert list(experiment.engines) == ["lg_fedavg"]  # pyright: ignore
