import json

import pytest

from steppe.errors import SpecError
from steppe.spec_files import load_experiment, read_cluster
from steppe.specs.loading.validation import validate
from steppe.specs.running.cluster import ClusterSpec


def test_the_old_defaults_hold():
    cluster = validate(ClusterSpec, {"name": "small", "machine_type": "n1-standard-1"})
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.gpu_type, cluster.disk_size) == (3, 0, None, 100)


def test_an_old_file_may_say_what_it_is(tmp_path):
    written = {"type": "cluster", "provider": "kind", "num_nodes": 2}
    cluster = read_cluster(written)
    assert cluster.num_nodes == 2
    (tmp_path / "small.json").write_text(json.dumps(written))
    for given in (written, "small.json"):
        experiment = {"name": "x", "environment": "CartPole-v1", "cluster": given}
        assert load_experiment(None, experiment, [], tmp_path, options=False).cluster == cluster


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            {"machine_type": "n1", "cpus_per_node": 4, "memory_per_node": 16},
            "wrong settings in c.json; give either machine_type or cpus_per_node and memory_per_node, not both",
        ),
        ({"cpus_per_node": 4}, "wrong settings in c.json; cpus_per_node and memory_per_node must be given together"),
        ({"num_nodes": 0}, "wrong value 0 in c.json at num_nodes; it must be at least 1"),
        ({"memory_per_node": 0}, "wrong value 0 in c.json at memory_per_node; it must be more than 0"),
        ({"type": "agent"}, 'unknown field "type" in c.json at type; did you mean "gpu_type"?'),
        ({"gpu_per_node": 1}, 'unknown field "gpu_per_node" in c.json at gpu_per_node; did you mean "gpus_per_node"?'),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        validate(ClusterSpec, written, source="c.json")
    assert str(error.value) == sentence
