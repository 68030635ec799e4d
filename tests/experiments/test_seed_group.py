"""Several seeds of one experiment, side by side: real processes, with a trainer that only counts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import counting_members
import pytest

from steppe.errors import SpecError, StateError, UserError
from steppe.experiments import lifecycle, seed_group
from steppe.experiments.run_folder.store import Status, Store
from steppe.experiments.seed_group import SeedGroup, SeedRun, processes_at_once, summary_of
from steppe.specs.experiment import ExperimentSpec


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda hold: counting_members.use(monkeypatch, hold)


def ignore(_: object) -> None:
    """Shows nothing."""


def test_each_seed_is_an_experiment_of_its_own_that_names_its_group(store: Store, spec: ExperimentSpec) -> None:
    made = seed_group.create(spec, store, (3, 1), name="walk")
    assert [member.folder.name for member in made.members] == ["walk-s3", "walk-s1"]
    for member in made.members:
        written = member.folder.spec()
        assert (written.name, written.seed, written.group) == (member.folder.name, member.seed, "walk")
        assert written.model_copy(update={"name": "first", "seed": 1, "group": None}) == spec
        assert member.folder.local_status().state == "created"


def test_a_group_without_a_name_gets_a_number_that_is_free(store: Store, spec: ExperimentSpec) -> None:
    assert seed_group.create(spec, store, (1,)).name == "CartPole-v1-random-1"
    assert seed_group.create(spec, store, (2,)).name == "CartPole-v1-random-2"
    lifecycle.create(spec, store)
    assert (store.path / "CartPole-v1-random-1").is_dir()


def test_no_member_is_made_if_one_exists_already(store: Store, spec: ExperimentSpec) -> None:
    seed_group.create(spec, store, (2,), name="walk")
    with pytest.raises(StateError, match=r'"walk-s2" exists already .*--force'):
        seed_group.create(spec, store, (1, 2), name="walk")
    assert not (store.path / "walk-s1").exists()
    assert len(seed_group.create(spec, store, (1, 2), name="walk", force=True).members) == 2


def test_an_invalid_group_is_refused(store: Store, spec: ExperimentSpec) -> None:
    with pytest.raises(SpecError, match="wrong name"):
        seed_group.create(spec, store, (1,), name="../evil")
    elsewhere = spec.model_copy(update={"platform": "kubernetes"})
    with pytest.raises(UserError, match=r"on this machine only; .* --set group=walk, and start each there$"):
        seed_group.create(elsewhere, store, (1,), name="walk")


def test_all_seeds_are_trained_with_no_more_at_once_than_asked(
    store: Store, spec: ExperimentSpec, counting: Any
) -> None:
    counting("")
    made, most = seed_group.create(spec, store, (1, 2, 3), name="walk"), []
    made.train(lambda seen: most.append(sum(member.is_running for member in seen.members)), ignore, at_once=2)
    assert max(most) == 2
    assert [member.status.state for member in made.members] == ["completed"] * 3
    assert [member.status.timestep for member in made.members] == [10, 20, 30]
    assert (made.exit_code, made.signal) == (0, None)
    assert made.scores() == summary_of([1.5, 1.5, 1.5])


def test_a_failed_seed_is_reported_and_the_others_continue(store: Store, spec: ExperimentSpec, counting: Any) -> None:
    counting("")
    made = seed_group.create(spec, store, (13, 14, 1), name="walk")
    made.train(ignore, ignore, at_once=3)
    never_began, broke, whole = made.members
    assert (never_began.has_failed, never_began.reason) == (True, "no luck today")
    assert (broke.has_failed, broke.status.state, broke.reason) == (True, "failed", "the loss is NaN")
    assert (whole.has_failed, whole.status.state) == (False, "completed")
    assert made.exit_code == 1


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "paused"), (signal.SIGTERM, "stopped")])
def test_a_signal_ends_all_that_train_and_starts_no_others(
    store: Store, spec: ExperimentSpec, counting: Any, number: signal.Signals, state: str
) -> None:
    counting("hold")
    made, told = seed_group.create(spec, store, (1, 2, 3), name="walk"), []

    def interrupt(seen: SeedGroup) -> None:
        if not told and sum(member.status.state == "running" for member in seen.members) == 2:
            signal.raise_signal(number)

    made.train(interrupt, told.append, at_once=2)
    assert [member.status.state for member in made.members] == [state, state, "created"]
    assert (made.signal, made.exit_code) == (number, 128 + number)
    assert len(told) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_closed_terminal_ends_nothing_after_nohup(store: Store, spec: ExperimentSpec, counting: Any) -> None:
    counting("")
    made, told = seed_group.create(spec, store, (1, 2), name="walk"), []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it
    try:
        made.train(lambda _: signal.raise_signal(signal.SIGHUP), told.append, at_once=1)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [member.status.state for member in made.members] == ["completed", "completed"]
    assert (made.exit_code, told) == (0, [])


def test_a_member_is_resumed_like_any_experiment(store: Store, spec: ExperimentSpec, trainer: Any) -> None:
    from steppe.experiments.process.run import run

    (member,) = seed_group.create(spec, store, (1,), name="walk").members
    run(member.folder, trainer=trainer(total=30))
    lifecycle.prepare(member.folder, resume=True, fields={"total_timesteps": 60})
    run(member.folder, resume=True, trainer=trainer(total=60))
    assert member.folder.local_status().timestep == 60
    assert json.loads((member.folder.path / "experiment.json").read_text())["group"] == "walk"


def test_the_score_of_a_seed_is_its_evaluation_once_all_have_one(store: Store, spec: ExperimentSpec) -> None:
    made = seed_group.create(spec, store, (1, 2, 3), name="walk")
    first, second = made.members[:2]
    evaluated = {"mean": 200.0, "episodes": 20, "timestep": 30}
    first.status = Status("completed", mean_return=100.0, evaluation=evaluated)
    second.status = Status("failed", mean_return=50.0)
    assert [made.score_of(each) for each in made.members] == [100.0, 50.0, None]
    second.status = Status("completed", mean_return=50.0, evaluation=evaluated | {"mean": 300.0})
    assert [made.score_of(each) for each in made.members] == [200.0, 300.0, None]
    assert made.scores() == summary_of([200.0, 300.0])


def test_a_process_for_each_core_and_fewer_where_each_has_workers(
    spec: ExperimentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPPE_CORES", "8")
    assert processes_at_once(spec) == 8
    threads = spec.model_copy(update={"run_mode": "multi-threaded", "num_workers": 3})
    assert processes_at_once(threads) == 2
    assert processes_at_once(threads.model_copy(update={"num_workers": 20})) == 1


@pytest.mark.parametrize(("seeds", "at_once", "each"), [((1, 2, 3), 3, 2), ((1,), 3, 7), ((1, 2), 9, 3)])
def test_seeds_that_train_at_once_share_the_cores(
    store: Store,
    spec: ExperimentSpec,
    counting: Any,
    monkeypatch: pytest.MonkeyPatch,
    seeds: Any,
    at_once: int,
    each: int,
) -> None:
    monkeypatch.setenv("STEPPE_CORES", "7")
    counting("")
    made = seed_group.create(spec, store, seeds, name="walk")
    made.train(ignore, ignore, at_once=at_once)
    for member in made.members:
        assert f"cores {each}\n" in member.folder.log.read_text()


def test_the_spread_of_scores() -> None:
    spread = summary_of([1.0, 2.0, 6.0])
    assert spread is not None
    assert (spread.count, spread.mean, spread.median, spread.least, spread.largest) == (3, 3.0, 2.0, 1.0, 6.0)
    assert spread.deviation == pytest.approx(7**0.5)
    assert summary_of([]) is None
    assert summary_of([4.0]).deviation == 0.0  # type: ignore[union-attr]


def test_a_member_that_has_not_begun_is_left_alone(store: Store, spec: ExperimentSpec) -> None:
    (member,) = seed_group.create(spec, store, (1,), name="walk").members
    assert isinstance(member, SeedRun)
    member.look()
    member.ask("pause")
    assert member.folder.asked() is None
