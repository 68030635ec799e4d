from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.errors import SpecError, StateError, SteppeError, UserError
from steppe.experiments import lifecycle
from steppe.experiments.locations import location_of, location_to_start
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import RunFolder, Status, Store
from steppe.records import checkpoints
from steppe.runners import Progress, RunOutcome
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.agent import AgentSpec


@pytest.fixture(autouse=True)
def _no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "check", lambda spec, start, resumed=None: [])


@pytest.fixture
def ended(folder: RunFolder) -> Any:
    """Puts the experiment into an ended state, by default with a checkpoint."""

    def end(state: str, checkpoint: bool = True, **fields: Any) -> RunFolder:
        folder.write_status(Status(state=state, **fields))  # type: ignore[arg-type]
        if checkpoint:
            checkpoints.save(folder.path, 10, {"a": np.zeros(1)}, {})
        return folder

    return end


def test_a_run_without_a_name_is_called_after_what_it_trains(store: Store, spec: ExperimentSpec) -> None:
    first, second = (lifecycle.create(spec, store) for _ in range(2))
    assert (first.name, second.name) == ("CartPole-v1-random-1", "CartPole-v1-random-2")
    assert first.spec().name == "CartPole-v1-random-1"


@pytest.mark.parametrize("id", ["my.envs:make", "ALE/Pong-v5", "..", "a" * 200, "::", "a..b/.c"])
def test_any_environment_gives_a_valid_name(store: Store, spec: ExperimentSpec, id: str) -> None:
    odd = spec.model_copy(update={"environment": spec.environment.model_copy(update={"id": id})})
    folder = lifecycle.create(odd, store)
    assert folder.path.parent == store.path
    assert folder.spec().name == folder.name


def test_a_missing_seed_is_drawn_and_written_down(store: Store, spec: ExperimentSpec) -> None:
    seedless = spec.model_copy(update={"seed": None})
    seeds = [lifecycle.create(seedless, store).spec().seed for _ in range(3)]
    assert None not in seeds
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("state", ["paused", "stopped", "failed", "completed"])
def test_an_ended_experiment_needs_resume_or_force(ended: Any, state: str) -> None:
    folder = ended(state, timestep=10)
    with pytest.raises(StateError, match=r"experiment resume -e first.*start -e first --force"):
        lifecycle.prepare(folder)
    lifecycle.prepare(folder, resume=True)
    lifecycle.prepare(folder, force=True)
    assert folder.local_status().state == "created"
    (aside,) = folder.path.glob("before-*")
    assert (aside / "checkpoints").is_dir()
    assert not (folder.path / "checkpoints").exists()


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_an_ended_experiment_without_a_checkpoint_can_only_start_anew(ended: Any, state: str) -> None:
    folder = ended(state, checkpoint=False)
    with pytest.raises(StateError, match=r"left no checkpoint.*--force"):
        lifecycle.prepare(folder)
    with pytest.raises(StateError, match="has no checkpoint to resume from"):
        lifecycle.prepare(folder, resume=True)


def test_an_experiment_that_never_started_is_not_resumed(folder: RunFolder) -> None:
    with pytest.raises(StateError, match="has not been started yet"):
        lifecycle.prepare(folder, resume=True)


def test_resume_and_force_exclude_each_other(ended: Any) -> None:
    with pytest.raises(UserError, match="one of the two"):
        lifecycle.prepare(ended("paused"), resume=True, force=True)


def test_a_limit_below_what_is_trained_is_refused_on_resume(ended: Any) -> None:
    folder = ended("paused", timestep=20)
    with pytest.raises(UserError, match=r"total_timesteps=10 leaves nothing .* had 20 already.*total_timesteps=40"):
        lifecycle.prepare(folder, resume=True, sets=["total_timesteps=10"])
    assert folder.spec().total_timesteps == 30


