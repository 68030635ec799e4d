"""One shard: one update for each push, and a complete state for another server."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from steppe.runners.engines.distributed.moments import NormalizerMoments, of_values
from steppe.runners.engines.distributed.parameter_server import ParameterServer, Push, Segment, ShardConfig, fresh_state
from steppe.specs.learning.optimizer import Adam, GradientDescent

RATE = 0.5


def made(size: int = 4, optimizer: Any = None, **config: Any) -> ParameterServer:
    server = ParameterServer(ShardConfig([Segment(0, size, optimizer or GradientDescent(), RATE)], **config))
    server.restore(fresh_state(np.zeros(size, np.float32), np.zeros(0, np.float32), 0, None))
    return server


def push(worker: int, sequence: int, *values: float, read: int = 0, size: int = 4, **more: Any) -> Push:
    gradients = np.array([np.full(size, value) for value in values], np.float32).reshape(len(values), size)
    return Push(worker, sequence, read, gradients, **more)


def test_every_gradient_of_a_push_is_one_update():
    server = made()
    answer = server.push(push(0, 1, 1.0, 2.0))
    assert answer.version == 2
    np.testing.assert_allclose(answer.params, -1.5)


def test_a_push_that_arrives_again_changes_nothing():
    server = made(optimizer=Adam())
    server.push(push(0, 1, 1.0))
    before = server.params.copy()
    answer = server.push(push(0, 1, 1.0))
    assert (answer.version, answer.was_applied) == (1, True)
    np.testing.assert_array_equal(server.params, before)


def test_a_push_that_arrives_again_after_a_restart_changes_nothing():
    first = made(optimizer=Adam())
    first.push(push(0, 1, 1.0))
    first.push(push(1, 1, 2.0))
    second = made(optimizer=Adam())
    second.restore(first.state())
    second.push(push(1, 1, 2.0))
    assert second.version == 2
    np.testing.assert_array_equal(second.params, first.params)


def test_a_server_continues_from_another_servers_state_bit_for_bit():
    first, second = made(optimizer=Adam()), made(optimizer=Adam())
    first.push(push(0, 1, 1.0, -2.0))
    second.restore(first.state())
    for server in (first, second):
        server.push(push(0, 2, 0.5))
    np.testing.assert_array_equal(second.params, first.params)
    assert second.version == first.version == 3


def test_gradients_that_are_too_old_are_dropped():
    server = made(max_staleness=2)
    server.push(push(0, 1, 1.0, 1.0, 1.0))
    stale, fresh = server.push(push(1, 1, 1.0, read=0)), server.push(push(2, 1, 1.0, read=1))
    assert (stale.was_applied, stale.staleness, stale.version) == (False, 3, 3)
    assert (fresh.was_applied, fresh.staleness, fresh.version) == (True, 2, 4)
    # A repeated stale push is dropped again.
    assert not server.push(push(1, 1, 1.0, read=0)).was_applied


def test_parameters_are_handed_out_only_when_they_have_changed():
    server = made()
    assert server.pull(0, -1).params is None
    server.push(push(0, 1, 1.0))
    np.testing.assert_allclose(server.pull(0, -1).params, -0.5)
    assert server.push(push(0, 2, known=1)).params is None, "a push without gradients moves nothing"
    np.testing.assert_allclose(server.push(push(1, 1, known=0)).params, -0.5)


def test_workers_step_together_with_the_mean_of_their_gradients():
    server = made()
    server.hold(push(0, 1, 1.0, 4.0))
    server.hold(push(1, 1, 3.0))
    server.hold(push(7, 1, 100.0))  # the worker was lost before it had sent to all servers
    assert server.step_together(1, [0, 1]) == 2
    np.testing.assert_allclose(server.params, -RATE * (2.0 + 4.0))
    assert server.step_together(1, [0, 1]) == 2, "the same round does not count twice"
    assert server.step_together(2, [0, 1]) == 2, "what was held is used up"


def test_targets_follow_every_so_many_updates():
    server = ParameterServer(ShardConfig([Segment(0, 2, GradientDescent(), RATE)], None, 2, 0.5))
    server.restore(fresh_state(np.zeros(2, np.float32), np.zeros(2, np.float32), 0, None))
    first = server.push(push(0, 1, 1.0, size=2)._replace(known_target=0))
    assert first.target is None
    second = server.push(push(0, 2, 1.0, size=2)._replace(known_target=0))
    np.testing.assert_allclose(second.target, -0.5)
    assert second.target_version == 2
    assert server.pull(2, 2).target is None


def test_each_segment_has_an_optimiser_of_its_own():
    server = ParameterServer(
        ShardConfig([Segment(0, 1, GradientDescent(), 1.0), Segment(1, 3, GradientDescent(), 0.1)])
    )
    server.restore(fresh_state(np.zeros(3, np.float32), np.zeros(0, np.float32), 0, None))
    server.push(push(0, 1, 1.0, size=3))
    np.testing.assert_allclose(server.params, [-1.0, -0.1, -0.1])


def test_normaliser_statistics_are_merged_and_saved():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, (5, 7, 2)) for _ in range(3)]
    nothing = np.zeros((1, 1))
    server = made()
    server.seen = NormalizerMoments(of_values(parts[0]), of_values(nothing))
    server.push(push(0, 1, 1.0, seen=NormalizerMoments(of_values(parts[1]), of_values(nothing))))
    other = made()
    other.restore(server.state())
    answer = other.push(push(1, 1, 1.0, seen=NormalizerMoments(of_values(parts[2]), of_values(nothing))))
    together = np.concatenate(parts)
    np.testing.assert_allclose(answer.seen.observations.mean, together.mean((0, 1)))
    np.testing.assert_allclose(answer.seen.observations.variance, together.var((0, 1)))
    assert answer.seen.observations.samples == 105


@pytest.mark.parametrize("gradients", [0, 1])
def test_a_restarted_server_does_not_mind_workers_that_know_more(gradients):
    server = made(max_staleness=1)
    answer = server.push(push(0, 9, *[1.0] * gradients, read=50))
    assert answer.was_applied
    assert answer.version == gradients


def test_a_server_needs_no_jax():
    program = (
        "import sys, steppe.runners.engines.distributed.server_pool; print('jax' in sys.modules, 'ray' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]
