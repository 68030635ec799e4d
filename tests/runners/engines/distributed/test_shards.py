"""A checkpoint holds the parameters as one vector, from which any number of servers can continue."""

from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import CheckpointError, UserError
from steppe.runners.engines.distributed.gradient_tape import OptimizerRange
from steppe.runners.engines.distributed.moments import NormalizerMoments, of_values
from steppe.runners.engines.distributed.parameter_server import ParameterServer, Push, Segment, ShardConfig, fresh_state
from steppe.runners.engines.distributed.plan import borders_of
from steppe.runners.engines.distributed.shards import joined_state, split_state
from steppe.specs.learning.optimizer import Adam, RMSProp

SIZE = 11
PARTS = [OptimizerRange(0, 4, Adam(), 0.01), OptimizerRange(4, SIZE, RMSProp(), 0.02)]


def servers_for(whole, count):
    borders = borders_of(SIZE, count)
    servers = []
    for state, start, stop in zip(split_state(whole, borders, PARTS), borders, borders[1:], strict=False):
        segments = [
            Segment(max(part.start, start) - start, min(part.stop, stop) - start, part.optimizer, part.rate)
            for part in PARTS
            if part.start < stop and part.stop > start
        ]
        server = ParameterServer(ShardConfig(segments))
        server.restore(state)
        servers.append(server)
    return servers, borders


def push_to_all(servers, borders, sequence, gradients):
    for server, start, stop in zip(servers, borders, borders[1:], strict=False):
        server.push(Push(0, sequence, 0, np.ascontiguousarray(gradients[:, start:stop])))


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 5)])
def test_another_number_of_servers_takes_the_same_steps(counts):
    rng = np.random.default_rng(1)
    seen = NormalizerMoments(of_values(rng.normal(size=(3, 4, 2))), of_values(rng.normal(size=(3, 4))))
    begun = fresh_state(rng.normal(size=SIZE).astype(np.float32), np.zeros(SIZE, np.float32), 5, seen)
    wholes = []
    for count in counts:
        whole = begun
        for sequence in range(3):
            servers, borders = servers_for(whole, count)
            push_to_all(servers, borders, sequence, np.full((2, SIZE), 0.3 + sequence, np.float32))
            whole = joined_state([server.state() for server in servers], borders, PARTS)
        wholes.append(whole)
    assert wholes[0].keys() == wholes[1].keys()
    assert wholes[0]["counters"][0] == 11
    for name in wholes[0]:
        np.testing.assert_array_equal(wholes[0][name], wholes[1][name], err_msg=name)


def test_shards_are_of_nearly_equal_size():
    assert borders_of(10, 3) == [0, 3, 6, 10]


def test_there_are_no_more_servers_than_parameters():
    with pytest.raises(UserError, match="num_parameter_servers is 12, but the network has only 11"):
        borders_of(11, 12)


def test_a_checkpoint_of_another_network_is_refused():
    whole = fresh_state(np.zeros(SIZE, np.float32), np.zeros(0, np.float32), 0, None)
    with pytest.raises(CheckpointError, match="holds 11 parameters, but this experiment has 12"):
        split_state(whole, [0, 12], PARTS)
