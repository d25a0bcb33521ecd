import dataclasses
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_mm.errors import RunError
from fedjax_mm.runs.checkpoints import latest, restore, save

SETTINGS = {"method": "fedavg", "options": {"lr": 0.1, "epochs": 2}, "seeds": (0, 1)}


class Pair(NamedTuple):
    mean: jax.Array
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Record:
    weight: jax.Array
    rest: tuple


def state(number):
    """Every kind of leaf and container an engine's state may have; the values depend on `number`."""
    params = {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3) + number, "bias": jnp.zeros((0, 3))}}
    return {
        "params": params,
        "opt": optax.sgd(0.1, momentum=0.9).init(params),
        "server": (Pair(jnp.bfloat16(number) / 3, jnp.int32(number)), [jnp.array([True, False])], None, {}),
        "odd": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-40], jnp.float32),
    }


def shapes(tree):
    return jax.eval_shape(lambda: tree)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_structure_dtypes_and_bits_come_back(tmp_path):
    # T94: named tuples and optimiser states are not turned into dictionaries.
    folder = tmp_path / "checkpoints" / "fedavg"
    save(folder, 10, state(10), fingerprint=SETTINGS)
    number, found = restore(folder, like=shapes(state(0)), fingerprint=SETTINGS)
    assert number == 10
    assert_same(found, state(10))
    assert isinstance(found["server"][0], Pair)
    assert_same(restore(folder, like=state(0), fingerprint=SETTINGS)[1], state(10))


def test_dataclasses_and_float64(tmp_path):
    with jax.enable_x64(True):
        tree = Record(jnp.float64(1) / 3, (jnp.arange(3, dtype=jnp.int64),))
        like = shapes(tree)
        save(tmp_path, 1, tree, fingerprint={})
        assert_same(restore(tmp_path, like=like, fingerprint={})[1], tree)
    with pytest.raises(RunError, match=r"leaf \.weight: float64 \[\] needs jax_enable_x64"):
        restore(tmp_path, like=like, fingerprint={})


def test_the_latest_two_remain(tmp_path):
    assert latest(tmp_path / "none") is None
    for number in (5, 10, 15, 20):
        save(tmp_path, number, state(number), fingerprint=SETTINGS)
        assert latest(tmp_path) == number
    assert names(tmp_path) == ["15", "20"]


@pytest.mark.parametrize("tree", [{}, (), {"a": jnp.zeros((0, 2), jnp.int32)}])
def test_states_without_numbers(tmp_path, tree):
    # T95.
    save(tmp_path, 0, tree, fingerprint={})
    assert latest(tmp_path) == 0
    assert_same(restore(tmp_path, like=tree, fingerprint={})[1], tree)


def test_saving_a_round_again_replaces_it_and_what_followed(tmp_path):
    for number in (5, 10):
        save(tmp_path, number, state(number), fingerprint=SETTINGS)
    save(tmp_path, 5, state(50), fingerprint=SETTINGS)
    assert names(tmp_path) == ["5"]
    assert_same(restore(tmp_path, like=state(0), fingerprint=SETTINGS)[1], state(50))


def changed(change):
    tree = state(0)
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tree: tree["params"]["dense"].update(kernel=jnp.zeros((3, 2))),
            r"leaf \['params'\]\['dense'\]\['kernel'\]: expected float32 \[3, 2\], found float32 \[2, 3\]",
        ),
        (lambda tree: tree.update(odd=jnp.zeros(4, jnp.bfloat16)), "expected bfloat16 .4., found float32 .4."),
        (lambda tree: tree.update(more=jnp.zeros(1)), r"leaf \['more'\]: expected float32 \[1\], found nothing"),
        (lambda tree: tree.pop("odd"), r"leaf \['odd'\]: expected nothing, found float32 \[4\]"),
        (
            lambda tree: tree.update(server=({"mean": jnp.bfloat16(0), "count": jnp.int32(0)}, *tree["server"][1:])),
            r"leaf \['server'\]\[0\]\['count'\]: expected int32 \[\], found nothing",
        ),
    ],
)
def test_another_state_is_refused_naming_the_leaf(tmp_path, change, message):
    save(tmp_path, 5, state(5), fingerprint=SETTINGS)
    with pytest.raises(RunError, match=message):
        restore(tmp_path, like=changed(change), fingerprint=SETTINGS)


def test_another_configuration_is_refused_naming_the_keys(tmp_path):
    save(tmp_path, 5, state(5), fingerprint=SETTINGS)
    other = {"method": "fedavg", "options": {"lr": 0.2, "clip": None}, "seeds": [0, 1]}
    with pytest.raises(RunError) as error:
        restore(tmp_path, like=state(0), fingerprint=other)
    problem = str(error.value).partition("another configuration: ")[2]
    assert (
        problem == "options.lr is 0.2, was 0.1; options.epochs is 'absent', was 2; options.clip is None, was 'absent'"
    )


def test_nothing_to_restore(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="no intact checkpoint"):
            restore(folder, like=state(0), fingerprint=SETTINGS)
    assert names(tmp_path) == []


def test_what_a_killed_write_leaves_is_not_picked_up_and_goes_away(tmp_path):
    # T96, T97.
    save(tmp_path, 5, state(5), fingerprint=SETTINGS)
    shutil.copytree(tmp_path / "5", tmp_path / "7.orbax-checkpoint-tmp")
    assert latest(tmp_path) == 5
    assert restore(tmp_path, like=state(0), fingerprint=SETTINGS)[0] == 5
    save(tmp_path, 10, state(10), fingerprint=SETTINGS)
    assert names(tmp_path) == ["10", "5"]


