"""Answers to one client: those of one turn leave in one frame, in their order."""

import pytest

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import KIB
from quorumlog.model.messages.base import JOINED_MAX, Hello, Response, Responses
from quorumlog.model.messages.client import AppendResponse, FetchResponse
from quorumlog.node.turn import Turn
from quorumlog.service.answers import Answers
from quorumlog.wire.frame import encode_frame
from quorumlog.wire.joined import PART_ATTACHED_MAX, Outgoing, split


class Client:
    """A connection of a client, and its answers: for each frame the numbers of its parts."""

    def __init__(self, *, takes_joined=True):
        self.hello = Hello(cluster="c", node_id="", role="client", takes_joined=takes_joined)
        self.soon, self.frames, self.got = [], [], {}
        self.answered, self.is_read, self.ended = 0, True, ""
        self.out = Answers(Turn(self.soon.append).at_end)

    def answer(self, number, response=None, attached=b"", *, is_last=False):
        response = response or AppendResponse(first_index=number, last_index=number)
        attachments = [attached] if attached else []
        self.out.send(self, Outgoing(response, attachments, len(attached), number), is_last=is_last)

    def send(self, message, *, correlation_id=0, attachments=()):
        if isinstance(message, FetchResponse) and message.count:
            raise UnexpectedArgumentError("FetchResponse is above a limit")
        if not self.is_read:
            return False
        attached = memoryview(b"".join(attachments))
        if isinstance(message, Responses):
            parts = [
                (one.correlation_id, one.message, bytes(one.attachment))
                for one in split(message, attached)
            ]
        else:
            encode_frame(message)
            parts = [(correlation_id, message, bytes(attached))]
            self.answered += message.code == ResponseCode.SUCCESS
        self.frames.append([number for number, _, _ in parts])
        self.got |= {number: (answer, data) for number, answer, data in parts}
        return True

    def close(self, reason):
        self.ended = reason

    def end_turn(self):
        soon, self.soon[:] = list(self.soon), []
        for action in soon:
            action()


@pytest.fixture
def client():
    return Client()


def test_answers_of_one_turn_leave_in_one_frame(client):
    client.answer(1, attached=b"abc")
    client.answer(2, Response(code=404, text="no"))
    client.answer(3, is_last=True)
    assert client.frames == []
    client.end_turn()
    assert client.frames == [[1, 2, 3]]
    assert client.got[1] == (AppendResponse(first_index=1, last_index=1), b"abc")
    assert client.got[2] == (Response(code=404, text="no"), b"")
    assert client.answered == 2


def test_an_answer_with_which_none_can_come_goes_at_once(client):
    client.answer(1, is_last=True)
    assert client.frames == [[1]]
    client.answer(2)
    client.end_turn()
    client.end_turn()
    assert client.frames == [[1], [2]]
    assert client.answered == 2


def test_a_client_of_an_earlier_version_gets_each_answer_alone():
    client = Client(takes_joined=False)
    for number in (1, 2):
        client.answer(number)
    assert client.frames == [[1], [2]]


def test_a_large_answer_goes_alone_and_overtakes_none(client):
    client.answer(1)
    client.answer(2)
    client.answer(3, attached=bytes(PART_ATTACHED_MAX + 1))
    client.answer(4)
    client.answer(5)
    client.end_turn()
    assert client.frames == [[1, 2], [3], [4, 5]]


def test_what_waits_for_the_end_of_a_turn_is_bounded(client):
    for number in range(JOINED_MAX + 2):
        client.answer(number)
    assert [len(numbers) for numbers in client.frames] == [JOINED_MAX]
    for number in range(5):
        client.answer(number, attached=bytes(30 * KIB))
    client.end_turn()
    assert [len(numbers) for numbers in client.frames] == [JOINED_MAX, 4, 1, 2]


def test_an_answer_that_fits_no_frame_is_refused_with_the_reason_and_the_others_go(client):
    client.answer(1, FetchResponse(first_index=1, count=1), is_last=True)
    assert client.got[1][0].code == ResponseCode.INTERNAL_ERROR
    long = AppendResponse(positions=[(index, index) for index in range(1 << 20, (1 << 20) + 9_000)])
    client.answer(2)
    client.answer(3, long)
    client.answer(4)
    client.end_turn()
    assert client.frames[1:] == [[2], [3], [4]]


def test_a_text_that_is_not_valid_unicode_is_sent_with_marks_in_its_place(client):
    client.answer(1, AppendResponse(code=ResponseCode.HOOK_REFUSED, text="no: \ud800"))
    client.answer(2, Response(code=ResponseCode.HOOK_REFUSED, text="x" * 10_000_000))
    client.end_turn()
    assert client.frames == [[1, 2]]
    assert client.got[1][0].text == "no: ?"
    assert client.got[2][0].code == ResponseCode.HOOK_REFUSED
    assert client.got[2][0].text.endswith("xx… (10,000,000 characters in all)")


def test_an_answer_that_cannot_be_encoded_does_not_keep_others_from_leaving(client):
    client.answer(1)
    client.answer(2, Response(leader_id="\ud800"))
    client.answer(3)
    client.end_turn()
    assert client.frames == [[1], [2], [3]]
    assert client.got[2][0].code == ResponseCode.INTERNAL_ERROR


def test_a_client_that_does_not_read_its_answers_is_cut_off(client):
    client.answer(1)
    client.answer(2)
    client.is_read = False
    client.end_turn()
    assert client.ended == "answers are not being read"
    assert client.answered == 0
