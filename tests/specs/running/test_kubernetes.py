import pytest

from steppe.errors import SpecError
from steppe.specs.loading.validation import validate
from steppe.specs.running.kubernetes import KubernetesSpec, joined


def spec(**fields):
    return validate(KubernetesSpec, fields, source="k.json")


def test_an_experiments_words_come_before_its_clusters():
    both = joined(
        spec(image="a", storage=5.0, env={"A": "1", "B": "1"}, driver={"cpus": 2.0, "memory": 4.0}),
        spec(image="b", env={"B": "2"}, driver={"memory": 8.0}),
    )
    assert (both.image, both.storage, both.env) == ("b", 5.0, {"A": "1", "B": "2"})
    assert (both.driver.cpus, both.driver.memory) == (2.0, 8.0)


def test_what_only_one_says_holds():
    one = spec(queue="red", tolerations=[{"key": "gpu"}])
    assert (
        joined(one, None) == joined(None, one) == joined(one, KubernetesSpec()) == joined(KubernetesSpec(), one) == one
    )
    assert joined(None, None) == KubernetesSpec()


def test_a_spec_that_was_written_down_joins_as_before():
    cluster, own = spec(image="a", queue="red"), spec(driver={"cpus": 1.0})
    written = KubernetesSpec.model_validate_json(own.model_dump_json())
    assert joined(cluster, written) == joined(cluster, own)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"volumes": [{"emptyDir": {}}]}, 'each of volumes needs "name"'),
        ({"sidecars": [{"name": "x"}]}, 'each of sidecars needs "image"'),
        ({"node_selectors": {}}, 'did you mean "node_selector"?'),
        ({"driver": {"memory": 0}}, "k.json at driver.memory; it must be more than 0"),
        ({"engine": "ray"}, "k.json at engine"),
    ],
)
def test_a_mistake_is_named(written, sentence):
    with pytest.raises(SpecError) as error:
        spec(**written)
    assert sentence in str(error.value)
