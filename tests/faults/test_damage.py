from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import Run, Steppe

from steppe.policies.policy import load_policy
from steppe.records.checkpoints import load_latest


def truncate(checkpoint: Path) -> str:
    file = checkpoint / "state.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    return f"state.safetensors has {len(data) // 2} bytes where {len(data)} were written"


def flip_a_bit(checkpoint: Path) -> str:
    file = checkpoint / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return "the sha256 of state.safetensors is not the one that was written: its bytes have changed"


def flip_a_bit_of_the_manifest(checkpoint: Path) -> str:
    file = checkpoint / "state.json"
    data = bytearray(file.read_bytes())
    data[data.index(b'"sha256": "') + len(b'"sha256": "')] ^= 1
    file.write_bytes(data)
    return "the sha256 in state.json is not that of its content: its bytes have changed"


def lose_the_arrays(checkpoint: Path) -> str:
    (checkpoint / "state.safetensors").unlink()
    return "state.safetensors cannot be read: No such file or directory"


def lose_the_manifest(checkpoint: Path) -> str:
    (checkpoint / "state.json").unlink()
    return "state.json cannot be read: No such file or directory"


DAMAGES = [truncate, flip_a_bit, flip_a_bit_of_the_manifest, lose_the_arrays, lose_the_manifest]
LONGER = ("--set", "total_timesteps=8000")


@pytest.fixture(scope="module")
def undamaged(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The state at 8,000 timesteps of the trained run when it is resumed with all its checkpoints intact."""
    folder = tmp_path_factory.mktemp("undamaged")
    shutil.copytree(trained, folder / "run")
    steppe = Steppe(folder, folder / "outputs")
    try:
        assert steppe("experiment", "resume", "-e", "./run", *LONGER, "-q").code == 0
    finally:
        steppe.end()
    return load_latest(folder / "run").arrays


@pytest.mark.faults
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_run_continues_exactly_from_the_one_before(
    steppe: Steppe, run: Run, undamaged: dict[str, np.ndarray], damage: Callable[[Path], str]
) -> None:
    error = damage(run.path / "checkpoints" / "6016")
    answer = steppe("experiment", "resume", "-e", "run", *LONGER)
    assert answer.code == 0, answer.err
    notice = f"checkpoint 6016 was skipped: {error}"
    assert answer.out.count(f"note: {notice}\n") == 1
    assert notice in run.status["notices"]
    assert "resumed at timestep 4032" in run.log
    arrays = load_latest(run.path).arrays
    assert all(arrays[name].tobytes() == array.tobytes() for name, array in undamaged.items())


def test_when_all_checkpoints_are_damaged_one_sentence_says_so_and_nothing_is_deleted(steppe: Steppe, run: Run) -> None:
    damages = {6016: truncate, 4032: flip_a_bit, 2048: lose_the_manifest}
    words = [
        f"checkpoint {timestep} was skipped: {damage(run.path / 'checkpoints' / str(timestep))}"
        for timestep, damage in damages.items()
    ]
    before = _files(run.path)
    answer = steppe("experiment", "resume", "-e", "run", *LONGER)
    assert (answer.code, answer.err) == (
        1,
        f"error: no checkpoint in {run.path / 'checkpoints'} can be used ({'; '.join(words)}); "
        "start the experiment without resuming\n",
    )
    after = _files(run.path)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"status.json", "log.txt", "experiment.json"}
    assert (run.state, run.status["reason"]) == ("completed", "all 6,000 timesteps were run")
    why = answer.err.removeprefix("error: ").rstrip()
    assert run.status["notices"] == [f"the last resume could not begin: {why}"]
    load_policy(run.path / "policy")


def test_a_run_with_an_unreadable_status_is_resumed_from_its_newest_checkpoint(steppe: Steppe, run: Run) -> None:
    (run.path / "status.json").write_text('{"state": "comple')
    answer = steppe("experiment", "resume", "-e", "run", *LONGER)
    assert answer.code == 0, answer.err
    assert "resumed at timestep 6016" in run.log
    assert run.state == "completed"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
