"""Checkpoints: complete or absent, and always verified."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.errors import CheckpointError, StorageError
from steppe.records import checkpoints
from steppe.records.checkpoints import latest_manifest, list_checkpoints, load_latest, save


def state(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "params/dense/kernel": generator.normal(size=(8, 4)).astype(np.float32),
        "key": np.array([seed, 7], np.uint32),
    }


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert array.shape == right[name].shape
        assert array.tobytes() == right[name].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, size=(*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    array = (raw[..., 0] % 2).astype(bool) if dtype == "bool" else np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    save(tmp_path, 1, {"a": array}, {})
    assert_same(load_latest(tmp_path).arrays, {"a": array})


def test_arrays_in_any_memory_order_are_saved_as_the_numbers_they_show(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {
        "transposed": base.T,
        "strided": base[::2, ::-1],
        "big endian": base.astype(">f4"),
        "scalar": np.float32(3),
    }
    save(tmp_path, 1, arrays, {})
    loaded = load_latest(tmp_path).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].shape == array.shape
        assert loaded[name].flags.writeable


def test_the_manifest_comes_back(tmp_path: Path) -> None:
    manifest = {
        "counters": {"episode": np.int64(3), "best": float("-inf")},
        "spec": "{}",
        "place": Path("/a"),
        "π": [1, 2],
    }
    path = save(tmp_path, 12, state(0), manifest)
    loaded = load_latest(tmp_path)
    assert loaded.manifest == {
        "counters": {"episode": 3, "best": float("-inf")},
        "spec": "{}",
        "place": "/a",
        "π": [1, 2],
    }
    assert (loaded.timestep, loaded.path, loaded.skipped) == (12, path, [])


def test_state_json_names_the_format_and_the_digest_of_the_arrays(tmp_path: Path) -> None:
    path = save(tmp_path, 12, state(0), {})
    content = json.loads((path / "state.json").read_text())
    data = (path / "state.safetensors").read_bytes()
    assert (content["format"], content["version"], content["timestep"]) == ("steppe-checkpoint", 1, 12)
    assert content["arrays"] == {
        "file": "state.safetensors",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def test_the_same_state_is_always_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(10)]
    for folder in folders:
        folder.mkdir()
    paths = [save(folder, 5, state(0), {}) for folder in folders]
    assert len({(path / "state.safetensors").read_bytes() for path in paths}) == 1


def test_the_newest_by_number_is_loaded_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    for timestep in (5, 9, 10, 100):
        save(tmp_path, timestep, state(timestep), {}, keep=2)
    assert list_checkpoints(tmp_path) == [10, 100]
    assert names(tmp_path) == {"10", "100"}
    assert_same(load_latest(tmp_path).arrays, state(100))


def test_the_checkpoint_just_saved_is_never_pruned(tmp_path: Path) -> None:
    save(tmp_path, 300, state(0), {})
    (tmp_path / "checkpoints" / "300" / "state.json").unlink()
    save(tmp_path, 250, state(1), {}, keep=1)
    assert load_latest(tmp_path).timestep == 250


def test_saving_a_timestep_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 10, state(0), {"n": 0})
    save(tmp_path, 10, state(1), {"n": 1})
    loaded = load_latest(tmp_path)
    assert_same(loaded.arrays, state(1))
    assert loaded.manifest == {"n": 1}
    assert names(tmp_path) == {"10"}


def test_an_interrupted_replacement_loads_and_the_next_save_completes_it(tmp_path: Path) -> None:
    path = save(tmp_path, 10, state(0), {})
    path.rename(path.with_name("10.replaced"))
    assert list_checkpoints(tmp_path) == [10]
    assert_same(load_latest(tmp_path).arrays, state(0))
    save(tmp_path, 20, state(1), {})
    assert names(tmp_path) == {"10", "20"}


def test_without_a_checkpoint_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*; start"):
        load_latest(tmp_path)
    assert list_checkpoints(tmp_path) == []


def damage_nothing_left(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((path / "state.json").read_text())
    change(content)
    content.pop("sha256")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["sha256"] = hashlib.sha256(canonical).hexdigest()
    (path / "state.json").write_text(json.dumps(content))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "arrays cut short": (lambda p: os.truncate(p / "state.safetensors", 40), "has 40 bytes where"),
    "arrays gone": (lambda p: (p / "state.safetensors").unlink(), "state.safetensors cannot be read"),
    "manifest empty": (lambda p: (p / "state.json").write_bytes(b""), "state.json is not JSON"),
    "manifest of another kind": (lambda p: (p / "state.json").write_text("[1]"), "sha256 in state.json"),
    "manifest deep": (lambda p: (p / "state.json").write_text("[" * 100_000), "state.json is not JSON"),
    "manifest changed": (lambda p: edit(p / "state.json", '"time": 1', '"time": 2'), "sha256 in state.json"),
    "manifest gone": (lambda p: (p / "state.json").unlink(), "state.json cannot be read"),
    "everything gone": (damage_nothing_left, "cannot be read"),
    "a later format": (lambda p: rewrite(p, lambda c: c.update(version=99)), "steppe-checkpoint 99"),
    "arrays not described": (lambda p: rewrite(p, lambda c: c.pop("arrays")), "lacks what it should say"),
    "arrays described otherwise": (lambda p: rewrite(p, lambda c: c.update(arrays=[])), "lacks what it should say"),
    "no manifest inside": (lambda p: rewrite(p, lambda c: c.update(manifest=None)), "lacks what it should say"),
    "another timestep": (lambda p: rewrite(p, lambda c: c.update(timestep=5)), "of timestep 5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_the_reason(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1, state(1), {})
    inflict, reason = DAMAGES[damage]
    inflict(save(tmp_path, 2, state(2), {}))
    loaded = load_latest(tmp_path)
    assert loaded.timestep == 1
    assert_same(loaded.arrays, state(1))
    assert len(loaded.skipped) == 1
    assert loaded.skipped[0].startswith("checkpoint 2 was skipped: ")
    assert reason in loaded.skipped[0]


def test_when_all_are_damaged_the_error_names_each(tmp_path: Path) -> None:
    for timestep in (1, 2):
        os.truncate(save(tmp_path, timestep, state(0), {}) / "state.safetensors", 3)
    with pytest.raises(CheckpointError, match=r"checkpoint 2 was skipped.*checkpoint 1 was skipped.*start"):
        load_latest(tmp_path)


@settings(max_examples=150, deadline=None)
@given(
    file=st.sampled_from(["state.safetensors", "state.json"]),
    place=st.floats(0, 1, exclude_max=True),
    flip=st.integers(0, 255),
    cut=st.booleans(),
)
def test_any_flipped_byte_or_truncation_is_detected_or_changes_nothing(
    file: str, place: float, flip: int, cut: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 1, state(1), {"n": 1})
        path = save(folder, 2, state(2), {"n": 2}) / file
        data = bytearray(path.read_bytes())
        at = int(place * len(data))
        data[at] ^= flip
        path.write_bytes(data[:at] if cut else data)
        loaded = load_latest(folder)
    expected = 2 if not loaded.skipped else 1
    assert loaded.timestep == expected
    assert_same(loaded.arrays, state(expected))
    assert loaded.manifest == {"n": expected}
    if flip and not cut and file == "state.safetensors":
        assert expected == 1


def test_an_unsupported_array_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='"names" has numbers of type object'):
        save(tmp_path, 1, {"names": np.array([{}], dtype=object)}, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="manifest holds a set"):
        save(tmp_path, 1, state(0), {"a": set()})
    assert names(tmp_path) == set()


def assert_untouched(folder: Path) -> None:
    assert names(folder) == {"1"}
    assert_same(load_latest(folder).arrays, state(1))


@pytest.mark.faults
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("function", ["fsync", "rename", "mkdir"])
def test_a_disk_that_fails_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    save(tmp_path, 1, state(1), {})

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(StorageError, match="disk"):
            save(tmp_path, 2, state(2), {}, keep=1)
        with pytest.raises(StorageError, match="disk"):
            save(tmp_path, 1, state(2), {}, keep=1)
    assert_untouched(tmp_path)


@pytest.mark.faults
def test_a_full_disk_leaves_the_previous_checkpoint(mount: Callable[[str], Path]) -> None:
    folder = mount("size=256k")
    save(folder, 1, state(1), {})
    with pytest.raises(StorageError, match=r"cannot write .*checkpoints/2: the disk is full"):
        save(folder, 2, {"big": np.zeros(100_000)}, {}, keep=1)
    assert_untouched(folder)
    with pytest.raises(StorageError, match="the disk is full"):
        save(folder, 2, state(2), {"big": "x" * 300_000}, keep=1)
    assert_untouched(folder)
    save(folder, 2, state(2), {})
    assert load_latest(folder).timestep == 2


@pytest.mark.faults
def test_a_read_only_disk_leaves_the_previous_checkpoint(mount: Callable[[str], Path]) -> None:
    folder = mount("size=256k")
    save(folder, 1, state(1), {})
    mount("ro")
    with pytest.raises(StorageError, match="read-only"):
        save(folder, 2, state(2), {})
    assert_untouched(folder)


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1, state(1), {})
    shelf = tmp_path / "checkpoints"
    shelf.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="permission"):
            save(tmp_path, 2, state(2), {})
        assert_untouched(tmp_path)
    finally:
        shelf.chmod(0o755)


# Each child saves and kills itself at its n-th file operation, for n = 0, 1, 2, ... until one survives.
KILLED_EVERYWHERE = """
import os, shutil, signal, sys
import numpy as np
import safetensors.numpy
from steppe.records import checkpoints

