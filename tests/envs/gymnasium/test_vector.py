from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from processes import SECONDS

from steppe.envs.gymnasium import _processes
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, StorageError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

WAYS = ["sync", "processes"]


def make(id: str, num_envs: int = 3, limit: int | None = None, repeat: int = 1, way: str = "sync", **settings):
    spec = EnvironmentSpec(id=id, backend="gymnasium", settings=settings, vectorization=way)
    return GymnasiumEnvs(spec, num_envs, limit, repeat)


@pytest.mark.parametrize("way", WAYS)
def test_an_ended_episode_has_its_true_last_observation_and_the_first_of_the_next(way: str) -> None:
    with make("steppe_toys:Counter", 3, way=way, length=3) as envs:
        np.testing.assert_array_equal(envs.reset(0), [[0, 1]] * 3)
        for t in (1, 2):
            step = envs.step(np.array([0, 1, 4]))
            np.testing.assert_array_equal(step.rewards, [0, 1, 4])
            np.testing.assert_array_equal(step.observations, [[t, 1]] * 3)
            np.testing.assert_array_equal(step.next_observations, [[t, 1]] * 3)
            assert not (step.terminated | step.truncated).any()
        step = envs.step(np.array([0, 1, 4]))
        np.testing.assert_array_equal(step.next_observations, [[3, 1]] * 3)
        np.testing.assert_array_equal(step.observations, [[0, 2]] * 3)
        assert step.terminated.all()
        assert not step.truncated.any()
        np.testing.assert_array_equal(envs.step(np.zeros(3, int)).observations, [[1, 2]] * 3)


@pytest.mark.parametrize("way", WAYS)
def test_other_rules_hold_from_the_next_reset_on(way: str) -> None:
    with make("steppe_toys:Counter", 2, way=way, length=100) as envs:
        for limit, repeat in ((3, 2), (5, 1), (None, 1)):
            envs.play_by(limit, repeat)
            assert envs.max_episode_steps == limit
            envs.reset(0)
            seen = []
            for _ in range(6):
                step = envs.step(np.ones(2, int))
                seen.append((bool(step.truncated.all()), float(step.rewards[0])))
            assert [t for t, (is_cut, _) in enumerate(seen, 1) if is_cut] == {3: [3, 6], 5: [5], None: []}[limit]
            assert {reward for _, reward in seen} == {repeat}


@pytest.mark.parametrize("way", WAYS)
def test_the_time_limit_truncates_and_termination_comes_first(way: str) -> None:
    for length, end, limit, terminated, truncated in (
        (9, "terminated", 2, False, True),
        (2, "terminated", 2, True, False),
        (2, "truncated", 9, False, True),
        (2, "terminated and truncated", None, True, False),
    ):
        with make("steppe_toys:Counter", 2, limit, way=way, length=length, end=end) as envs:
            envs.reset(0)
            for _ in range(3):
                assert not (first := envs.step(np.zeros(2, int))).terminated.any()
                assert not first.truncated.any()
                step = envs.step(np.zeros(2, int))
                assert step.terminated.tolist() == [terminated] * 2
                assert step.truncated.tolist() == [truncated] * 2
                np.testing.assert_array_equal(step.next_observations[:, 0], [2, 2])
                np.testing.assert_array_equal(step.observations[:, 0], [0, 0])


@pytest.mark.parametrize(("limit", "expected"), [(None, 4), (3, 3), (9, 4)])
def test_the_registered_limit_and_the_experiment_limit_hold_together(limit: int | None, expected: int) -> None:
    import steppe_toys  # noqa: F401 - registers the id

    with make("SteppeCounter-v0", 1, limit, length=99) as envs:
        assert envs.max_episode_steps == expected
        envs.reset(0)
        ends = [bool(envs.step(np.zeros(1, int)).truncated[0]) for _ in range(12)]
        assert ends == [(t % expected) == 0 for t in range(1, 13)]
    with make("SteppeCounter-v0", 1, max_episode_steps=7) as envs:
        assert envs.max_episode_steps == 7


@pytest.mark.parametrize("way", WAYS)
def test_repeated_actions_add_their_rewards_and_stop_at_the_end_of_an_episode(way: str) -> None:
    with make("steppe_toys:Counter", 2, repeat=4, way=way, length=6) as envs:
        envs.reset(0)
        step = envs.step(np.array([1, 2]))
        np.testing.assert_array_equal(step.rewards, [4, 8])
        np.testing.assert_array_equal(step.observations, [[4, 1]] * 2)
        step = envs.step(np.array([1, 2]))
        np.testing.assert_array_equal(step.rewards, [2, 4])
        np.testing.assert_array_equal(step.next_observations, [[6, 1]] * 2)
        assert step.terminated.all()
        np.testing.assert_array_equal(envs.step(np.array([1, 2])).observations, [[4, 2]] * 2)


