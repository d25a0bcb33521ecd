"""Finding a method by name or in a user's own file, and what is said when there is none."""

import sys
import textwrap

import pytest

from fedjax_mm import methods
from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Method, available, find

OWN = """
from typing import ClassVar
from fedjax_mm.methods import Method, method

@method
class Mine(Method):
    strength: float = 1.0
    name: ClassVar[str] = "mine"

@method
class Nameless(Method):
    strength: float = 1.0

class NotOne:
    name = "not one"

function = len
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own_method.py"
    path.write_text(OWN)
    return path


def test_every_module_of_the_package_is_found_under_its_name():
    found = available()
    assert {"local", "fedavg", "lg_fedavg", "fedproto", "fedprox", "moon", "fedper", "fedrod", "flux"} <= set(found)
    for name, kind in found.items():
        assert kind.name == name
        assert find(name) is kind
        assert getattr(methods, kind.__name__) is kind
        assert kind.__doc__
        kind()


def test_the_caller_cannot_change_the_list():
    available().clear()
    assert available()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavgg", "did you mean fedavg"),
        ("FedProto", "did you mean fedproto"),
        ("zzz", "valid: .*local"),
        ("", "local"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    with pytest.raises(UsageError, match=message):
        find(name)


def test_a_class_of_a_file_or_of_a_module_is_found(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    for source in (str(file), "own_method"):
        kind = find(f"{source}:Mine")
        assert issubclass(kind, Method)
        assert (kind.name, kind(strength=2.0).strength) == ("mine", 2.0)
    sys.modules.pop("own_method")
    assert find("fedjax_mm.methods.local:Local") is find("local")


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("Missing", "no subclass of .*Method named Missing"),
        ("NotOne", "no subclass of .*Method named NotOne"),
        ("function", "no subclass of .*Method named function"),
        ("", "no subclass"),
        ("Nameless", "no name"),
    ],
)
def test_what_is_not_a_method_in_a_file_is_refused(file, attribute, message):
    with pytest.raises(UsageError, match=message):
        find(f"{file}:{attribute}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere/none.py", "no file nowhere/none.py"),
        ("no_such_module", "cannot import no_such_module"),
        ("", "import"),
        (".relative", "import"),
    ],
)
def test_a_source_that_is_not_there_is_refused(source, message):
    with pytest.raises(UsageError, match=message):
        find(f"{source}:Mine")


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match="no file"):
        find(f"{tmp_path / 'folder.py'}:Mine")


def test_a_file_that_cannot_import_what_it_needs_says_so(tmp_path):
    path = tmp_path / "needs.py"
    path.write_text("import no_such_dependency\n")
    with pytest.raises(UsageError, match="no_such_dependency"):
        find(f"{path}:Mine")


def test_annotations_may_be_postponed(tmp_path):
    path = tmp_path / "postponed.py"
    path.write_text("from __future__ import annotations\n" + textwrap.dedent(OWN))
    kind = find(f"{path}:Mine")
    assert kind(strength=2.0).strength == 2.0


def test_a_class_without_the_decorator_is_refused_before_anything_is_compiled(tmp_path, laboratory, three):
    path = tmp_path / "bare.py"
    path.write_text(OWN.replace("@method\n", ""))
    with pytest.raises(UsageError, match=r"@.*method above the class"):
        laboratory.build(find(f"{path}:Mine")(), three)