def truncated(content):
    return content[: len(content) // 2]


def emptied(content):
    return b""


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x55]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [truncated, emptied, flipped])
@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
# TensorStore may finish a failed read after Orbax has closed its event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_to_any_file_never_gives_a_wrong_state(tmp_path, damage):
    # T97. Some of Orbax's files are not needed to read; what is read is then the latest state.
    for number in (5, 10):
        save(tmp_path, number, state(number), fingerprint=SETTINGS)
    passed_over = 0
    files = [path for path in (tmp_path / "10").rglob("*") if path.is_file() and path.stat().st_size]
    for path in files:
        content = path.read_bytes()
        path.write_bytes(damage(content))
        number, found = restore(tmp_path, like=state(0), fingerprint=SETTINGS)
        assert_same(found, state(number))
        passed_over += number == 5
        path.write_bytes(content)
    assert passed_over >= 3
    assert restore(tmp_path, like=state(0), fingerprint=SETTINGS)[0] == 10


@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_any_flipped_byte_of_the_numbers_is_noticed(tmp_path):
    tree = {"a": jnp.asarray(np.random.default_rng(0).standard_normal(64), jnp.float32)}
    save(tmp_path, 5, {"a": jnp.zeros(64)}, fingerprint={})
    save(tmp_path, 10, tree, fingerprint={})
    largest = max((tmp_path / "10" / "state").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = largest.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 40)):
        largest.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        number, found = restore(tmp_path, like=tree, fingerprint={})
        assert_same(found, tree if number == 10 else {"a": jnp.zeros(64)})


def test_intact_files_with_other_numbers_are_noticed(tmp_path):
    for number in (5, 10):
        save(tmp_path, number, {"a": jnp.full(3, float(number))}, fingerprint={})
    shutil.rmtree(tmp_path / "10" / "state")
    shutil.copytree(tmp_path / "5" / "state", tmp_path / "10" / "state")
    with pytest.warns(UserWarning, match=r"leaf \['a'\] does not match its checksum"):
        assert restore(tmp_path, like={"a": jnp.zeros(3)}, fingerprint={})[0] == 5


def test_a_changed_description_is_damage_not_another_configuration(tmp_path):
    save(tmp_path, 5, state(5), fingerprint=SETTINGS)
    files = [path for path in (tmp_path / "5").rglob("*") if path.is_file() and b"fedavg" in path.read_bytes()]
    for path in files:
        path.write_bytes(path.read_bytes().replace(b"fedavg", b"fedavh"))
    assert files
    with pytest.warns(UserWarning, match="does not match its checksum"), pytest.raises(RunError, match="no intact"):
        restore(tmp_path, like=state(0), fingerprint=SETTINGS)


def test_reading_is_silent(tmp_path, caplog):
    save(tmp_path, 5, state(5), fingerprint=SETTINGS)
    restore(tmp_path, like=state(0), fingerprint=SETTINGS)
    assert latest(tmp_path) == 5
    # asyncio reports what other tests' damaged checkpoints made fail, whenever that is collected.
    loud = [record for record in caplog.records if record.levelname not in ("DEBUG", "INFO")]
    assert [record for record in loud if record.name != "asyncio"] == []


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_replaced(tmp_path):
    for number in (5, 10):
        save(tmp_path, number, state(number), fingerprint=SETTINGS)
    shutil.rmtree(tmp_path / "10" / "state")
    with pytest.warns(UserWarning, match=r"10 is damaged .*; trying the one before it"):
        number, found = restore(tmp_path, like=state(0), fingerprint=SETTINGS)
    assert number == 5
    assert_same(found, state(5))
    save(tmp_path, 10, state(11), fingerprint=SETTINGS)
    assert names(tmp_path) == ["10", "5"]
    assert_same(restore(tmp_path, like=state(0), fingerprint=SETTINGS)[1], state(11))
    for number in (5, 10):
        shutil.rmtree(tmp_path / str(number) / "state")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(RunError, match="no intact checkpoint"),
    ):
        restore(tmp_path, like=state(0), fingerprint=SETTINGS)


def test_other_entries_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "record.npz").write_bytes(b"x")
    for number in (1, 2, 3):
        save(tmp_path, number, state(number), fingerprint=SETTINGS)
    assert names(tmp_path) == ["2", "3", "record.npz"]
    assert restore(tmp_path, like=state(0), fingerprint=SETTINGS)[0] == 3


def test_arrays_only_and_no_pickle(tmp_path):
    save(tmp_path, 1, state(1), fingerprint=SETTINGS)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or not path.read_bytes().startswith(b"\x80\x04")


WRITER = """
import itertools, sys
import jax.numpy as jnp
from fedjax_mm.runs.checkpoints import save
for number in itertools.count(1):
    save(sys.argv[1], number, {"a": jnp.full((50, 1000), float(number)), "b": jnp.int32(number)}, fingerprint={})
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.013, 0.029, 0.041])
def test_a_process_killed_while_saving_leaves_a_valid_checkpoint(tmp_path, delay):
    # T96, T97.
    root = pathlib.Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            done = int(process.stdout.readline())
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        done = int((process.stdout.read().split() or [done])[-1])
    like = {"a": jnp.zeros((50, 1000)), "b": jnp.int32(0)}
    number, found = restore(tmp_path, like=like, fingerprint={})
    assert number in (done, done + 1)
    assert_same(found, {"a": jnp.full((50, 1000), number, jnp.float32), "b": jnp.int32(number)})
    save(tmp_path, number + 1, found, fingerprint={})
    assert names(tmp_path) == sorted([str(number), str(number + 1)])
