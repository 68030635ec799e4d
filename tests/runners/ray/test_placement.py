"""Checks whether Ray can place an experiment's workers; distributed/test_engine.py uses a real Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from runs import experiment

from steppe.errors import UserError
from steppe.runners.engines.asynchronous.learner.worker_pool import RayWorkerPool
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.ray.placement import check_room, check_sharing
from steppe.specs.running.distributed import RaySpec


@pytest.mark.parametrize(("gpus", "fits"), [(0.33, True), (1, True), (2, False)])
def test_it_is_said_at_once_when_no_machine_has_room_for_a_worker(caplog, gpus, fits):
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}}, {"Alive": False, "Resources": {"GPU": 8.0}}]
    ray, spec = SimpleNamespace(nodes=lambda: nodes), RaySpec(gpus_per_worker=gpus)
    if fits:
        check_room(ray, spec, can_grow=False)
        return
    with pytest.raises(UserError, match="no machine of this Ray has 1 CPUs and 2 GPUs for a worker"):
        check_room(ray, spec, can_grow=False)
    check_room(ray, spec, can_grow=True)
    assert "the run waits until one joins" in caplog.text


def spec_of(**ray: Any) -> Any:
    return experiment("CartPole-v1", "dqn", run_mode="async", num_workers=20, ray=ray)


@pytest.mark.parametrize("ray", [{}, {"gpus_per_worker": 0.33}, {"gpus_per_worker": 0.26}, {"gpus_per_worker": 2}])
def test_three_workers_may_share_a_gpu(ray):
    check_sharing(spec_of(**ray))


def test_a_share_that_puts_more_on_a_gpu_is_refused_with_the_ways_out():
    with pytest.raises(UserError) as refused:
        check_sharing(spec_of(gpus_per_worker=0.1))
    assert str(refused.value) == (
        "ray.gpus_per_worker 0.1 would put 10 workers on a GPU, and no more than 3 share one; give each 0.33 or more, "
        "or say how many may by ray.workers_per_gpu"
    )


def test_how_many_share_a_gpu_can_be_said():
    check_sharing(spec_of(gpus_per_worker=0.1, workers_per_gpu=10))
    with pytest.raises(UserError, match=r"would put 2 workers on a GPU, and no more than 1 share one; give each 1 or"):
        check_sharing(spec_of(gpus_per_worker=0.5, workers_per_gpu=1))


def test_so_few_workers_as_may_share_a_gpu_may_have_any_share():
    check_sharing(spec_of(gpus_per_worker=0.1).model_copy(update={"num_workers": 3}))


def test_pods_are_shared_out_by_kubernetes():
    check_sharing(spec_of(gpus_per_worker=0.1).model_copy(update={"platform": "kubernetes"}))


def test_a_learner_finds_it_out_before_it_starts_a_ray(monkeypatch):
    monkeypatch.setattr("steppe.runners.ray.ray_session.ray_session", lambda *_, **__: pytest.fail("a Ray was started"))
    spec = spec_of(gpus_per_worker=0.1)
    with pytest.raises(UserError, match="would put 10 workers on a GPU"):
        RayWorkerPool(spec, EpisodeRules(spec.environment), 1).open()
