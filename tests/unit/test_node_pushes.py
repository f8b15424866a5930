"""What a leader finds out about its peers' logs: how far they lag, and why they refuse a push."""

import logging

import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import PushResponse
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
    Pushes(leader.context, None, None, None).measure_lag(MeasureLag("n1", match_index))
    lacks = SIZES[match_index + 1 :]
    assert leader.steps == [LagMeasured("n1", sum(lacks) + 48 * len(lacks))]


def test_a_lag_that_cannot_be_measured_is_not_reported(leader):
    log = leader.context.log
    log.note_committed(2)
    log.reset(1)
    Pushes(leader.context, None, None, None).measure_lag(MeasureLag("n1", 0))
    assert leader.steps == []


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_STATE])
def test_a_push_that_a_peer_refuses_is_logged_with_the_reason(leader, caplog, code):
    caplog.set_level(logging.DEBUG)
    response = PushResponse(
        group="g",
        local_id="n1",
        remote_id="n0",
        term=1,
        type=PushType.COMPARE,
        request_id=1,
        code=code,
        match_index=-1,
        end_index=7,
        x_term=3,
        x_index=5,
    )
    Pushes(leader.context, None, None, None).answered(response, memoryview(b""))
    told = [getattr(record, EVENT_FIELDS) for record in caplog.records]
    assert len(told) == (code is not ResponseCode.SUCCESS)
    for line in told:
        assert (line["group"], line["peer"], line["code"]) == ("g", "n1", code.name)
        assert (line["end_index"], line["conflicting_term"], line["conflicts_from"]) == (7, 3, 5)
