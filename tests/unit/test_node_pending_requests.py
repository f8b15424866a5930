"""Linearizable reads for which a follower asks its leader."""

import random
from types import SimpleNamespace

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import ReadIndexResponse
from quorumlog.node.replica.pending_requests import PendingRequests
from replica_context import Surroundings


def follower(now_ms):
    core = SimpleNamespace(
        role=Role.FOLLOWER, leader_id="n1", self_id="n0", term=3, committed_index=100
    )
    found = Surroundings(GroupConfig(group="g", peers="n0-h:1;n1-h:2"), core=core)
    found.now_ms = now_ms
    found.context.environment.nonce = random.Random(now_ms).random
    found.requests = PendingRequests(found.context)
    return found


def answer_to(request, index):
    return ReadIndexResponse(
        group="g",
        local_id="n1",
        remote_id="n0",
        term=3,
        request_id=request.request_id,
        code=ResponseCode.SUCCESS,
        index=index,
    )


def test_the_answer_to_a_read_of_an_earlier_run_is_none_to_one_of_this_run():
    ended, before, restarted = [], follower(now_ms=1_000), follower(now_ms=1_002)
    before.requests.read(lambda *how: None)
    restarted.requests.read(lambda *how: ended.append(how))
    ((earlier, _),), ((present, _),) = before.sent, restarted.sent

    restarted.requests.answered(answer_to(earlier, 7))
    assert ended == []
    restarted.requests.answered(answer_to(present, 9))
    assert ended == [(ResponseCode.SUCCESS, "", 9)]
