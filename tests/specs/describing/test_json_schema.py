import json
import subprocess
import sys
from typing import Literal

import pytest
from pydantic import AliasChoices, Field

from steppe.errors import SpecError
from steppe.specs._base import Positive, Settings, Spec, Unit
from steppe.specs.describing.json_schema import KINDS, schema_of
from steppe.specs.experiment import ExperimentSpec
from steppe.tensorforce import OLD_FIELDS
from steppe.tensorforce.vocabulary import OldSpellings


class Memory(Spec):
    """A group of settings for these tests."""

    kind: Literal["small", "large"] = "small"


class Quick(Settings):
    """Settings of `quick`."""

    discount: Unit = 0.99
    """How much the future counts."""
    memory: Memory = Memory()


class Careful(Settings):
    """Settings of `careful`."""

    clip: Positive = Field(0.2, validation_alias=AliasChoices("clip", "clipping"))


AGENTS = {"quick": Quick, "careful": Careful}


def references(schema):
    """Every definition that is referred to."""
    if isinstance(schema, list):
        return {name for item in schema for name in references(item)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"].removeprefix("#/$defs/")} if "$ref" in schema else set()
    return own.union(*(references(value) for value in schema.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_schema_that_is_json(kind):
    schema = json.loads(json.dumps(schema_of(kind)))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["description"]


def test_every_experiment_field_is_described_with_its_default():
    properties = schema_of("experiment")["properties"]
    assert set(properties) == {*ExperimentSpec.model_fields, "effective", "$schema"}
    old = schema_of("experiment", spellings=OldSpellings())["properties"]
    assert set(old) - set(properties) == {*OLD_FIELDS, "type"}
    assert all(field["description"] for name, field in properties.items() if name != "$schema")
    assert properties["saver_frequency"]["default"] == "600s"
    assert properties["summary_frequency"]["default"] == "5000t"


def test_a_file_needs_neither_a_name_nor_an_agent():
    assert schema_of("experiment")["required"] == ["environment"]


@pytest.mark.parametrize("kind", ["environment", "agent", "network", "cluster"])
def test_an_experiment_file_may_name_a_sub_spec(kind):
    options = schema_of("experiment")["properties"][kind]["anyOf"]
    assert {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."} in options
    assert any("$ref" in option for option in options)


def test_an_agents_schema_has_a_branch_with_the_settings_of_each_type():
    quick, careful, words = schema_of("agent", AGENTS)["oneOf"]
    assert [each["const"] for each in words["anyOf"]] == ["quick", "careful"]
    assert (quick["title"], quick["required"], quick["additionalProperties"]) == ("quick", ["type"], False)
    assert quick["properties"]["type"]["const"] == "quick"
    assert list(quick["properties"])[:3] == ["type", "discount", "memory"]
    discount = quick["properties"]["discount"]
    assert (discount["default"], discount["anyOf"][0]["maximum"]) == (0.99, 1.0)
    assert discount["description"] == "How much the future counts."
    assert list(careful["properties"])[:3] == ["type", "clip", "clipping"]
    assert careful["properties"]["clipping"] == careful["properties"]["clip"]


def test_old_words_for_an_agent_are_in_no_schema_but_that_of_the_front_end():
    quick, _, _ = schema_of("agent", AGENTS)["oneOf"]
    assert not {"gamma", "batched_observe", "defaults_of"} & set(quick["properties"])
    quick, careful, words = schema_of("agent", AGENTS, OldSpellings())["oneOf"]
    assert [each["anyOf"][0]["enum"] for each in words["anyOf"]] == [
        ["quick", "quick_agent"],
        ["careful", "careful_agent"],
    ]
    assert quick["properties"]["discount"] in quick["properties"]["gamma"]["anyOf"]
    assert careful["properties"]["gamma"] == {"anyOf": [{"type": "null"}]}
    assert careful["properties"]["batched_observe"]


@pytest.mark.parametrize("kind", ["agent", "experiment"])
def test_everything_that_is_referred_to_is_there(kind):
    schema = schema_of(kind, AGENTS)
    assert references(schema) - set(schema["$defs"]) == set()
    assert "Memory" in schema["$defs"]
    assert "Quick" not in schema["$defs"]


def test_an_experiments_schema_knows_the_agents_too():
    agent = schema_of("experiment", AGENTS)["$defs"]["AgentSpec"]
    assert agent["oneOf"] == schema_of("agent", AGENTS)["oneOf"]


def test_only_the_top_of_a_graph_may_name_its_schema():
    schema = schema_of("graph")
    tops = [option for option in schema["anyOf"] if "properties" in option]
    assert [option["properties"]["kind"]["const"] for option in tops] == ["model", "abtest", "router", "shadow"]
    assert all("$schema" in option["properties"] for option in tops)
    assert not any("$schema" in each.get("properties", {}) for each in schema["$defs"].values())
    assert references(schema) - set(schema["$defs"]) == set()


def test_an_unknown_kind_is_named():
    with pytest.raises(SpecError) as error:
        schema_of("experimnt")
    assert str(error.value) == 'unknown kind of spec "experimnt"; did you mean "experiment"?'


def test_specs_are_light_to_import():
    heavy = "{'jax', 'flax', 'optax', 'gymnasium', 'tensorboardX', 'numpy', 'yaml', 'onnx', 'PIL'}"
    code = f"import sys, steppe.specs; print(sorted({heavy} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_importing_specs_builds_no_lists_by_themselves():
    code = (
        "import steppe.specs.learning.agent_settings; from steppe.specs.learning.network import NetworkSpec; "
        "from steppe.specs.learning.preprocessing import PreprocessingSpec, RewardPreprocessingSpec; "
        "print([kind.__pydantic_complete__ for kind in (NetworkSpec, PreprocessingSpec, RewardPreprocessingSpec)])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[False, False, False]"