folder, timestep = sys.argv[1], int(sys.argv[2])
TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.listdir", "os.scandir"}
checkpoints._steppe_version()

def child(kill_at):
    count = 0
    def touch(event, arguments):
        nonlocal count
        if event in TOUCHES:
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
    sys.addaudithook(touch)
    checkpoints.save(folder, timestep, {"a": np.full(1000, 2.0)}, {"n": 2}, keep=1)
    os._exit(0)

for kill_at in range(1000):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    checkpoints.save(folder, 1, {"a": np.full(1000, 1.0)}, {"n": 1})
    pid = os.fork()
    if pid == 0:
        child(kill_at)
    survived = os.waitpid(pid, 0)[1] == 0
    loaded = checkpoints.load_latest(folder)
    assert loaded.skipped == [], (kill_at, loaded.skipped)
    assert np.all(loaded.arrays["a"] == loaded.manifest["n"]), kill_at
    for name in os.listdir(folder + "/checkpoints"):
        half = set(os.listdir(f"{folder}/checkpoints/{name}")) != {"state.json", "state.safetensors"}
        assert not half or name.startswith(".tmp-"), (kill_at, name)
    assert not survived or loaded.manifest["n"] == 2
    checkpoints.save(folder, timestep + 1, {"a": np.zeros(1)}, {}, keep=1)
    assert os.listdir(folder + "/checkpoints") == [str(timestep + 1)], (kill_at, os.listdir(folder + "/checkpoints"))
    if survived:
        print(kill_at)
        break
