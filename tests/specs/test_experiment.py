import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.errors import SpecError
from steppe.spec_files import load_experiment, read_environment, read_experiment
from steppe.specs._base import Settings, Unit
from steppe.specs.experiment import ExperimentSpec, dump, valid_name
from steppe.specs.loading.validation import unknown_word, validate
from steppe.specs.running.frequency import Frequency

CARTPOLE = {"name": "a", "environment": "CartPole-v1", "agent": "ppo"}
NAME_RULE = (
    'a name is made of letters, digits, ".", "_" and "-", does not start with "." or "-", '
    'and has no ".." and at most 100 characters'
)


class Learner(Settings):
    """The settings of an agent for these tests."""

    discount: Unit = 0.99


def load(project, content, overrides=None, sets=(), **keywords):
    project.write("experiments/a.json", content)
    return load_experiment("experiments/a.json", overrides or {}, list(sets), project.root, **keywords)


def sentence_of(function, *arguments, **keywords):
    with pytest.raises(SpecError) as error:
        function(*arguments, **keywords)
    return str(error.value)


# Specs


def test_the_defaults_are_the_documented_ones(project):
    spec = load(project, CARTPOLE)
    assert (spec.environment.id, spec.agent.type, spec.network, spec.cluster) == ("CartPole-v1", "ppo", None, None)
    assert (spec.platform, spec.run_mode, spec.num_workers, spec.num_parameter_servers) == ("local", "single", 3, 1)
    assert (str(spec.saver_frequency), str(spec.summary_frequency)) == ("600s", "5000t")
    assert (spec.repeat_actions, spec.deterministic, spec.debug_logging, spec.schema_version) == (1, False, False, 1)
    assert [spec.num_envs, spec.seed, spec.evaluation, spec.stop_at_return, spec.max_timesteps_per_episode] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("given_limits", "limits"),
    [
        ({}, (10_000, 1_000_000)),
        ({"episodes": 5}, (5, None)),
        ({"total_timesteps": 1e6}, (None, 1_000_000)),
        ({"episodes": 5, "total_timesteps": 7}, (5, 7)),
    ],
)
def test_a_limit_that_is_not_given_does_not_hold_unless_none_is(project, given_limits, limits):
    assert load(project, CARTPOLE | given_limits).limits == limits


def test_an_old_experiment_file_is_understood(project):
    project.write("configs/agents/dqn_visual.json", {"type": "dqn_agent", "discount": 0.97})
    project.write("configs/networks/small.json", [{"type": "dense", "size": 8}])
    project.write("configs/clusters/small_cluster.json", {"name": "small_cluster", "machine_type": "n1-standard-1"})
    old = {
        "type": "experiment",
        "name": "old",
        "description": "An old file",
        "environment": {"type": "tensorforce.contrib.openai_gym.OpenAIGym", "gym_id": "SpaceInvaders-v0"},
        "agent": "dqn_visual.json",
        "network": "configs/networks/small.json",
        "cluster": "small_cluster.json",
        "timesteps": 1000000,
        "run_mode": "distributed",
        "saver_frequency": 600,
        "summary_frequency": 600,
    }
    spec = load(project, old)
    assert (spec.environment.id, spec.agent.type, spec.agent.settings) == (
        "ALE/SpaceInvaders-v5",
        "dqn",
        {"discount": 0.97},
    )
    assert (spec.total_timesteps, spec.summary_frequency) == (1_000_000, Frequency(600, "s"))
    assert spec.cluster is not None
    assert load(project, old, {"total_timesteps": 5}).total_timesteps == 5


@pytest.mark.parametrize("name", ["a", "CartPole-v1", "a.b_c-1", "0", "_x", "a" * 100])
def test_a_good_name_is_kept(name):
    assert valid_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "../a", "a..b", ".hidden", "-x", "a b", "a\n", "é", "a\\b", "a" * 101]
)
def test_a_name_that_is_no_safe_folder_is_refused(project, name):
    assert sentence_of(valid_name, name) == f'wrong name "{name}"; {NAME_RULE}'
    with pytest.raises(SpecError):
        load(project, CARTPOLE | {"name": name})


# Parts in files of their own


