"""The checks before an experiment is made, if its environment exists only in its Pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import TINY_DQN, experiment

from steppe.errors import MissingEnvironment
from steppe.experiments import lifecycle
from steppe.specs.experiment import ExperimentSpec

WAY_OUT = "name that in kubernetes.image, or in kubernetes.worker.image where workers act"


def elsewhere(**fields: Any) -> ExperimentSpec:
    return experiment("nowhere_installed:World", TINY_DQN, run_mode="async", **fields)


@pytest.mark.parametrize("own", [{"worker": {"image": "simulator:7"}}, {"image": "all:7"}])
def test_an_environment_that_only_an_image_has_is_noticed(tmp_path: Path, own: dict[str, Any]) -> None:
    assert lifecycle.check(elsewhere(kubernetes=own), tmp_path) == [
        "its agent and network are not checked yet, since its environment is not installed here"
    ]


@pytest.mark.parametrize(("platform", "is_told"), [("kubernetes", True), ("local", False)])
def test_one_that_nothing_is_said_to_have_is_an_error(tmp_path: Path, platform: str, is_told: bool) -> None:
    with pytest.raises(MissingEnvironment, match='the module "nowhere_installed", which is not there') as caught:
        lifecycle.check(elsewhere(platform=platform), tmp_path)
    assert (WAY_OUT in str(caught.value)) == is_told
