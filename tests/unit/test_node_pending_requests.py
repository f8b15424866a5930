"""Reads that a follower asks its leader about."""

import random
from types import SimpleNamespace

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import ReadIndexResponse
from quorumlog.node.replica.pending_requests import PendingRequests


class Network:
    """What was sent."""

    def __init__(self):
        self.sent = []

    def send(self, peer_id, message):
        self.sent.append(message)


def follower(network, now_ms):
    core = SimpleNamespace(
        role=Role.FOLLOWER, leader_id="n1", self_id="n0", term=3, committed_index=100
    )
    nonce = random.Random(now_ms).random
    return PendingRequests(core, "g", network, lambda event: None, lambda: now_ms, nonce)


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
    network, ended = Network(), []
    follower(network, now_ms=1_000).read(lambda *how: None)
    restarted = follower(network, now_ms=1_002)
    restarted.read(lambda *how: ended.append(how))
    earlier, present = network.sent

    restarted.answered(answer_to(earlier, 7))
    assert ended == []
    restarted.answered(answer_to(present, 9))
    assert ended == [(ResponseCode.SUCCESS, "", 9)]