def test_sub_specs_are_found_by_name_by_path_and_inline(project):
    project.write("configs/agents/fast.yaml", "type: ppo\ndiscount: 0.9\n")
    project.write("mine/pole.json", {"id": "CartPole-v1", "backend": "gymnasium"})
    project.write("configs/clusters/small.toml", 'machine_type = "n1"\n')
    spec = load(
        project,
        {
            "agent": "fast",
            "environment": "../mine/pole.json",
            "cluster": "small",
            "network": [{"type": "linear", "size": 4}],
        },
    )
    assert spec.agent.settings == {"discount": 0.9}
    assert (spec.environment.id, spec.environment.backend) == ("CartPole-v1", "gymnasium")
    assert spec.cluster is not None
    assert spec.cluster.machine_type == "n1"


def test_a_toml_network_stands_under_layers(project):
    project.write("configs/networks/n.toml", '[[layers]]\ntype = "dense"\nsize = 4\n')
    spec = load(project, CARTPOLE | {"network": "n"}, sets=["network.0.size=5"])
    (layer,) = spec.model_dump()["network"]
    assert layer | {"type": "dense", "size": 5, "activation": "relu", "bias": True} == layer
    project.write("configs/networks/n.toml", '[[layers]]\ntype = "dens"\n')
    assert sentence_of(load, project, CARTPOLE | {"network": "n"}) == (
        'unknown layer "dens" in configs/networks/n.toml at layers[0].type; did you mean "dense"?'
    )


def test_an_experiment_is_found_by_name_and_takes_its_files_name(project):
    project.write("configs/experiments/cartpole.json", {"environment": "cartpole", "agent": "ppo"})
    project.write("configs/environments/cartpole.json", '"CartPole-v1"')
    spec = load_experiment("cartpole", {}, ["environment.backend=compiled"], project.root / "configs")
    assert (spec.name, spec.environment.id, spec.environment.backend) == ("cartpole", "CartPole-v1", "compiled")


def test_a_file_lying_around_does_not_change_what_an_agent_is(project):
    project.write("ppo.json", {"type": "dqn"})
    assert load_experiment(None, CARTPOLE, [], project.root).agent.type == "ppo"
    assert load_experiment(None, CARTPOLE | {"agent": "ppo.json"}, [], project.root).agent.type == "dqn"


def test_an_environment_id_may_hold_slashes_and_colons(project):
    for name in ("ALE/Pong-v5", "my.module:make"):
        assert load(project, CARTPOLE | {"environment": name}).environment.id == name


def test_without_a_file_the_overrides_are_all(project):
    spec = load_experiment(None, CARTPOLE | {"seed": 3, "episodes": None}, [], project.root)
    assert (spec.name, spec.seed, spec.episodes) == ("a", 3, None)


def test_overrides_come_after_the_file_and_sets_come_last(project):
    content = CARTPOLE | {"episodes": 1, "seed": 1, "num_envs": 1}
    spec = load(project, content, {"episodes": 2, "seed": 2, "num_envs": None}, ["episodes=3", "agent.discount=0.5"])
    assert (spec.episodes, spec.seed, spec.num_envs, spec.agent.settings) == (3, 2, 1, {"discount": 0.5})


def test_an_overridden_sub_spec_need_not_exist(project):
    spec = load(project, CARTPOLE | {"network": "gone"}, {"network": [{"type": "flatten"}]})
    assert spec.network is not None


def test_sets_reach_into_named_sub_specs_and_may_name_others(project):
    project.write("configs/networks/two.json", [{"type": "dense", "size": 8}, {"type": "dense", "size": 8}])
    spec = load(project, CARTPOLE, sets=["network=two", "network.1.size=32", "agent=dqn", "agent.double=true"])
    assert [layer["size"] for layer in spec.model_dump()["network"]] == [8, 32]
    assert (spec.agent.type, spec.agent.settings) == ("dqn", {"double": True})


def test_what_the_caller_gave_is_untouched(project):
    agent = {"type": "ppo"}
    load_experiment(None, CARTPOLE | {"agent": agent}, ["agent.discount=0.5"], project.root)
    assert agent == {"type": "ppo"}


# Mistakes