def test_a_run_that_was_killed_may_repeat_what_came_after_its_checkpoint(folder: RunFolder) -> None:
    folder.write_status(Status(state="failed", timestep=20, episode=4))
    checkpoints.save(folder.path, 10, {"a": np.zeros(1)}, {"timestep": 10, "episode": 2})
    with pytest.raises(UserError, match=r"total_timesteps=10 leaves nothing .* had 10 already.*total_timesteps=20"):
        lifecycle.prepare(folder, resume=True, sets=["total_timesteps=10"])
    lifecycle.prepare(folder, resume=True, sets=["total_timesteps=15", "episodes=3"])
    assert folder.spec().limits == (3, 15)


def test_the_limit_that_is_proposed_is_above_what_is_trained(ended: Any) -> None:
    folder = ended("completed", timestep=100)
    with pytest.raises(StateError, match="--set total_timesteps=200"):
        lifecycle.prepare(folder, resume=True)


def test_a_completed_experiment_is_resumed_with_more_to_do(ended: Any) -> None:
    folder = ended("completed", timestep=30)
    with pytest.raises(StateError, match=r"completed \(30 timesteps\).*--set total_timesteps=60"):
        lifecycle.prepare(folder, resume=True)
    lifecycle.prepare(folder, resume=True, sets=["total_timesteps=60"])
    assert folder.spec().total_timesteps == 60


@pytest.mark.parametrize(
    ("fields", "status", "option"),
    [
        ({"total_timesteps": None, "episodes": 5}, {"episode": 5}, "--set episodes=10"),
        ({"stop_at_return": 4.0}, {"mean_return": 4.5}, "--set stop_at_return=null"),
    ],
)
def test_the_limit_that_ended_a_completed_experiment_is_named(
    ended: Any, fields: Any, status: Any, option: str
) -> None:
    folder = ended("completed", **status)
    folder.write_spec(folder.spec().model_copy(update=fields))
    with pytest.raises(StateError, match=option):
        lifecycle.prepare(folder, resume=True)


def test_fields_that_decide_what_is_learned_cannot_change_on_resume(ended: Any) -> None:
    folder = ended("paused")
    for change in ({"sets": ["agent.discount=0.5"]}, {"fields": {"agent": "dqn"}}):
        with pytest.raises(UserError, match=r"^agent cannot change when an experiment is resumed; total_timesteps, "):
            lifecycle.prepare(folder, resume=True, **change)
    with pytest.raises(SpecError, match='did you mean "total_timesteps"'):
        lifecycle.prepare(folder, resume=True, sets=["total_timestep=60"])
    assert folder.spec().agent.type == "random"


def in_mode(folder: RunFolder, mode: str, **fields: Any) -> RunFolder:
    """Changes the experiment's run mode."""
    words = folder.spec().model_dump(mode="json") | {"run_mode": mode} | fields
    folder.write_spec(ExperimentSpec.model_validate(words))
    return folder


@pytest.mark.parametrize("platform", ["local", "ray", "kubernetes"])
def test_an_async_run_may_be_resumed_with_another_number_of_workers(ended: Any, platform: str) -> None:
    ray = {"address": "127.0.0.1:6379"} if platform == "ray" else {}
    folder = in_mode(ended("paused"), "async", agent="dqn", platform=platform, ray=ray)
    lifecycle.prepare(folder, resume=True, sets=["num_workers=7"])
    assert folder.spec().num_workers == 7
    with pytest.raises(
        UserError, match=r"^num_envs cannot change .*, kubernetes, num_workers, .* can, or make another"
    ):
        lifecycle.prepare(folder, resume=True, sets=["num_envs=7"])


def test_a_distributed_run_may_be_resumed_with_other_numbers_of_workers_and_servers(ended: Any) -> None:
    folder = in_mode(ended("paused"), "distributed", agent="a2c")
    lifecycle.prepare(folder, resume=True, sets=["num_workers=7", "num_parameter_servers=2"])
    assert (folder.spec().num_workers, folder.spec().num_parameter_servers) == (7, 2)


def test_synchronous_workers_who_make_one_batch_together_keep_their_number(ended: Any) -> None:
    folder = in_mode(ended("paused"), "distributed", agent="a2c", distributed={"synchronous": True})
    lifecycle.prepare(folder, resume=True, sets=["num_parameter_servers=2"])
    with pytest.raises(UserError, match=r"^num_workers cannot change when an experiment is resumed"):
        lifecycle.prepare(folder, resume=True, sets=["num_workers=7"])


