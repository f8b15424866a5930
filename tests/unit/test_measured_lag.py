"""How many bytes a peer lags by, which the core does not know."""

import pytest

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.config import GroupConfig
from quorumlog.node.replica.pushes import Pushes
from quorumlog.raft.effects import MeasureLag
from quorumlog.raft.events import LagMeasured
from quorumlog.storage.log.memory_log import MemoryLog
from replica_context import Surroundings

SIZES = (10, 3_000, 0)


@pytest.fixture
def leader():
    log = MemoryLog()
    for size in SIZES:
        data = memoryview(bytearray(encode_block([bytes(size)])))
        log.append(parse_block(data, count=1, entry_bytes_max=1 << 20), 1)
    return Surroundings(GroupConfig(group="g", peers="n0-127.0.0.1:1"), log=log)


@pytest.mark.parametrize("match_index", [-1, 0, 1])
def test_the_bytes_between_what_a_peer_has_and_the_end_are_counted(leader, match_index):
    Pushes(leader.context, None, None).measure_lag(MeasureLag("n1", match_index))
    lacks = SIZES[match_index + 1 :]
    assert leader.steps == [LagMeasured("n1", sum(lacks) + 48 * len(lacks))]


def test_a_lag_that_cannot_be_measured_is_not_reported(leader):
    log = leader.context.log
    log.note_committed(2)
    log.reset(1)
    Pushes(leader.context, None, None).measure_lag(MeasureLag("n1", 0))
    assert leader.steps == []