DENSE = {"type": "dense", "size": 8}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"episods": 5}, 'unknown field "episods" in experiments/a.json at episods; did you mean "episodes"?'),
        ({"episodes": "many"}, 'wrong value "many" in experiments/a.json at episodes; it must be a whole number'),
        (
            {"total_timesteps": 1.5},
            "wrong value 1.5 in experiments/a.json at total_timesteps; it must be a whole number",
        ),
        ({"num_workers": 0}, "wrong value 0 in experiments/a.json at num_workers; it must be at least 1"),
        (
            {"seed": 2**32},
            "wrong value 4294967296 in experiments/a.json at seed; a seed is at most 4294967295",
        ),
        ({"video": 1}, "wrong value 1 in experiments/a.json at video; it must be true or false"),
        (
            {"deterministic": "yes"},
            'wrong value "yes" in experiments/a.json at deterministic; it must be true or false',
        ),
        ({"run_mode": "singel"}, 'unknown value "singel" in experiments/a.json at run_mode; did you mean "single"?'),
        ({"schema_version": 2}, "unknown value 2 in experiments/a.json at schema_version; it must be 1"),
        (
            {"summary_frequency": "10e"},
            'wrong value "10e" in experiments/a.json at summary_frequency; summaries are written by seconds or '
            'timesteps, such as "120s" or "5000t", not by episodes',
        ),
        ({"name": "../x"}, f'wrong value "../x" in experiments/a.json at name; {NAME_RULE}'),
        (
            {"network": [DENSE, {"type": "dens"}]},
            'unknown layer "dens" in experiments/a.json at network[1].type; did you mean "dense"?',
        ),
        (
            {"network": [DENSE, DENSE | {"sise": 1}]},
            'unknown field "sise" in experiments/a.json at network[1].sise; did you mean "size"?',
        ),
        ({"agent": 5}, "wrong value 5 in experiments/a.json at agent; it must be an object"),
        (
            {"evaluation": {"evry": 5}},
            'unknown field "evry" in experiments/a.json at evaluation.evry; did you mean "every"?',
        ),
        (
            {"cluster": {"cpus_per_node": 1}},
            "wrong settings in experiments/a.json at cluster; cpus_per_node and memory_per_node must be given together",
        ),
        ({"stop_at_return": "high"}, 'wrong value "high" in experiments/a.json at stop_at_return; it must be a number'),
        (
            {"episodes": 0, "seed": -1, "num_envs": 0},
            "wrong value 0 in experiments/a.json at episodes; it must be at least 1 (and 2 more mistakes)",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named(project, wrong, sentence):
    assert sentence_of(load, project, CARTPOLE | wrong) == sentence


def test_a_misspelt_field_is_named_rather_than_the_one_it_leaves_missing(project):
    content = {"name": "a", "environmnt": "CartPole-v1", "agent": "ppo"}
    assert sentence_of(load, project, content) == (
        'unknown field "environmnt" in experiments/a.json at environmnt; did you mean "environment"? '
        "(and 1 more mistake)"
    )


def test_a_missing_field_is_named_with_the_flag_that_gives_it(project):
    assert sentence_of(load, project, {"agent": "ppo"}) == (
        'missing field "environment" in experiments/a.json; write it there or give it with -E/--environment'
    )
    assert sentence_of(load_experiment, None, {"environment": "x"}, [], project.root) == (
        'missing field "name"; give it with -n/--name'
    )


def test_a_missing_field_is_named_without_flags_where_there_are_none(project):
    assert sentence_of(load, project, {"agent": "ppo"}, options=False) == (
        'missing field "environment" in experiments/a.json; it has no default, so it must be given'
    )


def test_a_missing_field_inside_a_sub_spec_has_no_flag(project):
    assert sentence_of(load, project, {"environment": {"backend": "auto"}}) == (
        'missing field "id" in experiments/a.json at environment; it has no default, so it must be given'
    )


@pytest.mark.parametrize("written", [{}, {"agent": None}])
def test_without_an_agent_ppo_learns(project, written):
    content = {"environment": "CartPole-v1"} | written
    assert load(project, content).agent.type == "ppo"
    assert load(project, content, sets=["agent.discount=0.5"]).agent.settings == {"discount": 0.5}
    assert load(project, content, {"agent": "dqn"}).agent.type == "dqn"
    project.write("configs/agents/ppo.json", {"type": "ppo", "clip": 0.1})
    assert load(project, content).agent.settings == {"clip": 0.1}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"environment": {"id": "x", "settings": {"a": [object]}}},
            "wrong value <class 'object'> at environment.settings.a[0]; it must be something that JSON can hold",
        ),
        (
            {"environment": {"id": "x", "settings": {"a": {1: 2}}}},
            "wrong field name 1 at environment.settings.a; it must be something that JSON can hold",
        ),
        (
            {"agent": {"type": "ppo", "clip": float("nan")}},
            "wrong value nan at agent.clip; it must be a finite number",
        ),
    ],
)
def test_what_json_cannot_hold_is_refused_before_it_is_written(project, fields, sentence):
    given = CARTPOLE | fields
    assert sentence_of(load_experiment, None, given, [], project.root, options=False) == sentence


