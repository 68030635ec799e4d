"""Specs in the words of each file that TensorForce 0.3.3 to 0.4.4 and its client shipped are built or refused.

The figures are this test's own. docs/old-files.md counts these files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from steppe import runners
from steppe.errors import SteppeError
from steppe.spec_files import load_experiment, read_experiment

GYM = "tensorforce.contrib.openai_gym.OpenAIGym"
UNREAL = "tensorforce.contrib.unreal_engine.UE4Environment"
INVADERS = {"type": GYM, "gym_id": "SpaceInvaders-v0"}
ALIENS = {"type": UNREAL, "remote": True, "image": "somebody/aliens"}

SAVED = {
    "saver": {"directory": None, "seconds": 300},
    "summarizer": {"directory": None, "labels": [], "seconds": 60},
}
DRAWN = {"saver": SAVED["saver"], "summarizer": {"directory": None, "labels": ["graph", "total-loss"]}}
ALONE = {"execution": {"type": "single", "session_config": None, "distributed_spec": None}}
STEPS = {"update_mode": {"unit": "timesteps", "batch_size": 8, "frequency": 4}}
EPISODES = {"update_mode": {"unit": "episodes", "batch_size": 3, "frequency": 3}}
REPLAY = {"memory": {"type": "replay", "capacity": 200, "include_next_states": True}}
LATEST = {"memory": {"type": "latest", "include_next_states": False, "capacity": 1500}}


def adam(rate: float) -> dict[str, Any]:
    return {"type": "adam", "learning_rate": rate}


FLAT = {
    "batch_size": 16,
    "memory": {"type": "replay", "capacity": 200, "random_sampling": False},
    "optimizer": adam(2e-3),
    "discount": 0.96,
}
FALLING = {"type": "epsilon_decay", "initial_epsilon": 0.9, "final_epsilon": 0.2, "timesteps": 1e5}
WANDERING = {"type": "ornstein_uhlenbeck", "sigma": 0.1, "mu": 0.0, "theta": 0.2}
SMALL_AND_GREY = [
    {"type": "image_resize", "width": 42, "height": 42},
    {"type": "grayscale"},
    {"type": "divide", "scale": 255},
]
SYNCED = {"target_sync_frequency": 200, "target_update_weight": 1.0}
BASELINE_STEPS = {"type": "multi_step", "optimizer": adam(2e-3), "num_steps": 3}
BASELINE = {
    "baseline_mode": "states",
    "baseline": {"type": "mlp", "sizes": [8, 8]},
    "baseline_optimizer": BASELINE_STEPS,
}
BASELINE_OF_IMAGES = BASELINE | {"baseline": {"type": "cnn", "conv_sizes": [4, 4], "dense_sizes": [8]}}
NO_BASELINE = {"baseline_mode": None, "baseline": None, "baseline_optimizer": None}
PLAIN = {"discount": 0.98, "entropy_regularization": None, "gae_lambda": None}

DDPG = {
    "type": "ddpg_agent",
    **STEPS,
    **REPLAY,
    "optimizer": adam(2e-4),
    "discount": 0.98,
    "entropy_regularization": None,
    "critic_network": {"size_t0": 8, "size_t1": 8},
    "critic_optimizer": adam(2e-3),
    "target_sync_frequency": 1,
    "target_update_weight": 0.99,
    "actions_exploration": WANDERING,
    **SAVED,
}
DQN = {
    "type": "dqn_agent",
    **STEPS,
    **REPLAY,
    "discount": 0.98,
    "entropy_regularization": None,
    "optimizer": {"type": "clipped_step", "clipping_value": 0.2, "optimizer": adam(2e-3)},
    "actions_exploration": {"type": "epsilon_anneal", "initial_epsilon": 0.4, "final_epsilon": 0.1, "timesteps": 5000},
    "double_q_model": True,
    **SYNCED,
    **SAVED,
    **ALONE,
}
DQN_UE4 = {
    "type": "dqn_agent",
    **STEPS,
    **REPLAY,
    "optimizer": adam(2e-3),
    "discount": 0.96,
    "states_preprocessing": [{"type": "divide", "scale": 255}, {"type": "sequence", "length": 2, "add_rank": True}],
    "actions_exploration": FALLING,
    **SAVED,
}
NAF = {
    "type": "naf_agent",
    **STEPS,
    **REPLAY,
    "optimizer": adam(2e-3),
    "discount": 0.98,
    "double_q_model": True,
    "entropy_regularization": None,
    **SYNCED,
    "actions_exploration": WANDERING,
    **SAVED,
}
PPO = {
    "type": "ppo_agent",
    **EPISODES,
    **LATEST,
    "step_optimizer": adam(2e-3),
    "subsampling_fraction": 0.2,
    "optimization_steps": 4,
    **PLAIN,
    "entropy_regularization": 0.02,
    "likelihood_ratio_clipping": 0.3,
    **BASELINE,
    **SAVED,
    **ALONE,
}
TRPO = {
    "type": "trpo_agent",
    **EPISODES,
    **LATEST,
    "learning_rate": 2e-2,
    **PLAIN,
    "likelihood_ratio_clipping": None,
    **NO_BASELINE,
    **SAVED,
    **ALONE,
}
VPG = {
    "type": "vpg_agent",
    **EPISODES,
    **LATEST,
    "optimizer": adam(1e-2),
    **PLAIN,
    **BASELINE,
    **SAVED,
    **ALONE,
}
VPG_VISUAL = VPG | BASELINE_OF_IMAGES | {"states_preprocessing": [{"type": "image_resize", "width": 16, "height": 16}]}


def without(spec: dict[str, Any], *words: str) -> dict[str, Any]:
    return {word: value for word, value in spec.items() if word not in words}


def dense(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "dense", "size": size, **more}


def conv(size: int, window: int, stride: int | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "conv2d", "size": size, "window": window, **({"stride": stride} if stride else {}), **more}


def read(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "input", "names": list(names), **more}


FLATTEN = {"type": "flatten"}
NORMALIZED = {"type": "tf_layer", "layer": "batch_normalization"}
SCALED = NORMALIZED | {"center": True, "scale": True}
RELU = {"type": "nonlinearity", "name": "relu"}
STATE_BRANCH = [read("state"), {"type": "linear", "size": 8}, SCALED, RELU, {"type": "output", "name": "state_output"}]
CRITIC_END = [{"type": "linear", "size": 8}, SCALED, RELU, {"type": "dense", "activation": "tanh", "size": 1}]
HIDDEN = [dense(8, activation="relu"), dense(8, activation="relu")]
DQN_IMAGES = [conv(4, 8, 4), conv(4, 4, 2), conv(4, 3, 1), FLATTEN, dense(8)]


class File(NamedTuple):
    """An experiment in the words of one file, and the reason if it is refused."""

    row: str
    agent: dict[str, Any]
    environment: Any = "CartPole-v1"
    network: list[Any] = HIDDEN
    refused: str | None = None


LATER, EARLIER, OLDER = "0.4: agents, in the last version", "0.4: agents, in an earlier version", "0.3: flat agent"
NETWORKS, CLIENT = "0.3 and 0.4: networks", "the client: agents"
DEMONSTRATIONS = "begins with demonstrations; record some"
ARM = "Pendulum-v1"
FILES = {
    "acktr": File(LATER, TRPO | {"type": "acktr_agent"} | DRAWN),
    "ddpg": File(LATER, DDPG | ALONE, ARM),
    "dqfd": File(LATER, without(DQN, "double_q_model") | {"type": "dqfd_agent"}, refused=DEMONSTRATIONS),
    "dqn": File(LATER, DQN),
    "dqn_ue4": File(LATER, DQN_UE4 | ALONE, "worlds:GreyPictures", [conv(4, 4, 2), FLATTEN, dense(8)]),
    "dqn_visual": File(LATER, DQN_UE4 | {"states_preprocessing": SMALL_AND_GREY} | ALONE, INVADERS, DQN_IMAGES),
    "naf": File(LATER, NAF, ARM),
    "ppo": File(LATER, PPO),
    "ppo_cnn": File(LATER, PPO | BASELINE_OF_IMAGES, "worlds:Pictures", [conv(4, 3), FLATTEN, dense(8)]),
    "trpo": File(LATER, TRPO),
    "vpg": File(LATER, VPG),
    "vpg_nobaseline": File(LATER, VPG | NO_BASELINE),
    "vpg_visual": File(LATER, VPG_VISUAL, "worlds:Pictures", [conv(4, 3), FLATTEN, dense(8)]),
    "vpg_baseline_visual": File(
        LATER,
        without(VPG, "update_mode", "memory", "saver", "summarizer")
        | {"batch_size": 500, "gae_lambda": 0.9}
        | {"states_preprocessing": [*SMALL_AND_GREY[:2], {"type": "center"}, {"type": "sequence", "length": 2}]},
        INVADERS,
        DQN_IMAGES,
        refused='"center"',
    ),
    "ddpg, earlier": File(EARLIER, DDPG, ARM),
    "dqn_ue4, earlier": File(EARLIER, DQN_UE4, "worlds:GreyPictures", [conv(4, 4, 2), FLATTEN, dense(8)]),
    "ppo_cnn, earlier": File(
        EARLIER,
        without(PPO | BASELINE_OF_IMAGES, "execution"),
        "worlds:Pictures",
        [conv(4, 3), FLATTEN, dense(8)],
    ),
    "vpg, earlier": File(EARLIER, without(VPG, "saver", "summarizer", "execution")),
    "vpg_nobaseline, earlier": File(EARLIER, VPG | NO_BASELINE | DRAWN),
    "vpg_visual, earlier": File(EARLIER, VPG_VISUAL | DRAWN, "worlds:Pictures", [conv(4, 3), FLATTEN, dense(8)]),
    "dqfd, flat": File(OLDER, {"type": "dqfd_agent", **FLAT, "exploration": FALLING}, refused=DEMONSTRATIONS),
    "dqn, flat": File(OLDER, {"type": "dqn_agent", **FLAT, "exploration": FALLING}),
    "dqn_visual, flat": File(
        OLDER,
        {"type": "dqn_agent", **FLAT, "states_preprocessing_spec": SMALL_AND_GREY, "explorations_spec": FALLING},
        INVADERS,
        DQN_IMAGES,
    ),
    "naf, flat": File(OLDER, {"type": "naf_agent", **FLAT, "exploration": WANDERING}, ARM),
    "ppo, flat": File(
        OLDER,
        without(PPO, "update_mode", "memory", "subsampling_fraction", "saver", "summarizer", "execution")
        | {"type": "vpg_agent", "batch_size": 500, "normalize_rewards": False, **NO_BASELINE},
        refused="ppo",
    ),
    "ppo_flatten": File(
        OLDER,
        without(PPO, "update_mode", "memory", "subsampling_fraction", "saver", "summarizer", "execution")
        | {"batch_size": 64, "batched_observe": 64, "states_preprocessing_spec": [FLATTEN]},
    ),
    "vpg, flat": File(
        OLDER,
        {"type": "vpg_agent", "batch_size": 100, "optimizer": adam(1e-2), "normalize_rewards": False}
        | PLAIN
        | BASELINE,
    ),
    "cnn2x2": File(
        NETWORKS,
        PPO,
        "worlds:Pictures",
        [conv(4, 3), conv(4, 3, stride=2), conv(4, 3), conv(4, 3, stride=2), FLATTEN, dense(8)],
    ),
    "cnn_dqn2013": File(
        NETWORKS,
        DQN_UE4 | {"states_preprocessing": SMALL_AND_GREY},
        INVADERS,
        [conv(4, 8, 4, padding="VALID"), conv(4, 4, 2, padding="VALID"), FLATTEN, dense(8, activation="relu")],
    ),
    "cnn_dqn": File(NETWORKS, DQN_UE4 | {"states_preprocessing": SMALL_AND_GREY}, INVADERS, DQN_IMAGES),
    "cnn_network_2048": File(
        NETWORKS,
        PPO,
        "worlds:Board",
        [conv(4, 2, 1, padding="VALID"), conv(4, 2, 1, padding="VALID"), FLATTEN, dense(8, activation="relu")],
    ),
    "critic_simple": File(
        NETWORKS,
        DDPG
        | {"critic_network": [STATE_BRANCH, [read("state_output", "action", aggregation_type="concat"), *CRITIC_END]]},
        ARM,
    ),
    "critic_embedding": File(
        NETWORKS,
        DDPG
        | {
            "critic_network": [
                STATE_BRANCH,
                [
                    read("action"),
                    {"type": "embedding", "indices": 20, "size": 4},
                    {"type": "output", "name": "action_output"},
                ],
                [read("state_output", "action_output", aggregation_type="concat"), *CRITIC_END],
            ]
        },
        ARM,
        refused="action",
    ),
    "flatten_mlp2": File(NETWORKS, PPO, "worlds:Board", [FLATTEN, dense(8), dense(8)]),
    "mlp2": File(NETWORKS, DQN),
    "mlp2_embedding": File(
        NETWORKS, PPO, "FrozenLake-v0", [{"type": "embedding", "indices": 16, "size": 8}, dense(8), dense(8)]
    ),
    "mlp2_embedding_flatten": File(
        NETWORKS,
        PPO,
        "worlds:Tokens",
        [{"type": "embedding", "indices": 5, "size": 4}, FLATTEN, dense(8), dense(8)],
    ),
    "mlp2_lstm": File(NETWORKS, PPO, network=[dense(8), dense(8), {"type": "internal_lstm", "size": 8}]),
    "mlp2_normalized": File(
        NETWORKS,
        DQN,
        network=[
            *[{"type": "linear", "size": 8}, NORMALIZED, RELU, {"type": "linear", "size": 8}, NORMALIZED, RELU],
            dense(8, activation=None),
        ],
    ),
    "mlp2_normalized, earlier": File(
        NETWORKS,
        DDPG | {"critic_network": [{"type": "linear", "size": 8}, NORMALIZED, RELU, dense(1, activation="tanh")]},
        ARM,
    ),
    "client's dqfd": File(
        CLIENT,
        {"type": "dqfd_agent", **FLAT, "memory": {"type": "replay", "capacity": 200}, "actions_exploration": FALLING},
        refused=DEMONSTRATIONS,
    ),
    "client's dqn": File(CLIENT, without(DQN_UE4, "states_preprocessing", "saver", "summarizer")),
    "client's dqn_visual": File(
        CLIENT,
        without(DQN_UE4, "saver", "summarizer")
        | {"states_preprocessing": [*SMALL_AND_GREY, {"type": "sequence", "length": 2}]},
        INVADERS,
        DQN_IMAGES,
    ),
    "client's naf": File(
        CLIENT,
        without(NAF, "double_q_model", "entropy_regularization", *SYNCED, "saver", "summarizer")
        | {"memory": {"type": "replay", "capacity": 200}},
        ARM,
    ),
}
EXPERIMENT = {
    "type": "experiment",
    "description": "An example",
    "agent": "dqn_visual.json",
    "repeat_actions": 2,
    "network": "configs/networks/cnn_dqn_network.json",
    "episodes": 50,
    "timesteps": 5000,
    "max_timesteps_per_episode": 500,
    "deterministic": False,
    "run_mode": "distributed",
    "num_workers": 2,
    "num_parameter_servers": 1,
    "cluster": "small_cluster.json",
    "debug_logging": True,
    "saver_frequency": 300,
    "summary_frequency": 300,
}
THREADED = EXPERIMENT | {"run_mode": "multi-threaded", "num_parameter_servers": 0}
GAME = 'Steppe does not start the game of "image"'
OF_PROJECTS = {
    "space_invaders": ("the client: environments", INVADERS, None),
    "ue4_aliens": ("the client: environments", ALIENS, GAME),
    "simple_a3c": ("the client: experiments", EXPERIMENT | {"name": "simple_a3c", "environment": INVADERS}, None),
    "aliens": ("the client: experiments", THREADED | {"name": "aliens", "environment": ALIENS}, GAME),
    "aliens, discrete": (
        "the client: experiments",
        THREADED | {"name": "aliens", "environment": ALIENS | {"discretize_actions": True}},
        GAME,
    ),
}
PROJECT = {
    "steppe.json": {"name": "old", "schema_version": 1},
    "configs/agents/dqn_visual.json": FILES["client's dqn_visual"].agent,
    "configs/networks/cnn_dqn_network.json": DQN_IMAGES,
    "configs/clusters/small_cluster.json": {"name": "small_cluster", "num_nodes": 2, "machine_type": "n1-standard-1"},
}


@pytest.mark.parametrize("name", FILES)
def test_an_old_agent_or_network_is_built_or_refused_for_its_reason(name: str) -> None:
    file = FILES[name]
    fields = {"name": "old", "environment": file.environment, "agent": file.agent, "network": file.network}
    if file.refused is None:
        runners.check(read_experiment(fields))
    else:
        with pytest.raises(SteppeError, match=re.escape(file.refused)):
            runners.check(read_experiment(fields))


@pytest.mark.parametrize("name", OF_PROJECTS)
def test_an_old_environment_or_experiment_is_built_or_refused_for_its_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, content, reason = OF_PROJECTS[name]
    folder = f"configs/{row.removeprefix('the client: ')}"
    for path, written in (PROJECT | {f"{folder}/it.json": content}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(written))
    monkeypatch.chdir(tmp_path)
    if folder.endswith("environments"):
        fields = {"name": "old", "environment": "it.json", "agent": "dqn_visual.json", "network": "cnn_dqn_network"}
        given: tuple[Any, ...] = (None, fields)
    else:
        given = (f"{folder}/it.json", {})
    if reason is None:
        runners.check(load_experiment(*given, [], tmp_path))
    else:
        with pytest.raises(SteppeError, match=re.escape(reason)):
            load_experiment(*given, [], tmp_path)


def test_the_page_counts_these_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "old-files.md").read_text(encoding="utf-8")
    tried = [(file.row, file.refused) for file in FILES.values()]
    tried += [(row, reason) for row, _, reason in OF_PROJECTS.values()]
    counted = {}
    for title, tried_there, accepted, refused in re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|(.*?)\|$", page, re.M):
        counted[title] = (int(tried_there), int(accepted))
        reasons = [reason for row, reason in tried if row in title or title == "together"]
        assert counted[title] == (len(reasons), reasons.count(None)), title
        if title != "together":
            assert bool(refused.strip()) == (counted[title][0] > counted[title][1]), title
    assert len(counted) == 1 + len({row for row, _ in tried})