def test_threads_that_learn_themselves_keep_their_number(ended: Any) -> None:
    with pytest.raises(UserError, match=r"^num_workers cannot change when an experiment is resumed"):
        lifecycle.prepare(in_mode(ended("paused"), "multi-threaded"), resume=True, sets=["num_workers=7"])


OPERATIONAL = {
    "async": ["queue_size=9", "patience=60", "evaluation_share=0.5", "worker_timeout=900", "reconnect=9"],
    "distributed": ["max_staleness=9", "worker_timeout=900"],
}
PARTS = {"async": "asynchronous", "distributed": "distributed"}


@pytest.mark.parametrize(("mode", "change"), [(mode, change) for mode in OPERATIONAL for change in OPERATIONAL[mode]])
def test_how_long_one_waits_for_another_may_change_on_resume(ended: Any, mode: str, change: str) -> None:
    folder = in_mode(ended("paused"), mode)
    lifecycle.prepare(folder, resume=True, sets=[f"{PARTS[mode]}.{change}"])
    name, _, value = change.partition("=")
    assert getattr(getattr(folder.spec(), PARTS[mode]), name) == float(value)


def test_where_a_learner_listens_may_change_on_resume(ended: Any) -> None:
    folder = in_mode(ended("paused"), "async")
    there = {"address": "10.0.0.1:7000", "token_file": "t", "tls_cert": "c", "tls_key": "k"}
    lifecycle.prepare(folder, resume=True, fields={"asynchronous": there})
    assert folder.spec().asynchronous.model_dump(include=set(there)) == there


FIXED = {
    "async": ["batch_timesteps=9", "update_to_data=9", "trajectories_per_update=9"],
    "distributed": ["synchronous=true", "rollouts_per_push=9", "overlap=true"],
}


@pytest.mark.parametrize(("mode", "change"), [(mode, change) for mode in FIXED for change in FIXED[mode]])
def test_how_the_work_is_shared_stays_as_it_was(ended: Any, mode: str, change: str) -> None:
    folder, field = in_mode(ended("paused"), mode), f"{PARTS[mode]}.{change.partition('=')[0]}"
    with pytest.raises(UserError, match=rf"^{field} cannot change .*, {PARTS[mode]}\.worker_timeout.* can, or make"):
        lifecycle.prepare(folder, resume=True, sets=[f"{PARTS[mode]}.{change}"])


def test_leaving_out_a_field_that_was_set_is_a_change_too(ended: Any) -> None:
    folder = in_mode(ended("paused"), "async", asynchronous={"update_to_data": 0.5})
    with pytest.raises(UserError, match=r"^asynchronous\.update_to_data cannot change"):
        lifecycle.prepare(folder, resume=True, fields={"asynchronous": {"worker_timeout": 900.0}})
    kept = {"update_to_data": 0.5, "worker_timeout": 900.0}
    lifecycle.prepare(folder, resume=True, fields={"asynchronous": kept})
    assert folder.spec().asynchronous.worker_timeout == 900.0


def test_fields_of_another_run_mode_cannot_change(ended: Any) -> None:
    with pytest.raises(UserError, match=r"^asynchronous cannot change when an experiment is resumed"):
        lifecycle.prepare(ended("paused"), resume=True, sets=["asynchronous.patience=5"])


def test_which_ray_it_runs_on_may_change_on_resume(ended: Any) -> None:
    folder = ended("paused")
    lifecycle.prepare(folder, resume=True, sets=["ray.port=7001"])
    assert folder.spec().ray.port == 7001


@pytest.mark.parametrize("resume", [False, True])
def test_the_name_never_changes(ended: Any, resume: bool) -> None:
    with pytest.raises(UserError, match="the name of an experiment cannot change"):
        lifecycle.prepare(ended("paused"), resume=resume, force=not resume, sets=["name=other"])