def test_a_number_that_is_none_is_refused_in_a_set_too(project):
    assert sentence_of(load, project, CARTPOLE, sets=["environment.settings.gaps=[NaN]"]) == (
        "wrong value nan in --set at environment.settings.gaps[0]; it must be a finite number"
    )


def test_a_file_whose_name_is_no_name_gives_none(project):
    project.write("a..b.json", {"environment": "CartPole-v1"})
    assert sentence_of(load_experiment, "a..b.json", {}, [], project.root) == (
        'missing field "name" in a..b.json; write it there or give it with -n/--name'
    )


def test_a_file_that_is_no_object_is_named(project):
    assert sentence_of(load, project, [1]) == "wrong value [1] in experiments/a.json; it must be an object"


def test_broken_json_is_named_by_line_and_column(project):
    assert sentence_of(load, project, '{"name": "a",\n "agent" "ppo"}') == (
        'broken JSON in experiments/a.json at line 2, column 10: a colon is missing before this: "agent" "ppo"}'
    )


def test_a_mistake_in_a_sub_specs_file_names_that_file(project):
    project.write("configs/networks/nature.json", [DENSE, DENSE | {"size": "big"}])
    assert sentence_of(load, project, CARTPOLE | {"network": "nature"}) == (
        'wrong value "big" in configs/networks/nature.json at [1].size; it must be a whole number'
    )


def test_a_network_or_cluster_that_is_not_found_is_named(project):
    project.write("configs/networks/nature.json", [DENSE])
    assert sentence_of(load, project, CARTPOLE | {"network": "natur"}) == (
        'no network "natur" in experiments/a.json at network: looked for natur.json (or .yaml, .yml, .toml) in '
        'experiments and . and configs/networks; did you mean "nature"?'
    )
    assert sentence_of(load, project, CARTPOLE, {"cluster": "big"}) == (
        'no cluster "big" in --cluster: looked for big.json (or .yaml, .yml, .toml) in . and configs/clusters'
    )


def test_demonstrations_are_found_from_where_they_are_named(project, monkeypatch):
    def found(*arguments, **keywords):
        return load(project, *arguments, **keywords).agent.settings["demonstrations"]

    project.write("elsewhere/good.safetensors", "a namesake")
    monkeypatch.chdir(project.root / "elsewhere")
    agent = {"type": "dqfd", "demonstrations": "good.safetensors"}
    named = CARTPOLE | {"agent": agent}
    assert found(named) == "good.safetensors", "the agent says that it is not there"
    in_project = project.write("good.safetensors", "those of the project")
    assert found(named) == str(in_project.resolve())
    beside = project.write("experiments/good.safetensors", "those of the experiment")
    assert found(named) == str(beside.resolve())
    project.write("configs/agents/shown.json", agent)
    assert found(CARTPOLE | {"agent": "shown"}) == str(in_project.resolve())
    assert found(CARTPOLE | {"agent": "dqfd"}, sets=["agent.demonstrations=elsewhere/good.safetensors"]) == str(
        (project.root / "elsewhere" / "good.safetensors").resolve()
    )
    outside = load_experiment(None, {"name": "a", **named}, [], project.root / "elsewhere")
    assert outside.agent.settings["demonstrations"] == str((project.root / "elsewhere/good.safetensors").resolve())


@pytest.mark.parametrize(
    ("agent", "steps"),
    [
        ({"type": "sac", "critic_network": "wide"}, ["critic_network"]),
        ({"type": "ppo", "baseline": {"type": "network", "network": "wide"}}, ["baseline", "network"]),
        (
            {
                "type": "ppo",
                "baseline": {"type": "aggregated", "baselines": {"s": {"type": "custom", "network": "wide"}}},
            },
            ["baseline", "baselines", "s", "network"],
        ),
        ({"type": "ppo", "baseline": {"s": {"type": "network", "network": "wide"}}}, ["baseline", "s", "network"]),
    ],
)
def test_an_agents_own_networks_are_found_by_name(project, agent, steps):
    def at(settings):
        for step in steps:
            settings = settings[step] if step in settings else settings["baselines"][step]
        return settings

    project.write("configs/networks/wide.json", [DENSE])
    project.write("configs/agents/own.json", agent)
    assert at(load(project, CARTPOLE | {"agent": agent}).agent.settings) == [DENSE]
    assert at(load(project, CARTPOLE | {"agent": "own"}).agent.settings) == [DENSE]
    project.write("configs/networks/wide.json", [DENSE | {"size": 5}])
    sets = [f"agent.{'.'.join(steps)}=wide"]
    assert at(load(project, CARTPOLE | {"agent": agent}, sets=sets).agent.settings) == [DENSE | {"size": 5}]
    project.root.joinpath("configs/networks/wide.json").unlink()
    place = ".".join(["agent", *steps])
    assert sentence_of(load, project, CARTPOLE | {"agent": agent}).startswith(
        f'no network "wide" in experiments/a.json at {place}: looked for wide.json'
    )


