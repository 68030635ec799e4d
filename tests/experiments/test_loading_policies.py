"""steppe.load_policy; a policy's description, and its errors for wrong observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steppe
from steppe.cli import main
from steppe.errors import UserError


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> steppe.Experiment:
    monkeypatch.chdir(tmp_path)
    fields: dict[str, Any] = {"agent": "vpg", "num_envs": 1, "total_timesteps": 1, "video": False, "progress": False}
    return steppe.train("CartPole-v1", name="ppo-s1", **fields)


def test_a_policy_is_loaded_by_its_experiments_name(experiment: steppe.Experiment) -> None:
    policy = steppe.load_policy("ppo-s1")
    assert policy.description == experiment.policy().description
    assert steppe.load_policy(experiment.folder).tensors.keys() == policy.tensors.keys()
    with pytest.raises(UserError, match=r'there is no policy in "ppo-s2": .*did you mean "ppo-s1"'):
        steppe.load_policy("ppo-s2")
    with pytest.raises(UserError, match="there is no policy in nowhere/at-all"):
        steppe.load_policy("nowhere/at-all")


def test_a_policy_says_what_it_is(experiment: steppe.Experiment) -> None:
    said = repr(steppe.load_policy("ppo-s1"))
    timestep = experiment.status.timestep
    assert said == f"<Policy of vpg on CartPole-v1 at timestep {timestep:,}: Box(4,) -> Discrete(2)>"


def test_numbers_that_are_none_are_refused(experiment: steppe.Experiment) -> None:
    policy = steppe.load_policy("ppo-s1")
    for bad in (np.nan, np.inf):
        with pytest.raises(UserError, match=f"finite numbers, but this one has {bad} in it"):
            policy.act([0.0, bad, 0.0, 0.0])
        with pytest.raises(UserError, match="finite numbers"):
            policy.act(np.full((3, 4), bad))
    assert policy.act([0.0] * 4) in (0, 1)


def test_a_policy_is_exported_under_no_other_ending_than_onnx(
    experiment: steppe.Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    for name, better in (("p.pt", "p.onnx"), ("deep/p.tflite", "deep/p.onnx")):
        assert main(["policy", "export", "ppo-s1", "--to", name]) == 2
        assert f'not as "{Path(name).suffix}"; call the file {better}' in capsys.readouterr().err
        assert not Path(name).exists()
    assert main(["policy", "export", "ppo-s1", "--to", "p.onnx"]) == 0
