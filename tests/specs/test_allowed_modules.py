"""The modules that a file may name."""

from __future__ import annotations

import pytest

from steppe.errors import ModuleNotAllowed, UserError
from steppe.specs.allowed_modules import EVERY_MODULE, NO_MODULES, AllowedModules, named_by, named_in
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.network import NetworkSpec


def test_a_name_allows_the_module_and_those_below_it_and_no_other():
    allowed = AllowedModules.of(("my_layers,other.part", " third "))
    assert all(name in allowed for name in ("my_layers", "my_layers.deep.er", "other.part", "other.part.x", "third"))
    assert not any(name in allowed for name in ("my_layers2", "other", "other.parts", "os", "", "third:x"))
    assert "my_layers" in AllowedModules.of("my_layers")
    assert "anything" in EVERY_MODULE
    assert "anything" not in NO_MODULES | AllowedModules.of(())


@pytest.mark.parametrize("name", ["", "my layers", "my_layers:Layer", "a..b", "../x", "a,", "x.py/"])
def test_what_is_no_name_of_a_module_is_refused(name):
    with pytest.raises(UserError, match="to allow; write its name, such as my_layers"):
        AllowedModules.of([name])


def test_every_layer_of_a_network_is_looked_at():
    layers = [
        {"type": "dense", "size": 3},
        {"type": "output", "name": "a"},
        {"type": "known:Layer"},
        {"type": "custom", "module": "evil.deep:Layer"},
    ]
    network, allowed = NetworkSpec(layers), AllowedModules.of("known")
    with pytest.raises(ModuleNotAllowed) as caught:
        allowed.check_network(network, "the policy in p/")
    assert str(caught.value) == (
        'the policy in p/ has the layer "evil.deep:Layer", which would run code of the module "evil.deep"; if you '
        'trust it, add --allow-modules evil.deep (in Python allow_modules="evil.deep")'
    )
    (allowed | AllowedModules.of("evil")).check_network(network, "the policy")
    allowed.check_network(None, "the policy")


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ("evil:make", "evil"),
        ("evil:Some/World-v0", "evil"),
        ("fine:evil:World-v0", "evil"),
        ({"id": "os:system", "settings": {"command": "true"}}, "os"),
        ({"id": "GymV26Environment-v0", "settings": {"env_id": "evil:World-v0"}}, "evil"),
        ({"id": "CartPole-v1", "wrappers": ["evil.Wrapper"]}, "evil"),
        ({"id": "CartPole-v1", "wrappers": [{"type": "evil:Wrapper"}]}, "evil"),
        ({"id": "CartPole-v1", "wrappers": ["gymnasium.wrappers:utils.os.system"]}, "gymnasium.wrappers"),
        ({"id": "CartPole-v1", "wrappers": ["gymnasium.wrappers.utils.Any"]}, "gymnasium.wrappers.utils"),
    ],
)
def test_every_module_of_an_environment_is_looked_at(environment, module):
    spec, fine = EnvironmentSpec.model_validate(environment), AllowedModules.of("fine")
    with pytest.raises(
        ModuleNotAllowed, match=rf'would run code of the module "{module}"; .*--allow-modules {module} '
    ):
        fine.check_environment(spec, "experiment x")
    (fine | AllowedModules.of(module)).check_environment(spec, "experiment x")


@pytest.mark.parametrize("wrapper", ["gymnasium.wrappers.NormalizeReward", "gymnasium.wrappers:NormalizeReward"])
def test_ids_and_wrappers_of_gymnasium_need_no_permission(wrapper):
    NO_MODULES.check_environment(EnvironmentSpec(id="CartPole-v1", wrappers=[{"type": wrapper}]), "it")


def test_what_a_terminal_would_obey_is_not_shown():
    with pytest.raises(ModuleNotAllowed) as caught:
        NO_MODULES.check_environment(EnvironmentSpec(id="\x1b[2Jevil:x" + "y" * 500), "it")
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_modules_of_a_users_own_spec():
    spec = ExperimentSpec(
        name="x",
        environment={"id": "my_env:make", "wrappers": ["my_wrappers:Wrapper"]},
        agent={"type": "ppo", "baseline": {"type": "network", "network": [{"type": "my_values.deep:Layer"}]}},
        network=[{"type": "my_layers:Layer"}],
    )
    assert named_by(spec).names == {"my_env", "my_wrappers", "my_values.deep", "my_layers"}
    assert named_by(ExperimentSpec(name="x", environment="CartPole-v1", agent="ppo")).names == frozenset()
    assert named_in("my_env:make").names == {"my_env"}
    assert named_in("CartPole-v1") == named_in(None) == named_in("configs/x.json") == NO_MODULES
