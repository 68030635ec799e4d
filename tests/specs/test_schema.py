import json
import subprocess
import sys

import pytest

from steppe.errors import SpecError
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.schema import KINDS, schema_of


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_schema_that_is_json(kind):
    schema = json.loads(json.dumps(schema_of(kind)))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["description"]


def test_every_experiment_field_is_described_with_its_default():
    properties = schema_of("experiment")["properties"]
    assert set(properties) == set(ExperimentSpec.model_fields)
    assert all(field["description"] for field in properties.values())
    assert properties["saver_frequency"]["default"] == "600s"
    assert properties["summary_frequency"]["default"] == "5000t"
    assert schema_of("experiment")["required"] == ["name", "environment", "agent"]


@pytest.mark.parametrize("kind", ["environment", "agent", "network", "cluster"])
def test_an_experiment_file_may_name_a_sub_spec(kind):
    options = schema_of("experiment")["properties"][kind]["anyOf"]
    assert {"type": "string", "description": f"The name of a file in configs/{kind}s/, or a path."} in options
    assert any("$ref" in option for option in options)


def test_an_unknown_kind_is_named():
    with pytest.raises(SpecError) as error:
        schema_of("experimnt")
    assert str(error.value) == 'unknown kind of spec "experimnt"; did you mean "experiment"?'


def test_specs_are_light_to_import():
    heavy = "{'jax', 'flax', 'optax', 'gymnasium', 'tensorboardX', 'numpy', 'yaml', 'onnx', 'PIL'}"
    code = f"import sys, steppe.specs; print(sorted({heavy} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