"""


@pytest.mark.faults
@pytest.mark.parametrize("timestep", [1, 2])
def test_a_kill_at_any_disk_operation_leaves_a_whole_checkpoint(tmp_path: Path, timestep: int) -> None:
    command = [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path / "run"), str(timestep)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 10


def test_a_reader_finds_a_checkpoint_while_the_writer_replaces_the_listed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, state(1), {})
    listed = checkpoints._candidates
    calls = 0

    def list_then_prune(shelf: Path) -> list[Path]:
        nonlocal calls
        calls += 1
        found = listed(shelf)
        if calls == 1:
            monkeypatch.setattr(checkpoints, "_candidates", listed)
            save(tmp_path, 2, state(2), {}, keep=1)
            monkeypatch.setattr(checkpoints, "_candidates", list_then_prune)
        return found

    monkeypatch.setattr(checkpoints, "_candidates", list_then_prune)
    assert load_latest(tmp_path).timestep == 2


def test_a_deleted_run_folder_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="it may have been moved or deleted"):
        save(tmp_path / "gone", 5, state(0), {})
    assert not (tmp_path / "gone").exists()


def test_the_newest_readable_manifest_is_returned_without_its_arrays(tmp_path: Path) -> None:
    assert latest_manifest(tmp_path) == {}
    save(tmp_path, 10, state(1), {"threads": 1})
    newest = save(tmp_path, 20, state(2), {"threads": 2})
    assert latest_manifest(tmp_path) == {"threads": 2}
    (newest / "state.json").write_text("{")
    assert latest_manifest(tmp_path) == {"threads": 1}