def test_limits_count_decisions_and_not_repeated_steps() -> None:
    with make("steppe_toys:Counter", 1, limit=3, repeat=4, length=99) as envs:
        envs.reset(0)
        assert [bool(envs.step(np.zeros(1, int)).truncated[0]) for _ in range(6)] == [False, False, True] * 2


def test_environments_that_end_at_different_times_are_kept_apart() -> None:
    with make("CartPole-v1", 4, 30) as envs:
        original = [gymnasium.make("CartPole-v1", max_episode_steps=30) for _ in range(4)]
        rng = np.random.default_rng(0)
        np.testing.assert_array_equal(envs.reset(7), [env.reset(seed=7 + i)[0] for i, env in enumerate(original)])
        ends = 0
        for _ in range(300):
            actions = rng.integers(0, 2, 4)
            step = envs.step(actions)
            for i, env in enumerate(original):
                obs, reward, terminated, truncated, _ = env.step(int(actions[i]))
                np.testing.assert_array_equal(step.next_observations[i], obs)
                assert step.rewards[i] == reward
                assert step.terminated[i] == terminated
                assert step.truncated[i] == (truncated and not terminated)
                if terminated or truncated:
                    obs, _ = env.reset()
                    ends += 1
                np.testing.assert_array_equal(step.observations[i], obs)
        assert ends > 20


def test_processes_behave_exactly_as_the_loop() -> None:
    rng = np.random.default_rng(1)
    with make("CartPole-v1", 5, 40) as here, make("CartPole-v1", 5, 40, way="processes") as there:
        assert here.max_episode_steps == there.max_episode_steps == 40
        assert here.observation_space == there.observation_space
        np.testing.assert_array_equal(here.reset(3), there.reset(3))
        for _ in range(200):
            actions = rng.integers(0, 2, 5)
            for mine, theirs in zip(here.step(actions), there.step(actions), strict=True):
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_fixes_every_environment_and_its_action_space(way: str) -> None:
    with make("steppe_toys:Seeded", 3, way=way) as envs:
        first = envs.reset(5).copy()
        envs.step(np.zeros((3, 1), np.float32))
        np.testing.assert_array_equal(envs.reset(5), first)
        assert not np.any(envs.reset(50) == first)
        np.testing.assert_array_equal(envs.reset(6)[:2], first[1:])
        assert len(np.unique(first)) == 3  # gymnasium draws the first number of both generators alike


def test_the_last_step_stays_intact_during_the_next() -> None:
    with make("steppe_toys:Counter", 2, length=2) as envs:
        results = [envs.reset(0)]
        for _ in range(5):
            before = results[-1].copy()
            step = envs.step(np.zeros(2, int))
            np.testing.assert_array_equal(results[-1], before)
            results.append(step.observations)