def test_paths_in_an_agents_file_begin_at_that_file(project):
    project.write("mine/net.toml", '[[layers]]\ntype = "dense"\nsize = 4\n')
    project.write("mine/agent.json", {"type": "sac", "critic_network": "net.toml"})
    spec = load(project, CARTPOLE | {"agent": "../mine/agent.json"})
    assert spec.agent.settings == {"critic_network": [{"type": "dense", "size": 4}]}


def test_a_mistake_in_the_file_of_an_agents_network_names_that_file(project):
    from steppe.agents import settings_class

    project.write("configs/networks/wide.toml", '[[layers]]\ntype = "dens"\n')
    spec = load(project, CARTPOLE | {"agent": {"type": "sac", "critic_network": "wide"}})
    assert sentence_of(spec.agent.settings_as, settings_class("sac")) == (
        'unknown layer "dens" in configs/networks/wide.toml at layers[0].type; did you mean "dense"?'
    )


def test_an_agent_or_environment_with_an_ending_must_be_a_file(project):
    project.write("configs/agents/fast.json", {"type": "ppo"})
    assert sentence_of(load, project, CARTPOLE | {"agent": "fats.json"}) == (
        'no agent "fats.json" in experiments/a.json at agent: looked for fats.json in experiments and . and '
        'configs/agents; did you mean "fast.json"?'
    )


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["episodes=0"], "wrong value 0 in --set at episodes; it must be at least 1"),
        (["agnt.discount=1"], 'unknown field "agnt" in --set at agnt; did you mean "agent"?'),
        (["evaluation.evry=1"], 'unknown field "evry" in --set at evaluation.evry; did you mean "every"?'),
        (["network.0.size=none"], 'wrong value "none" in --set at network[0].size; it must be a whole number'),
        (
            ["network=nowhere"],
            'no network "nowhere" in --set at network: looked for nowhere.json (or .yaml, .yml, .toml) in . and '
            "configs/networks",
        ),
        (["seed"], 'cannot understand --set "seed"; write --set PATH=VALUE, such as --set agent.discount=0.97'),
    ],
)
def test_a_mistake_in_a_set_is_named(project, sets, sentence):
    assert sentence_of(load, project, CARTPOLE | {"network": [DENSE]}, sets=sets) == sentence


def test_a_mistake_in_an_option_is_named(project):
    assert sentence_of(load, project, CARTPOLE, {"episodes": 0}) == "wrong value 0 in --episodes; it must be at least 1"
    assert sentence_of(load, project, CARTPOLE, {"summary_frequency": "often"}).startswith(
        'wrong value "often" in --summary-frequency; a frequency is written '
    )
    assert sentence_of(load, project, CARTPOLE, {"episodes": 0}, options=False) == (
        "wrong value 0 at episodes; it must be at least 1"
    )


def unknown_agent(spec):
    return str(
        unknown_word(
            "agent", spec.agent.type, ["ppo"], source=spec.agent.origins, path="type", listed_by="steppe agents"
        )
    )


def test_an_unknown_agent_can_be_named_later_where_it_was_written(project):
    spec = load(project, CARTPOLE | {"agent": {"type": "pppo"}})
    assert unknown_agent(spec) == (
        'unknown agent "pppo" in experiments/a.json at agent.type; did you mean "ppo"? ("steppe agents" lists them)'
    )
    assert unknown_agent(load(project, CARTPOLE, {"agent": "pppo"})) == (
        'unknown agent "pppo" in --agent; did you mean "ppo"? ("steppe agents" lists them)'
    )
    project.write("configs/agents/mine.json", {"type": "pppo"})
    assert unknown_agent(load(project, CARTPOLE | {"agent": "mine"})) == (
        'unknown agent "pppo" in configs/agents/mine.json at type; did you mean "ppo"? ("steppe agents" lists them)'
    )


