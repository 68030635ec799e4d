from __future__ import annotations

import signal

import pytest
from processes import ENDLESS, Command, Run, Steppe, start_training, wait_until

from steppe.records.checkpoints import load_latest


@pytest.fixture
def training(steppe: Steppe) -> tuple[Command, Run]:
    """A command that trains `first` and has saved once."""
    return start_training(steppe, "first")


def test_ctrl_c_saves_and_pauses(training: tuple[Command, Run]) -> None:
    command, run = training
    command.send(signal.SIGINT)
    answer = command.answer()
    assert answer.code == 130
    assert answer.err == ""
    assert "pausing: saving a checkpoint (Ctrl-C again ends at once)\n" in answer.out
    assert 'experiment "first" is paused: asked to pause\n' in answer.out
    assert "\n  steppe experiment resume -e first\n" in answer.out
    assert (run.state, run.status["reason"]) == ("paused", "asked to pause")
    assert load_latest(run.path).timestep == run.status["timestep"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGTERM, 143, "stopped"), (signal.SIGHUP, 129, "paused")]
)
def test_sigterm_stops_and_sighup_pauses_after_saving(
    training: tuple[Command, Run], number: signal.Signals, code: int, state: str
) -> None:
    command, run = training
    command.send(number)
    assert command.answer().code == code
    assert run.state == state
    assert load_latest(run.path).timestep == run.status["timestep"]


@pytest.mark.faults
def test_a_second_ctrl_c_ends_at_once_and_keeps_the_checkpoints(training: tuple[Command, Run], steppe: Steppe) -> None:
    command, run = training
    command.send(signal.SIGINT)
    wait_until(lambda: "pausing:" in command.out or command.has_ended, "it noticed the first Ctrl-C", pause=0)
    command.send(signal.SIGINT)
    answer = command.answer()
    assert (answer.code, answer.err) == (130, "")
    # The run may have paused in the moment between the two.
    assert run.state in ("stopped", "paused")
    if run.state == "stopped":
        assert run.status["reason"].startswith("ended at once by a second Ctrl-C")
    assert load_latest(run.path).skipped == []
    again = steppe("experiment", "resume", "-e", "first", "--set", f"total_timesteps={run.checkpoints[-1] + 100}")
    assert again.code == 0, again.err


@pytest.mark.faults
def test_ctrl_c_during_the_start_pauses_before_the_first_timestep(steppe: Steppe) -> None:
    run = steppe.run("first")
    command = steppe.launch("train", *ENDLESS, "-n", "first")
    wait_until(lambda: (run.path / "status.json").exists() and run.state == "starting", "it owns the folder", pause=0)
    command.send(signal.SIGINT)
    assert command.answer().code == 130
    assert (run.state, run.status["timestep"]) == ("paused", 0)
    assert run.checkpoints == [0]


@pytest.mark.faults
def test_commands_pause_resume_and_stop_a_detached_run(steppe: Steppe) -> None:
    run = steppe.run("first")
    answer = steppe("train", *ENDLESS, "-n", "first", "--detach")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f'experiment "first" is training in process {run.status["pid"]}; watch it with:\n')
    wait_until(lambda: run.has_saved_since(0), "it has saved")

    for words in (["start"], ["start", "--resume"], ["start", "--force"], ["resume"]):
        twice = steppe("experiment", *words, "-e", "first")
        assert (twice.code, twice.err) == (
            2,
            f'error: experiment "first" is running already (process {run.status["pid"]}); '
            "stop it first: steppe experiment stop -e first\n",
        )
    delete = steppe("experiment", "delete", "-e", "first", "--force")
    assert (delete.code, run.state) == (2, "running")

    paused = steppe("experiment", "pause", "-e", "first")
    at = run.status["timestep"]
    assert (paused.code, run.state, load_latest(run.path).timestep) == (0, "paused", at)
    assert paused.out.startswith(f'experiment "first" is paused at timestep {at:,}; train on with:\n')

    assert steppe("experiment", "resume", "-e", "first", "--detach").code == 0
    wait_until(lambda: run.has_saved_since(at), "it has trained on")
    stopped = steppe("experiment", "stop", "-e", "first")
    assert (stopped.code, run.state, load_latest(run.path).timestep) == (0, "stopped", run.status["timestep"])
    again = steppe("experiment", "stop", "-e", "first")
    assert (again.code, again.err) == (2, 'error: experiment "first" is stopped already\n')