def test_nested_observations_and_multi_discrete_actions_are_converted() -> None:
    with make("steppe_toys:Mixed", 2) as envs:
        flat = Box((4 + 3 + 2 + 5,), (0.0,) * 10 + (-1.0,) * 4, (1.0,))
        assert dataclasses.replace(envs.observation_space, parts=()) == flat
        assert envs.action_space == MultiDiscrete((2, 3, 4, 5))
        envs.reset(0)
        step = envs.step(np.array([[1, 2, 3, 4], [0, 0, 0, 0]]))
        for row, env in zip(step.observations, envs._stepper._envs, strict=True):
            flat = gymnasium.spaces.flatten(env.observation_space, env.seen).astype(np.float32)
            np.testing.assert_array_equal(row, flat)
        np.testing.assert_array_equal(envs._stepper._envs[0].given[0], [[1, 2], [3, 4]])
    with make("steppe_toys:Mixed", 1, actions="box") as envs:
        envs.reset(0)
        for value in (9.0, -9.0):
            envs.step(np.full((1, 2), value, np.float32))
        given = envs._stepper._envs[0].given
        # The environment keeps it, so no later step may overwrite it.
        np.testing.assert_array_equal(given, [[1.0, 2.0], [-1.0, 0.0]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flat", [True, False])
def test_whole_numbers_in_a_box_of_any_shape_reach_the_environment_rounded(way: str, flat: bool) -> None:
    # The environment itself asserts that it gets members of its space.
    with make("steppe_toys:Mixed", 2, way=way, actions="whole") as envs:
        assert envs.action_space == Box((2, 3), (0.0,), (9.0,), "int64")
        envs.reset(0)
        actions = np.array([[0.4, 0.6, 3.0, 8.7, 99.0, -7.0], [1, 2, 3, 4, 5, 6]], np.float32)
        envs.step(actions if flat else actions.reshape(2, 2, 3))
        if way == "sync":
            np.testing.assert_array_equal(envs._stepper._envs[0].given[0], [[0, 1, 3], [9, 9, 0]])


def test_multi_binary_actions_are_converted() -> None:
    with make("steppe_toys:Mixed", 1, actions="multi_binary") as envs:
        assert envs.action_space == MultiDiscrete((2, 2, 2))
        envs.reset(0)
        envs.step(np.array([[1, 0, 1]]))
        np.testing.assert_array_equal(envs._stepper._envs[0].given[0], [1, 0, 1])


def test_actions_count_from_zero_for_the_agent_and_from_start_for_the_environment() -> None:
    with make("steppe_toys:Counter", 1, start=-2) as envs:
        assert envs.action_space == Discrete(5, -2)
        envs.reset(0)
        assert envs.step(np.array([0])).rewards[0] == -2
        assert envs.step(np.array([4])).rewards[0] == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "raised RuntimeError: the engine is on fire"),
        ("nan", "returned an observation with nan in it"),
        ("inf", "returned an observation with inf in it"),
        ("reward", "returned the reward nan"),
        ("shape", r"returned an observation of shape \(1,\) where its space says \(2,\)"),
        ("reset", "raised RuntimeError: cannot start again when it was reset"),
    ],
)
def test_a_faulty_environment_is_named_with_its_number_and_step(way: str, fault: str, message: str) -> None:
    with make("steppe_toys:Counter", 1, way=way, fault=fault, length=2) as envs:
        envs.reset(0)
        envs.step(np.zeros(1, int))
        with pytest.raises(
            EnvironmentFault, match=rf'"steppe_toys:Counter" \(number 0\) at step 2: {message}'
        ) as caught:
            envs.step(np.zeros(1, int))
        if way == "sync" and fault in ("raise", "reset"):
            assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_choice_that_the_observation_space_does_not_have_is_a_fault(wrong: int) -> None:
    with make("steppe_toys:Choices", 2, wrong=wrong) as envs:
        envs.reset(0)
        envs.step(np.zeros(2, int))
        message = rf"\(number 0\) at step 2: returned the observation \[1, {wrong}\], which is not within 0 to \[1, 2\]"
        with pytest.raises(EnvironmentFault, match=message):
            envs.step(np.zeros(2, int))


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_names_its_environment_among_many(way: str) -> None:
    with make("steppe_toys:Uneven", 5, way=way) as envs:
        envs.reset(0)
        envs.step(np.zeros(5, int))
        with pytest.raises(EnvironmentFault, match=r"\(number 3\) at step 2: raised RuntimeError: the engine"):
            envs.step(np.zeros(5, int))


def test_huge_but_finite_numbers_are_no_fault() -> None:
    with make("steppe_toys:Huge", 2) as envs:
        envs.reset(0)
        step = envs.step(np.zeros(2, int))
        assert np.all(step.observations > 1e30)


def test_a_dead_worker_is_reported_and_the_others_end() -> None:
    envs = make("steppe_toys:Counter", 2, way="processes", fault="exit")
    processes = [worker._process for worker in envs._stepper._workers]
    envs.reset(0)
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvironmentFault, match=r"worker process [0-9]+ ended with code 7"):
        envs.step(np.zeros(2, int))
    envs.close()
    envs.close()
    assert all(process.poll() is not None for process in processes)


def test_workers_end_with_close_and_never_load_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_processes, "END_SECONDS", SECONDS)
    envs = make("steppe_toys:Imports", 2, way="processes")
    processes = [worker._process for worker in envs._stepper._workers]
    assert 1 <= len(processes) <= min(2, os.cpu_count() or 1)
    assert all(process.poll() is None for process in processes)
    np.testing.assert_array_equal(envs.reset(0), [[0.0]] * 2)
    envs.close()
    assert [process.poll() for process in processes] == [0] * len(processes)


