import re

import pytest

from steppe.platforms.kubernetes.manifests import naming

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NAMES = ["first", "First", "a.b", "a_b", "a-b", "_x_", "x" * 100, "Ωμέγα-1", "0", "...", "a" * 29 + "-b"]


@pytest.mark.parametrize("name", NAMES)
def test_names_and_labels_are_valid_whatever_the_experiment_is_called(name):
    run = naming.run_name("My Project!", name)
    assert DNS_LABEL.fullmatch(f"{run}-results")
    # The suffix that a Job adds for each of its Pods.
    assert DNS_LABEL.fullmatch(f"{run}-driver-x7x7x")
    assert all(LABEL.fullmatch(value) for value in naming.labels_of("My Project!", name).values())


def test_no_two_experiments_share_a_name():
    runs = [naming.run_name(project, name) for name in NAMES for project in ("p", "q", "p\0q")]
    assert len(set(runs)) == len(runs)


def test_a_name_says_which_experiment_it_is():
    assert re.fullmatch(r"steppe-cartpole-ppo-1-[0-9a-f]{8}", naming.run_name("p", "CartPole_PPO.1"))
