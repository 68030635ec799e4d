"""Machine types from CPUs, memory and GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from steppe.clusters.machines import amazon_machine, google_machine
from steppe.errors import UserError
from steppe.specs.running.cluster import ClusterSpec


def nodes(cpus: int | None = None, memory: float | None = None, **fields: Any) -> ClusterSpec:
    return ClusterSpec(cpus_per_node=cpus, memory_per_node=memory, **fields)


T4 = {"gpus_per_node": 1, "gpu_type": "nvidia-tesla-t4"}


@pytest.mark.parametrize(
    ("spec", "machine"),
    [
        (nodes(), "e2-standard-4"),
        (nodes(machine_type="n1-standard-1"), "n1-standard-1"),
        (nodes(2, 8), "e2-custom-2-8192"),
        (nodes(4, 7.3), "e2-custom-4-7424"),
        (nodes(64, 256), "n2-custom-64-262144"),
        (nodes(8, 32, **T4), "custom-8-32768"),
        (nodes(**T4), "n1-standard-4"),
    ],
)
def test_google_machines_have_exactly_the_requested_size(spec: ClusterSpec, machine: str) -> None:
    assert google_machine(spec) == machine


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (nodes(3, 8), "an even number up to 32"),
        (nodes(2, 64), "has 1 to 16 GB of memory_per_node"),
        (nodes(200, 800), "an even number up to 128"),
        (nodes(8, 32, gpus_per_node=1, gpu_type="nvidia-l4"), "give machine_type (g2-standard-*)"),
    ],
)
def test_machines_that_google_does_not_offer_are_refused(spec: ClusterSpec, words: str) -> None:
    with pytest.raises(UserError) as error:
        google_machine(spec)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("spec", "machine"),
    [
        (nodes(), "m6i.xlarge"),
        (nodes(machine_type="t3.small"), "t3.small"),
        (nodes(2, 4), "c6i.large"),
        (nodes(2, 8), "m6i.large"),
        (nodes(3, 8), "c6i.xlarge"),
        (nodes(8, 60), "r6i.2xlarge"),
        (nodes(8, 32, **T4), "g4dn.2xlarge"),
        (nodes(gpus_per_node=4, gpu_type="nvidia-a10g"), "g5.12xlarge"),
    ],
)
def test_amazon_machines_are_the_smallest_that_fit(spec: ClusterSpec, machine: str) -> None:
    assert amazon_machine(spec) == machine


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (nodes(500, 8), "give a machine_type"),
        (nodes(4, 16, gpus_per_node=2, gpu_type="nvidia-tesla-t4"), "no machine on eks has 2 of nvidia-tesla-t4"),
        (nodes(4, 16, gpus_per_node=1, gpu_type="nvidia-tesla-t5"), 'did you mean "nvidia-tesla-t4"?'),
    ],
)
def test_machines_that_amazon_does_not_offer_are_refused(spec: ClusterSpec, words: str) -> None:
    with pytest.raises(UserError) as error:
        amazon_machine(spec)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["large_cluster", "single_node", "single_node_gpu", "small_cluster"])
def test_every_shipped_cluster_has_machines_in_both_clouds(name: str) -> None:
    import json
    from importlib import resources

    text = (resources.files("steppe.experiments") / "templates" / "clusters" / f"{name}.json").read_text()
    spec = ClusterSpec(**json.loads(text))
    assert google_machine(spec)
    assert amazon_machine(spec)
