"""What appends are owed: an answer, also where it has to be looked up first."""

from types import SimpleNamespace

import pytest

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.node.replica.appends import Appends
from quorumlog.sessions.entries import SessionEntry
from quorumlog.sessions.producer_table import StoredBlock

ENTRY = SessionEntry(producer_id=7, epoch=0, first_sequence=0, count=1, crc=1)


class Replica:
    """A leader that has applied entry 9, with what it was asked to look up."""

    def __init__(self, verdict):
        self.config = GroupConfig(group="g", peers="n0-127.0.0.1:1")
        self.health_text, self.applied_index = "", 9
        self.core = SimpleNamespace(
            role=Role.LEADER,
            leader_id="n0",
            term=1,
            is_transferring=False,
            is_leaving=False,
            awaits_leader=False,
            term_at=lambda index: 1,
        )
        self.counters = SimpleNamespace(blocks_repeated=0, count_refusal=lambda code: None)
        self.maintenance = SimpleNamespace(full_text=lambda size, is_mark: "")
        self.applier = SimpleNamespace(machine=None)
        self.log = SimpleNamespace(before_begin_index=-1, end_index=9)
        self.sessions = SimpleNamespace(judge=lambda entry: verdict)
        self.looked_up = []
        self.fetches = SimpleNamespace(locate=lambda first, last, done: self.looked_up.append(done))
        self.pending_requests = SimpleNamespace(read=self.looked_up.append)


def verdict(code=ResponseCode.SUCCESS, stored=None):
    return SimpleNamespace(code=code, text="", stored=stored)


REPEATED = verdict(stored=StoredBlock(0, 1, 1, 4))
REFUSED = verdict(ResponseCode.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("judged", "found", "code"),
    [
        (REPEATED, ([(4, 0)],), ResponseCode.SUCCESS),
        (REFUSED, (ResponseCode.SUCCESS, "", 9), ResponseCode.PRODUCER_FENCED),
        (REFUSED, (ResponseCode.NOT_LEADER, "deposed", -1), ResponseCode.NOT_LEADER),
    ],
)
def test_a_replica_owes_an_answer_until_what_it_depends_on_was_looked_up(judged, found, code):
    """A leader that stopped meanwhile would leave its client without one."""
    replica = Replica(judged)
    environment = SimpleNamespace(
        now_ms=lambda: 0,
        now_us=lambda: 0,
        disk=SimpleNamespace(queued_bytes=0),
        defer=lambda flush: None,
    )
    appends = Appends(replica, environment, Limits(pending_requests_max=1))
    block = parse_block(memoryview(bytearray(encode_block([b"x"]))), count=1, entry_bytes_max=100)
    answers = []

    def propose():
        appends.propose(block, lambda response, results: answers.append(response.code), ENTRY)

    propose()
    assert answers == []
    assert not appends.is_idle
    propose()
    assert answers == [ResponseCode.LEADER_PENDING_FULL], "it counts among those that wait"
    replica.looked_up.pop()(*found)
    assert answers[1:] == [code]
    assert appends.is_idle
