from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kube_memory import MemoryKube

from steppe import runners
from steppe.clusters import registry
from steppe.errors import CheckpointError, TrainingDiverged
from steppe.experiments.on_cluster import location
from steppe.experiments.on_cluster.address import ClusterAddress, write_address
from steppe.experiments.run_folder import locks
from steppe.experiments.run_folder.store import RunFolder, Status
from steppe.platforms.kubernetes.client.kubeapi import KubeError
from steppe.platforms.kubernetes.client.remote_run import RemoteRun
from steppe.records import checkpoints
from steppe.runners import Progress, RunOutcome


@pytest.fixture
def first(steppe: Any, project: Path, trained: Any) -> RunFolder:
    """A new experiment called first."""
    assert steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "first").code == 0
    return RunFolder(project / "experiments" / "first")


def test_new_writes_the_whole_spec_with_every_flag(steppe: Any, project: Path, trained: Any) -> None:
    answer = steppe(
        *("experiment", "new", "-n", "all", "-A", "dqn", "-M", "mlp_256_relu", "-E", "cartpole", "-C", "single_node"),
        *("-e", "7", "-t", "1e3", "--max-timesteps-per-episode", "50", "-d", "-m", "async", "-w", "5", "-p", "2"),
        *("--repeat-actions", "2", "--saver-frequency", "100e", "--summary-frequency", "60", "--num-envs", "4"),
        *("--set", "agent.discount=0.5", "--set", "evaluation.every=10", "--stop-at-return", "-3", "--debug-logging"),
        *("--platform", "ray", "--address", "10.0.0.1:6379"),
    )
    assert answer.code == 0, answer.err
    spec = RunFolder(project / "experiments" / "all").spec()
    assert (spec.name, spec.agent.type, spec.agent.settings["discount"]) == ("all", "dqn", 0.5)
    assert spec.network is not None
    assert spec.network.root[0].model_dump()["size"] == 256
    assert spec.cluster is not None
    assert (spec.environment.id, spec.cluster.name) == ("CartPole-v1", "single-node")
    assert (spec.episodes, spec.total_timesteps, spec.max_timesteps_per_episode) == (7, 1000, 50)
    assert (spec.deterministic, spec.run_mode, spec.num_workers, spec.num_parameter_servers) == (True, "async", 5, 2)
    assert (spec.repeat_actions, str(spec.saver_frequency), str(spec.summary_frequency)) == (2, "100e", "60s")
    assert (spec.num_envs, spec.stop_at_return, spec.debug_logging, spec.platform) == (4, -3.0, True, "ray")
    assert spec.ray.address == "10.0.0.1:6379"
    assert spec.evaluation is not None
    assert spec.evaluation.every == 10
    assert spec.seed is not None


def test_new_takes_the_files_name_and_seed(steppe: Any, project: Path, trained: Any) -> None:
    assert steppe("experiment", "new", "-f", "cartpole_ppo").code == 0
    assert RunFolder(project / "experiments" / "cartpole_ppo").spec().seed == 1


def test_new_refuses_a_name_that_exists(steppe: Any, first: RunFolder) -> None:
    answer = steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "first")
    assert (answer.code, "exists already" in answer.err) == (2, True)
    assert steppe("experiment", "new", "-f", "cartpole_dqn", "-n", "first", "--force").code == 0
    assert first.spec().agent.type == "dqn"


def test_new_with_start_trains_and_tells_where_everything_is(steppe: Any, project: Path, trained: Any) -> None:
    answer = steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "first", "--start")
    assert answer.code == 0
    assert [(spec.name, resume) for spec, resume in trained] == [("first", False)]
    assert 'experiment "first" is completed: all 500000 timesteps were run' in answer.out
    assert "score        12.5 (mean return of the last 9 episodes)" in answer.out
    assert "experiments/first/checkpoints/" in answer.out
    assert "note: mind the gap" in answer.out
    assert "steppe experiment show -e first" in answer.out


def test_quiet_says_nothing(steppe: Any, first: RunFolder) -> None:
    assert steppe("experiment", "start", "-e", "first", "-q").out == ""