def test_fields_change_like_sets_and_none_is_nothing(ended: Any) -> None:
    folder = ended("completed", timestep=10, mean_return=4.5)
    folder.write_spec(folder.spec().model_copy(update={"stop_at_return": 4.0}))
    lifecycle.prepare(folder, resume=True, fields={"stop_at_return": None, "video": False})
    assert (folder.spec().stop_at_return, folder.spec().video) == (None, False)


def test_a_start_may_change_anything_and_take_it_from_a_file(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text('[{"type": "dense", "size": 8}]')
    lifecycle.prepare(folder, sets=["network=small.json", "agent.horizon=4"])
    spec = folder.spec()
    assert spec.network is not None
    assert (spec.network.model_dump()[0]["size"], spec.agent.settings) == (8, {"horizon": 4})


@pytest.fixture
def decaying(ended: Any) -> RunFolder:
    """A completed experiment whose learning rate has fallen to zero, except in its last checkpoint."""
    folder = ended("completed", timestep=30)
    agent = {"type": "ppo", "learning_rate": 0.3, "learning_rate_decay": "linear"}
    folder.write_spec(ExperimentSpec.model_validate(folder.spec().model_dump(mode="json") | {"agent": agent}))
    return folder


def test_more_timesteps_move_a_decaying_learning_rate_with_a_notice(decaying: RunFolder) -> None:
    assert lifecycle.prepare(decaying, resume=True, sets=["total_timesteps=60"]) == [
        "learning_rate_decay is linear, so the new total_timesteps moves it: from timestep 10 on the learning rate "
        "is 0.25 instead of 0.2, and it reaches zero at timestep 60"
    ]


@pytest.mark.parametrize(
    ("decay", "final", "rates"),
    [
        ("linear", 0.15, "is 0.275 instead of 0.25, and it reaches 0.15 at"),
        ("exponential", 0.0003, "is 0.0949 instead of 0.03, and it reaches 0.0003 at"),
        ("cosine", 0.0, "is 0.28 instead of 0.225, and it reaches zero at"),
    ],
)
def test_the_notice_of_a_moved_decay_tells_the_rates_of_the_agents_own_schedule(
    decaying: RunFolder, decay: str, final: float, rates: str
) -> None:
    agent = {"type": "ppo", "learning_rate": 0.3, "learning_rate_decay": decay, "final_learning_rate": final}
    spec = ExperimentSpec.model_validate(decaying.spec().model_dump(mode="json") | {"agent": agent})
    decaying.write_spec(spec)
    (notice,) = lifecycle.prepare(decaying, resume=True, sets=["total_timesteps=60"])
    assert rates in notice


def test_changes_that_leave_a_decaying_learning_rate_alone_give_no_notice(decaying: RunFolder, ended: Any) -> None:
    decaying.write_status(Status("paused", timestep=10))
    assert lifecycle.prepare(decaying, resume=True, sets=["saver_frequency=5s"]) == []
    decaying.write_spec(decaying.spec().model_copy(update={"agent": AgentSpec(type="ppo")}))
    assert lifecycle.prepare(decaying, resume=True, sets=["total_timesteps=60"]) == []


def test_an_experiment_for_a_cluster_that_names_none_is_not_started(store: Store, spec: ExperimentSpec) -> None:
    folder = lifecycle.create(spec.model_copy(update={"platform": "kubernetes"}), store, name="later")
    lifecycle.prepare(folder)
    assert not location_to_start(folder).is_here
    with pytest.raises(UserError, match=r"no cluster; name one: steppe experiment start -e later -c CLUSTER"):
        location_to_start(folder).start()
    assert folder.local_status().state == "created"


def test_a_run_of_this_machine_is_not_resumed_on_a_cluster(folder: RunFolder, trainer: Any) -> None:
    run(folder, trainer=trainer())
    with pytest.raises(StateError, match="are on this machine, so it is resumed here"):
        location_to_start(folder, "anywhere").start(resume=True)


def test_pause_waits_until_it_is_paused(folder: RunFolder, trainer: Any, in_background: Any) -> None:
    held = trainer(hold=True)
    in_background(lambda: run(folder, trainer=held))
    assert held.training.wait(30)
    assert location_of(folder).pause(timeout=30).state == "paused"
    assert location_of(folder).stop().state == "stopped"


def test_a_pause_that_takes_too_long_says_so(folder: RunFolder, wait: Any, in_background: Any) -> None:
    release: list[bool] = []

    def deaf(*_: Any, **__: Any) -> None:
        wait(lambda: release)
        raise StateError("enough")

    in_background(lambda: run(folder, trainer=deaf))  # type: ignore[arg-type]
    wait(lambda: folder.local_status().is_live)
    with pytest.raises(SteppeError, match=r"is not paused after 0\.01 s; it is still starting"):
        location_of(folder).pause(timeout=0.01)
    release.append(True)


@pytest.mark.parametrize("state", ["created", "completed", "failed", "stopped"])
def test_an_experiment_that_does_not_run_cannot_be_paused_or_stopped(ended: Any, state: str) -> None:
    folder = ended(state)
    with pytest.raises(StateError, match=rf"(is|has) {state} and cannot be paused"):
        location_of(folder).pause()
    with pytest.raises(StateError, match=rf"(is|has) {state} (and cannot be stopped|already)"):
        location_of(folder).stop()


def test_download_copies_the_results_and_no_locks(ended: Any, tmp_path: Path) -> None:
    folder = ended("paused")
    (folder.path / "before-1").mkdir()
    (folder.path / "before-1" / "metrics.jsonl").write_text("old")
    folder.ask("pause")
    (folder.path / ".lock").touch()
    lifecycle.download(folder, tmp_path / "copy")
    names = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").iterdir()}
    assert names == {"experiment.json", "status.json", "checkpoints"}


def test_download_never_overwrites_unless_forced(ended: Any, tmp_path: Path) -> None:
    folder = ended("paused")
    (tmp_path / "status.json").write_text("mine")
    with pytest.raises(UserError, match=r"status\.json exists already.*--force"):
        lifecycle.download(folder, tmp_path)
    assert (tmp_path / "status.json").read_text() == "mine"
    assert not (tmp_path / "experiment.json").exists()
    lifecycle.download(folder, tmp_path, force=True)
    assert (tmp_path / "status.json").read_text() != "mine"


def test_download_into_the_run_folder_is_refused(ended: Any) -> None:
    folder = ended("paused")
    with pytest.raises(UserError, match="inside the run folder"):
        lifecycle.download(folder, folder.path / "copy")


def test_download_leaves_out_a_checkpoint_that_is_removed_meanwhile(
    ended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ended("paused")
    checkpoints.save(folder.path, 20, {"a": np.zeros(1)}, {})
    copy2 = shutil.copy2

    def copy_and_prune(source: Path, copy: Path) -> None:
        copy2(source, copy)
        if source.parent.name == "10":
            shutil.rmtree(source.parent)

    monkeypatch.setattr(shutil, "copy2", copy_and_prune)
    files = lifecycle.download(folder, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy" / "checkpoints").iterdir()} == {"20"}
    assert all(file.is_file() for file in files)


def test_a_detached_process_that_ends_at_once_is_reported_by_its_last_line(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.log.write_text("error: an old mistake\n")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SteppeError, match='"first" could not be started: its process ended at once'):
        location_of(folder).start()


def test_a_pause_can_be_waited_for_again(folder: RunFolder, wait: Any, in_background: Any) -> None:
    release: list[bool] = []

    def slow(*_: Any, request: Any, on_progress: Any, **__: Any) -> RunOutcome:
        on_progress(Progress("training", timestep=10))
        wait(request)
        wait(lambda: release)
        return RunOutcome("paused", "asked to pause", 10, 1, 1, None, 0.1, [])

    in_background(lambda: run(folder, trainer=slow))
    wait(lambda: folder.local_status().state == "running")
    folder.ask("pause")
    wait(lambda: folder.local_status().state == "pausing")
    with pytest.raises(SteppeError, match="is not paused after 0 s; it is still pausing"):
        location_of(folder).pause(timeout=0)
    release.append(True)
    assert location_of(folder).follow(lambda status: None, 0.01).state == "paused"
