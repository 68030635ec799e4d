"""Another value of a numeric hyper-parameter compiles nothing again."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from steppe.agents._base import Agent
from steppe.agents.core.off_policy import OffPolicy
from steppe.runners import setup
from steppe.runners._base import ChunkLimits
from steppe.specs.experiment import ExperimentSpec

MEMORY = {"type": "prioritized_replay", "capacity": 500, "priority_exponent": 0.6, "importance_exponent": 0.4}
SMALL = {"batch_size": 16, "learning_starts": 16}
DECAY = {"learning_rate_decay": "linear"}
NUMBERS = {
    "ppo": (
        {"horizon": 16, "minibatches": 2, "epochs": 2, **DECAY},
        {
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-5,
            "discount": 0.9,
            "gae_lambda": 0.8,
            "clip": 0.1,
            "entropy_coefficient": 0.02,
            "value_coefficient": 0.3,
            "max_gradient_norm": 1.0,
        },
    ),
    "impala": ({"horizon": 8}, {"ratio_clip": 2.0, "discount": 0.9, "gae_lambda": 0.5, "learning_rate": 1e-4}),
    "pqn": (
        {"horizon": 8, "minibatches": 2},
        {
            "trace_lambda": 0.9,
            "discount": 0.9,
            "learning_rate": 1e-4,
            "exploration": {
                "type": "epsilon_anneal",
                "final_epsilon": 0.1,
                "initial_epsilon": 0.9,
                "timesteps": 100_000,
            },
        },
    ),
    "dqn": (
        {**SMALL, "memory": MEMORY, "target_sync_frequency": 5},
        {
            "learning_rate": 1e-4,
            "discount": 0.9,
            "target_update_weight": 0.1,
            "exploration": {"type": "epsilon_anneal", "final_epsilon": 0.1},
        },
    ),
    "sac": (
        {**SMALL, "critic_learning_rate": 1e-3},
        {"learning_rate": 1e-4, "critic_learning_rate": 1e-4, "discount": 0.9, "target_update_weight": 0.1},
    ),
    "td3": (
        SMALL,
        {"learning_rate": 1e-4, "target_noise": 0.1, "target_noise_clip": 0.3, "target_update_weight": 0.1},
    ),
}
CONTINUOUS = ("sac", "td3")


@pytest.fixture
def cache(tmp_path):
    """An empty cache of compiled programs: (hits, misses) so far."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
    counts = {"hits": 0, "misses": 0}

    def count(event, **_):
        if event.startswith("/jax/compilation_cache/cache_"):
            counts[event.removeprefix("/jax/compilation_cache/cache_")] += 1

    jax.monitoring.register_event_listener(count)
    yield counts
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def trained(agent, settings, backend="auto", mode="single"):
    """The parameters after a short training, and its evaluation."""
    environment = {"id": "Pendulum-v1" if agent in CONTINUOUS else "CartPole-v1", "backend": backend}
    words = {"name": "numbers", "environment": environment, "agent": {"type": agent, **settings}, "num_envs": 4}
    more = {"run_mode": mode, "num_workers": 1} if mode == "multi-threaded" else {}
    spec = ExperimentSpec.model_validate(words | more | {"total_timesteps": 100_000, "max_timesteps_per_episode": 30})
    engine = setup.make_engine(spec)
    try:
        engine.begin(0)
        engine.advance(20 if "batch_size" in settings else 2, 0, ChunkLimits())
        if backend == "auto":
            engine.evaluate(2, False, 1)
        return np.concatenate([np.ravel(each) for each in engine.policy(0).tensors.values()])
    finally:
        engine.close()


@pytest.mark.parametrize("agent", NUMBERS)
def test_other_numbers_compile_nothing_again(agent, cache):
    settings, others = NUMBERS[agent]
    first = trained(agent, settings)
    assert cache["misses"] > 0
    cache["misses"] = 0
    second = trained(agent, {**settings, **others})
    assert cache["misses"] == 0
    assert not np.array_equal(first, second), "the numbers have an effect"


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_other_numbers_compile_nothing_again_for_gymnasium_environments(agent, cache):
    settings, others = NUMBERS[agent]
    first = trained(agent, settings, backend="gymnasium")
    cache["misses"] = 0
    second = trained(agent, {**settings, **others}, backend="gymnasium")
    assert cache["misses"] == 0
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_other_numbers_compile_nothing_again_for_threads(agent, cache):
    settings, others = NUMBERS[agent]
    first = trained(agent, settings, mode="multi-threaded")
    cache["misses"] = 0
    second = trained(agent, {**settings, **others}, mode="multi-threaded")
    assert cache["misses"] == 0
    assert not np.array_equal(first, second)


def test_a_number_that_changes_a_shape_compiles_again(cache):
    settings, _ = NUMBERS["ppo"]
    trained("ppo", settings)
    cache["misses"] = 0
    trained("ppo", {**settings, "horizon": 8})
    assert cache["misses"] > 0


@pytest.mark.parametrize("agent", ["ppo", "dqn", "sac"])
def test_results_are_the_bits_of_programs_in_which_the_numbers_are_constants(agent, monkeypatch):
    settings, _ = NUMBERS[agent]
    as_arguments = trained(agent, settings)
    for kind in (Agent, OffPolicy):
        monkeypatch.setattr(kind, "with_numbers", lambda self, numbers: self)
    np.testing.assert_array_equal(trained(agent, settings), as_arguments)