def test_start_works_from_a_folder_below(steppe: Any, first: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(first.path.parent.parent / "configs" / "agents")
    assert steppe("experiment", "start", "-e", "first").code == 0
    assert first.local_status().state == "completed"


def test_start_takes_a_path(steppe: Any, first: RunFolder, tmp_path_factory: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    answer = steppe("experiment", "start", "-e", str(first.path))
    assert answer.code == 0
    assert f"steppe experiment show -e {first.path}" in answer.out


@pytest.mark.parametrize("resume", [["start", "-R"], ["start", "--resume"], ["resume"]])
def test_a_completed_experiment_is_resumed_with_more_to_do(
    steppe: Any, first: RunFolder, trained: Any, resume: list[str]
) -> None:
    steppe("experiment", "start", "-e", "first")
    assert "--set total_timesteps=1000000" in steppe("experiment", *resume, "-e", "first").err
    answer = steppe("experiment", *resume, "-e", "first", "--set", "total_timesteps=1000000")
    assert answer.code == 0
    assert [resumed for _, resumed in trained] == [False, True]
    assert first.local_status().timestep == 1_000_000


def test_start_again_needs_resume_or_force(steppe: Any, first: RunFolder) -> None:
    steppe("experiment", "start", "-e", "first")
    answer = steppe("experiment", "start", "-e", "first")
    assert answer.code == 2
    assert "steppe experiment resume -e first" in answer.err
    assert steppe("experiment", "start", "-e", "first", "--force").code == 0
    assert len(list(first.path.glob("before-*"))) == 1


def test_new_without_name_and_agent_is_numbered_and_learns_with_ppo(steppe: Any, project: Path, trained: Any) -> None:
    for _ in range(2):
        assert steppe("experiment", "new", "-E", "CartPole-v1").code == 0
    names = sorted(folder.name for folder in (project / "experiments").iterdir())
    assert names == ["CartPole-v1-ppo-1", "CartPole-v1-ppo-2"]
    assert RunFolder(project / "experiments" / "CartPole-v1-ppo-1").spec().agent.type == "ppo"


def test_new_needs_an_environment(steppe: Any, project: Path) -> None:
    answer = steppe("experiment", "new", "-n", "first")
    assert (answer.code, answer.err) == (
        2,
        "error: no environment is given; try: steppe experiment new -f cartpole_ppo -n first\n",
    )


def test_a_name_can_be_set_too(steppe: Any, project: Path, trained: Any) -> None:
    assert steppe("experiment", "new", "-f", "cartpole_ppo", "--set", "name=mine").code == 0
    assert steppe("train", "CartPole-v1", "-q", "--set", "name=other").code == 0
    assert sorted(folder.name for folder in (project / "experiments").iterdir()) == ["mine", "other"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes training fail, by default after a checkpoint."""

    def fail_with(error: Exception, checkpoint: bool = True) -> None:
        def run(spec: Any, folder: Path, *, resume: bool, request: Any, on_progress: Any) -> None:
            on_progress(Progress("compiling"))
            on_progress(Progress("training", 40, 1, 4, 12.5, 11.0, 13.0, 1000.0, 0.5, {}, ("mind the gap",)))
            if checkpoint:
                checkpoints.save(folder, 40, {"a": np.zeros(1)}, {})
            raise error

        monkeypatch.setattr(runners, "run", run)

    return fail_with


def test_a_failed_run_prints_its_results_and_the_next_commands(steppe: Any, first: RunFolder, failing: Any) -> None:
    failing(TrainingDiverged("the loss became NaN"))
    answer = steppe("experiment", "start", "-e", "first")
    assert (answer.code, answer.err) == (1, "error: the loss became NaN\n")
    lines = answer.out.splitlines()
    assert lines[-9:] == [
        'experiment "first" has failed',
        "  score        12.5 (mean return of the last episode)",
        "  trained      40 timesteps, 1 episodes, 4 updates in 0 s, 80 timesteps/s",
        "  checkpoints  experiments/first/checkpoints/",
        "  report       experiments/first/report.html",
        "  log          experiments/first/log.txt",
        "try next:",
        "  steppe experiment resume -e first",
        "  steppe experiment show -e first",
    ]
    assert answer.out.count("mind the gap") == 1


def test_a_failed_run_without_a_checkpoint_can_be_started_anew(steppe: Any, first: RunFolder, failing: Any) -> None:
    failing(ZeroDivisionError("boom"), checkpoint=False)
    answer = steppe("experiment", "start", "-e", "first")
    assert answer.code == 1
    assert "  steppe experiment start -e first --force\n" in answer.out
    assert "resume" not in answer.out


def test_a_quiet_run_that_fails_says_only_why(steppe: Any, first: RunFolder, failing: Any) -> None:
    failing(TrainingDiverged("the loss became NaN"))
    answer = steppe("experiment", "start", "-e", "first", "-q")
    assert (answer.out, answer.err) == ("", "error: the loss became NaN\n")


def test_results_of_another_process_are_not_printed(steppe: Any, first: RunFolder, monkeypatch: Any) -> None:
    def overtaken(*_: Any, **__: Any) -> None:
        first.write_status(Status("failed", pid=os.getpid() + 1))
        raise TrainingDiverged("the loss became NaN")

    monkeypatch.setattr("steppe.experiments.process.run.run", overtaken)
    assert "has failed" not in steppe("experiment", "start", "-e", "first").out


def test_a_resume_that_cannot_begin_leaves_the_experiment_completed(
    steppe: Any, first: RunFolder, monkeypatch: Any
) -> None:
    steppe("experiment", "start", "-e", "first")

    def fail(*_: Any, **__: Any) -> None:
        raise CheckpointError("no checkpoint can be used")

    monkeypatch.setattr(runners, "run", fail)
    answer = steppe("experiment", "resume", "-e", "first", "--set", "total_timesteps=1e6")
    assert (answer.code, answer.err) == (1, "error: no checkpoint can be used\n")
    assert "has failed" not in answer.out
    assert first.local_status().state == "completed"
    shown = steppe("experiment", "show", "-e", "first").out
    assert "the last resume could not begin: no checkpoint can be used" in shown


def test_a_decaying_learning_rate_that_moves_is_noted(steppe: Any, first: RunFolder, trained: Any) -> None:
    steppe("experiment", "new", "-f", "cartpole_ppo", "-n", "decaying", "--set", "agent.learning_rate_decay=linear")
    steppe("experiment", "start", "-e", "decaying")
    answer = steppe("experiment", "resume", "-e", "decaying", "--set", "total_timesteps=1e6")
    assert answer.code == 0
    assert (
        "note: learning_rate_decay is linear, so the new total_timesteps moves it: from timestep 500,000 on the "
        "learning rate is 0.00015 instead of 0, and it reaches zero at timestep 1,000,000\n"
    ) in answer.out


def test_notices_are_printed_once(steppe: Any, first: RunFolder, monkeypatch: Any) -> None:
    def run(spec: Any, folder: Path, *, resume: bool, request: Any, on_progress: Any) -> RunOutcome:
        on_progress(Progress("training", 40, notices=("seen",)))
        return RunOutcome("completed", "done", 40, 1, 4, 1.0, 0.5, ["seen", "new"])

    monkeypatch.setattr(runners, "run", run)
    out = steppe("experiment", "start", "-e", "first").out
    assert (out.count("note: seen\n"), out.count("note: new\n")) == (1, 1)


def test_list_shows_every_experiment(steppe: Any, first: RunFolder) -> None:
    steppe("experiment", "start", "-e", "first")
    steppe("experiment", "new", "-f", "cartpole_dqn", "-n", "second")
    heading, *rows = steppe("experiment", "list").out.splitlines()
    assert heading.split() == ["NAME", "STATE", "RUN", "MODE", "ENVIRONMENT", "AGENT", "TIMESTEPS", "RETURN", "AGE"]
    assert rows[0].split()[:7] == ["first", "completed", "single", "CartPole-v1", "ppo", "500k", "12.5"]
    assert rows[1].split()[:5] == ["second", "created", "single", "CartPole-v1", "dqn"]


def test_list_as_json_is_for_programs(steppe: Any, first: RunFolder) -> None:
    (row,) = json.loads(steppe("experiment", "list", "--json").out)
    assert (row["name"], row["state"], row["run_mode"], row["timestep"]) == ("first", "created", "single", 0)


def test_list_goes_on_past_a_broken_experiment(steppe: Any, first: RunFolder) -> None:
    (first.path / "status.json").write_text("{")
    answer = steppe("experiment", "list")
    assert answer.code == 0
    assert answer.out.splitlines()[1].split()[1] == "failed"
    assert "status.json is not valid JSON" in answer.out


def test_list_finds_a_run_that_died(steppe: Any, first: RunFolder) -> None:
    first.write_status(Status("running", host=socket.gethostname(), pid=1))
    assert steppe("experiment", "list").out.splitlines()[1].split()[1] == "failed"
    assert "ended without a word" in steppe("experiment", "show", "-e", "first").out


def test_show_tells_state_spec_and_files(steppe: Any, first: RunFolder) -> None:
    steppe("experiment", "start", "-e", "first")
    out = steppe("experiment", "show", "-e", "first").out
    assert "id                      CartPole-v1\n" in out
    assert "kubernetes" not in out
    everything = steppe("experiment", "show", "-e", "first", "--all").out
    assert "kubernetes\n    engine" in everything
    assert "500,000 timesteps, 9 episodes, 4 updates" in out
    assert "checkpoints/" in out
    data = json.loads(steppe("experiment", "show", "-e", "first", "--json").out)
    assert data["status"]["state"] == "completed"
    assert data["spec"]["agent"]["type"] == "ppo"
    assert "experiment.json" in data["files"]


def test_logs_prints_the_log(steppe: Any, first: RunFolder) -> None:
    assert "has no log yet" in steppe("experiment", "logs", "-e", "first").err
    steppe("experiment", "start", "-e", "first")
    for follow in ([], ["--follow"]):
        assert "complete: all 500000 timesteps were run" in steppe("experiment", "logs", "-e", "first", *follow).out


@pytest.mark.parametrize("command", ["pause", "stop"])
def test_an_experiment_that_does_not_run_cannot_be_ended(steppe: Any, first: RunFolder, command: str) -> None:
    answer = steppe("experiment", command, "-e", "first")
    assert answer.code == 2
    assert "has not been started yet" in answer.err


def test_stop_marks_a_paused_experiment(steppe: Any, first: RunFolder) -> None:
    first.write_status(Status("paused", timestep=5))
    answer = steppe("experiment", "stop", "-e", "first")
    assert (answer.code, first.local_status().state) == (0, "stopped")
    assert "is stopped at timestep 5" in answer.out


def test_download_copies_to_a_folder_of_its_own(steppe: Any, first: RunFolder, here: Path) -> None:
    assert steppe("experiment", "download", "-e", "first").code == 0
    assert (here / "first-results" / "experiment.json").is_file()
    assert steppe("experiment", "download", "-e", "first", "--to", "copy").code == 0
    assert (here / "copy" / "experiment.json").is_file()
    assert "--force" in steppe("experiment", "download", "-e", "first", "--to", "copy").err


@pytest.mark.parametrize(("answer", "remains"), [("y\n", False), ("n\n", True), ("", True)])
def test_delete_asks_first(
    steppe: Any, first: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any, answer: str, remains: bool
) -> None:
    typed = tmp_path_factory.mktemp("typed") / "answer"
    typed.write_text(answer)
    with typed.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        code = steppe("experiment", "delete", "-e", "first").code
    assert (code, first.exists) == (int(remains), remains)


def test_delete_with_force_does_not_ask(steppe: Any, first: RunFolder) -> None:
    assert steppe("experiment", "delete", "-e", "first", "--force").code == 0
    assert not first.path.exists()


def test_delete_refuses_a_running_experiment(steppe: Any, first: RunFolder) -> None:
    first.write_status(Status("running", host=socket.gethostname(), pid=os.getpid()))
    descriptor = locks.acquire(first.path)
    assert descriptor is not None
    answer = steppe("experiment", "delete", "-e", "first", "--force")
    locks.release(descriptor)
    assert answer.code == 2
    assert "is running and cannot be deleted" in answer.err
    assert first.exists


def test_delete_stays_inside_experiments(steppe: Any, first: RunFolder, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "experiment.json").write_text("{}")
    answer = steppe("experiment", "delete", "-e", "./mine", "--force")
    assert answer.code == 2
    assert "delete it yourself" in answer.err
    assert (here / "mine" / "experiment.json").exists()


@pytest.fixture
def kube(first: RunFolder, monkeypatch: pytest.MonkeyPatch) -> MemoryKube:
    """The cluster that the first experiment is on."""
    server = MemoryKube()

    @contextlib.contextmanager
    def reached(place: ClusterAddress) -> Iterator[tuple[None, RemoteRun]]:
        yield None, RemoteRun(server, place.name)  # type: ignore[arg-type]

    write_address(first, ClusterAddress("lab", "space", "steppe-first-1", start=1))
    monkeypatch.setattr(location, "reach", reached)
    monkeypatch.setattr(registry, "knows", lambda name: True)
    return server


@pytest.mark.parametrize(("state", "more"), [("running", []), ("paused", []), ("paused", ["--stored"])])
def test_deleting_on_an_unreachable_cluster_names_the_way_out(
    steppe: Any, first: RunFolder, kube: MemoryKube, state: Any, more: list[str]
) -> None:
    first.write_status(Status(state))
    kube.is_away = True
    answer = steppe("experiment", "delete", "-e", "first", "--force", *more)
    assert answer.code == 1
    way_out = "if that is gone for good: steppe cluster delete -c lab --forget, and then this again"
    assert " ".join(answer.err.split()) == f"error: no answer; {way_out}"
    assert first.exists


def test_a_refused_deletion_is_not_taken_for_an_unreachable_cluster(
    steppe: Any, first: RunFolder, kube: MemoryKube
) -> None:
    first.write_status(Status("paused"))

    def forbid(verb: str, kind: str) -> None:
        raise KubeError("that is forbidden", 403)

    kube.after = forbid
    answer = steppe("experiment", "delete", "-e", "first", "--force")
    assert (answer.code, answer.err.strip()) == (1, "error: that is forbidden")


def test_report_is_written_again(steppe: Any, first: RunFolder) -> None:
    steppe("experiment", "start", "-e", "first")
    (first.path / "report.html").unlink()
    assert steppe("report", "-e", "first").out == "wrote experiments/first/report.html\n"
    assert (first.path / "report.html").is_file()