def test_the_disk_replaces_full_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_processes, "IN_MEMORY", str(tmp_path / "missing"))
    with make("steppe_toys:Counter", 2, way="processes", length=3) as envs:
        np.testing.assert_array_equal(envs.reset(0), [[0, 1]] * 2)
    monkeypatch.setattr(_processes.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    with pytest.raises(StorageError, match=r"no room for [0-9,]+ bytes"):
        make("steppe_toys:Counter", 2, way="processes")


def test_workers_end_when_their_parent_is_killed() -> None:
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); "
        "from steppe.envs.gymnasium.vector import GymnasiumEnvs; "
        "from steppe.specs.environment import EnvironmentSpec; "
        "spec = EnvironmentSpec(id='steppe_toys:Counter', vectorization='processes'); envs = GymnasiumEnvs(spec, 2); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    # The workers inherit the pipe: it reaches its end only when the last of them is gone.
    toys = str(Path(__file__).parents[1] / "toys")
    result = subprocess.run([sys.executable, "-c", program, toys], stdout=subprocess.PIPE, timeout=SECONDS, check=False)
    assert result.returncode == -9


@pytest.mark.parametrize(
    ("id", "settings", "message"),
    [
        ("CartPoll-v1", {}, 'unknown environment "CartPoll-v1".*did you mean "CartPole-v1"'),
        ("Zzyzx-v0", {}, 'if a package registers it, put its module before it: "module:Zzyzx-v0"'),
        ("CartPole-v9", {}, 'unknown environment "CartPole-v9".*did you mean "CartPole-v1"'),
        ("GridWorld-v0", {}, "only runs compiled"),
        ("no_such_module:make", {}, 'names the module "no_such_module", which is not there'),
        ("steppe_toys:make_counte", {}, 'does not have; did you mean "make_counter"'),
        ("steppe_toys:make_nothing", {}, "returned a str, not a gymnasium.Env"),
        ("steppe_toys:make_without_package", {}, 'needs the Python module "a_package_that_nobody_has"'),
        ("steppe_toys:make_counter", {"lenght": 3}, "does not accept its settings.*lenght"),
        ("CartPole-v1", {"gravity": 3}, "does not accept its settings.*gravity"),
        ("CartPole-v1", {"max_episode_steps": 0}, "must be a whole number from 1 on"),
        ("steppe_toys:Texts", {}, "observes a Text space"),
        ("steppe_toys:Pairs", {}, "takes actions from a Dict space"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_failures_to_make_an_environment_are_explained(way: str, id: str, settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(id, 2, way=way, **settings)


def test_an_environment_whose_constructor_fails_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match='"steppe_toys:Broken" could not be made: ZeroDivisionError'):
        make("steppe_toys:Broken")


def test_a_module_can_register_the_id_it_is_asked_for() -> None:
    with make("steppe_toys:SteppeCounter-v0", 1) as envs:
        assert envs.max_episode_steps == 4


def test_the_limit_of_a_callable_that_uses_gymnasium_make_is_known() -> None:
    with make("steppe_toys:make_limited", 1) as envs:
        assert envs.max_episode_steps == 2000
    with make("steppe_toys:make_limited", 1, limit=3) as envs:
        envs.reset(0)
        assert [bool(envs.step(np.zeros(1, int)).truncated[0]) for _ in range(6)] == [False, False, True] * 2


def test_a_native_version_with_same_step_resets_is_exact() -> None:
    with make("steppe_toys:SteppeCounter-v0", 2, way="native", lengths=[2, 9]) as envs:
        assert envs.max_episode_steps == 4
        np.testing.assert_array_equal(envs.reset(0), [[0, 1]] * 2)
        envs.step(np.array([1, 2]))
        step = envs.step(np.array([1, 2]))
        np.testing.assert_array_equal(step.next_observations, [[2, 1], [2, 1]])
        np.testing.assert_array_equal(step.observations, [[0, 2], [2, 1]])
        assert step.terminated.tolist() == [True, False]
        np.testing.assert_array_equal(step.rewards, [1, 2])
        envs.step(np.array([1, 2]))
        step = envs.step(np.array([1, 2]))
        assert step.terminated.tolist() == [True, False]
        assert step.truncated.tolist() == [False, True]
        np.testing.assert_array_equal(step.next_observations, [[2, 2], [4, 1]])


def test_a_native_version_that_cannot_be_exact_is_refused() -> None:
    with pytest.raises(UserError, match=r'"CartPole-v1" resets one step late.*"sync" or "processes"'):
        make("CartPole-v1", 2, way="native")
    with pytest.raises(UserError, match="has no native vectorised version"):
        make("Acrobot-v1", 2, way="native")
    with pytest.raises(UserError, match="cannot repeat actions"):
        make("CartPole-v1", 2, repeat=2, way="native")
    with pytest.raises(UserError, match='names "make_counter", which the module "steppe_toys" does not register'):
        make("steppe_toys:make_counter", 2, way="native")
    with pytest.raises(UserError, match="must be a whole number from 1 on"):
        make("steppe_toys:SteppeCounter-v0", 2, way="native", max_episode_steps=0)