def test_wrong_agent_settings_can_be_named_later_where_they_were_written(project):
    project.write("configs/agents/mine.json", {"type": "ppo", "discount": 2})
    spec = load(project, CARTPOLE | {"agent": "mine"})
    assert sentence_of(spec.agent.settings_as, Learner) == (
        "wrong value 2 in configs/agents/mine.json at discount; it must be at most 1"
    )
    spec = load(project, CARTPOLE | {"agent": "mine"}, sets=["agent.discount=3"])
    assert sentence_of(spec.agent.settings_as, Learner) == (
        "wrong value 3 in --set at agent.discount; it must be at most 1"
    )


# Saved and read again

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
settings_keys = st.text(min_size=1).filter(lambda key: key != "type")
counts = st.none() | st.integers(1, 10**9)
layers = st.one_of(
    st.builds(
        lambda size, activation: {"type": "dense", "size": size, "activation": activation},
        st.integers(1, 512),
        st.sampled_from(["relu", "tanh", "lrelu", "none"]),
    ),
    st.just({"type": "flatten"}),
    st.builds(lambda rate: {"type": "dropout", "rate": rate}, st.floats(0, 1)),
)


def _names_an_environment(id: str) -> bool:
    """Whether the id is neither a connection, which needs an address, nor an environment of old files."""
    try:
        return read_environment(id).id == id and id not in ("remote", "ue4")
    except (SpecError, ValueError):
        return False


experiments = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9_](\.?[A-Za-z0-9_-]){0,20}", fullmatch=True),
        "environment": st.fixed_dictionaries(
            {
                "id": st.text(min_size=1).filter(_names_an_environment),
                "settings": st.dictionaries(st.text(), plain, max_size=3),
            }
        ),
        "agent": st.builds(
            lambda kind, extra: {"type": kind} | extra,
            # Settings of known agents would be translated, and wrong ones refused.
            st.sampled_from(["mine", "mine_agent"]),
            st.dictionaries(settings_keys, plain, max_size=3),
        ),
    },
    optional={
        "description": st.text(),
        "network": st.none() | st.lists(layers, min_size=1, max_size=3),
        "cluster": st.none()
        | st.fixed_dictionaries({"machine_type": st.text(min_size=1), "num_nodes": st.integers(1, 9)}),
        "episodes": counts,
        "total_timesteps": counts,
        "run_mode": st.sampled_from(["single", "multi-threaded", "distributed", "async"]),
        "saver_frequency": st.sampled_from(["600s", "100e", "5000t", 60, 0.25]),
        "summary_frequency": st.sampled_from(["600s", "5000t", 1]),
        "seed": st.none() | st.integers(0, 2**32 - 1),
        "evaluation": st.none() | st.fixed_dictionaries({"every": st.integers(1, 10**6), "greedy": st.booleans()}),
        "stop_at_return": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    },
)


@given(experiments)
@settings(max_examples=150, deadline=None)
def test_a_spec_written_down_is_read_back_the_same(data):
    spec = read_experiment(data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "experiment.json")
        file.write_text(json.dumps(dump(spec)), encoding="utf-8")
        again = load_experiment(file, {}, [], Path(folder))
    assert again == spec
    assert dump(again) == dump(spec)
    assert list(again.agent.settings) == list(spec.agent.settings)


def test_only_a_distributed_run_needs_parameter_servers():
    given = {"name": "x", "environment": "CartPole-v1", "agent": "a3c", "num_parameter_servers": 0}
    for mode in ("single", "multi-threaded", "async"):
        assert validate(ExperimentSpec, given | {"run_mode": mode}).num_parameter_servers == 0
    with pytest.raises(SpecError, match='run mode "distributed" needs at least 1 of num_parameter_servers'):
        validate(ExperimentSpec, given | {"run_mode": "distributed"})


def test_fields_of_old_files_are_understood():
    spec = read_experiment(
        {"name": "x", "environment": "CartPole-v1", "agent": "ppo", "timesteps": 9, "max_episode_timesteps": 3}
    )
    assert (spec.total_timesteps, spec.max_timesteps_per_episode) == (9, 3)


def test_the_evaluation_at_the_end_is_switched_off_by_null_and_in_python_by_none(project):
    assert load(project, {"environment": "CartPole-v1"}).final_evaluation.episodes == 20
    assert load(project, {"environment": "CartPole-v1", "final_evaluation": None}).final_evaluation is None
    assert load(project, {"environment": "CartPole-v1"}, sets=["final_evaluation=null"]).final_evaluation is None
    assert load_experiment(None, CARTPOLE | {"final_evaluation": None}, [], project.root).final_evaluation is None
