"""What all groups say to a peer in one turn travels together, in order, and is bounded."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.limits import DEFAULT_LIMITS, KIB, MIB
from quorumlog.model.messages.base import JOINED_MAX
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    HeartBeats,
    PeerTurn,
    PushRequest,
    PushResponse,
    VoteRequest,
)
from quorumlog.node.peer_turns import PeerTurns
from quorumlog.node.turn import Turn
from quorumlog.wire.joined import PART_ATTACHED_MAX, split
from quorumlog.wire.kinds import KIND_OF_MESSAGE


def beat(group, peer="b"):
    return HeartBeatRequest(group=group, local_id="a", remote_id=peer, term=3, round=1)


def answer(group, peer="b"):
    code = ResponseCode.SUCCESS
    return HeartBeatResponse(
        group=group, local_id="a", remote_id=peer, term=3, code=code, round=1, end_index=4
    )


def vote(group):
    ends = {"ledger_end_index": 1, "ledger_end_term": 1}
    return VoteRequest(group=group, local_id="a", remote_id="b", term=3, **ends)


def push(group, number=1):
    return PushRequest(
        group=group,
        local_id="a",
        remote_id="b",
        term=3,
        type=PushType.APPEND,
        request_id=number,
        prev_index=number - 1,
        prev_term=3,
        commit_index=0,
    )


def acknowledged(group):
    ids = {"group": group, "local_id": "a", "remote_id": "b", "term": 3}
    return PushResponse(**ids, type=PushType.APPEND, request_id=1, code=ResponseCode.SUCCESS)


class Links:
    """Links to peers that take joined frames, while `room` is a number; what they were given."""

    def __init__(self):
        self.room, self.is_up, self.untaken = 64 * MIB, True, frozenset()
        self.sent, self.soon = [], []
        self.turn = Turn(self.soon.append)
        self.out = PeerTurns("a", self, self.turn.at_end, DEFAULT_LIMITS)

    def joined_room(self, peer_id, *, bulk):
        return self.room if self.is_up else None

    def takes(self, size):
        return self.room is None or size <= self.room

    def send(self, peer_id, message, attachments=(), *, bulk=False, has_room=False):
        if not self.is_up or not (has_room or self.takes(sum(map(len, attachments)))):
            return False
        parts = message.parts if isinstance(message, PeerTurn) else ()
        if self.untaken & {KIND_OF_MESSAGE[type(message)], *(part[0] for part in parts)}:
            return False
        self.sent.append((peer_id, bulk, message, b"".join(attachments)))
        return True

    def end_turn(self):
        soon, self.soon[:] = list(self.soon), []
        for action in soon:
            action()

    def frames(self):
        """What each frame carries."""
        found = []
        for peer_id, bulk, message, attached in self.sent:
            parts = [(message, attached)]
            if isinstance(message, PeerTurn):
                assert (message.local_id, message.remote_id) == ("a", peer_id)
                split_now = split(message, memoryview(attached))
                parts = [(one.message, bytes(one.attachment)) for one in split_now]
            found.append((peer_id, bulk, parts))
        return found


@pytest.fixture
def links():
    return Links()


def test_what_one_turn_brings_for_a_link_goes_in_one_frame(links):
    assert links.out.send("b", push("g"), [b"ab", b"c"], bulk=True)
    assert links.out.send("b", acknowledged("h"))
    assert links.out.send("c", beat("g", "c"))
    assert links.out.send("b", push("i"), [b"d"], bulk=True)
    assert links.out.send("b", beat("j"))
    assert links.out.send("b", vote("k"))
    assert not links.sent
    links.end_turn()
    assert links.frames() == [
        ("b", True, [(push("g"), b"abc"), (push("i"), b"d")]),
        ("b", False, [(acknowledged("h"), b""), (beat("j"), b""), (vote("k"), b"")]),
        ("c", False, [(beat("g", "c"), b"")]),
    ]
    assert not isinstance(links.sent[2][2], PeerTurn), "one alone goes as it is"


def test_a_message_that_the_peer_does_not_take_holds_up_no_other(links):
    links.untaken = {KIND_OF_MESSAGE[VoteRequest]}
    for message, attached in ((push("g"), b"a"), (vote("h"), b""), (beat("i"), b"")):
        assert links.out.send("b", message, [attached], bulk=True)
    links.end_turn()
    assert links.frames() == [("b", True, [(push("g"), b"a")]), ("b", True, [(beat("i"), b"")])]


def test_each_turn_begins_anew(links):
    for _ in range(2):
        links.out.send("b", beat("g"))
        links.end_turn()
        links.end_turn()
    assert [message for _, _, message, _ in links.sent] == [beat("g")] * 2


def test_what_is_too_large_to_be_joined_does_not_overtake_what_came_before(links):
    large = bytes(PART_ATTACHED_MAX + 1)
    numbers = iter(range(1, 9))
    for attachment in (b"a", b"b", large, b"c", bytes(PART_ATTACHED_MAX)):
        assert links.out.send("b", push("g", next(numbers)), [attachment], bulk=True)
    links.end_turn()
    frames = [[part.request_id for part, _ in parts] for _, _, parts in links.frames()]
    assert frames == [[1, 2], [3], [4, 5]]


def test_a_large_message_takes_room_from_those_that_come_after_it(links):
    large, small = bytes(PART_ATTACHED_MAX + 1), bytes(PART_ATTACHED_MAX)

    def send(peer_id, message, attachments=(), **how):
        is_sent = Links.send(links, peer_id, message, attachments, **how)
        links.room -= sum(len(part) for part in attachments)
        return is_sent

    links.send, links.room = send, 2 * PART_ATTACHED_MAX
    assert links.out.send("b", push("g", 1), [large], bulk=True)
    assert not links.out.send("b", push("h", 2), [small], bulk=True), "nor dropped afterwards"
    assert links.out.send("b", push("h", 3), [bytes(PART_ATTACHED_MAX - 1)], bulk=True)
    links.end_turn()
    assert links.room == 0


def test_no_frame_grows_beyond_its_bounds_and_what_fills_one_does_not_wait(links):
    count = 2 * JOINED_MAX + 5
    for number in range(count):
        links.out.send("b", beat(f"g{number}"))
    assert len(links.sent) == 2
    links.end_turn()
    frames = [[part.group for part, _ in parts] for _, _, parts in links.frames()]
    assert [len(groups) for groups in frames] == [JOINED_MAX] * 2 + [5]
    groups = [group for frame in frames for group in frame]
    assert groups == [f"g{number}" for number in range(count)]
    for number in range(40):
        links.out.send("b", push("g", number + 1), [bytes(60 * KIB)], bulk=True)
    links.end_turn()
    assert all(len(attached) <= MIB for _, _, _, attached in links.sent)
    numbers = [part.request_id for _, bulk, parts in links.frames() if bulk for part, _ in parts]
    assert numbers == list(range(1, 41))


def test_gathered_and_unsent_together_fill_a_link_and_each_group_is_told_at_once(links):
    links.room = 2 * KIB
    assert links.out.send("b", push("g"), [bytes(KIB)], bulk=True)
    assert not links.out.send("b", push("h"), [bytes(KIB + 1)], bulk=True)
    assert links.out.send("b", push("i"), [bytes(KIB)], bulk=True)
    assert not links.out.send("b", push("j"), [bytes(1)], bulk=True)
    assert links.out.send("b", beat("k"), bulk=True), "nothing attached"
    links.end_turn()
    groups = [part.group for _, _, parts in links.frames() for part, _ in parts]
    assert groups == ["g", "i", "k"]
    links.room = 0
    assert not links.out.send("b", push("g"), [bytes(1)], bulk=True)


def test_what_was_accepted_is_sent_even_if_the_link_fills_before_the_turn_ends(links):
    links.room = 2 * KIB
    assert links.out.send("b", push("g"), [bytes(KIB)], bulk=True)
    assert links.out.send("b", push("h"), [bytes(KIB)], bulk=True)
    assert links.out.send("c", beat("g", "c"))
    links.room = -1
    links.end_turn()
    assert [len(parts) for _, _, parts in links.frames()] == [2, 1]
    assert not links.out.send("c", beat("g", "c")), "above its bound a link takes nothing"
    links.end_turn()
    assert len(links.sent) == 2


def test_a_connection_that_ends_meanwhile_loses_the_turn_and_nothing_else(links):
    assert links.out.send("b", push("g"), [b"abc"], bulk=True)
    assert links.out.send("b", push("h"), [b"def"], bulk=True)
    links.is_up = False
    links.end_turn()
    assert not links.sent
    assert not links.out.send("b", push("g"), [b"abc"], bulk=True)
    links.is_up = True
    links.end_turn()
    assert links.out.send("b", push("g"), [b"abc"], bulk=True)
    links.end_turn()
    assert [message for _, _, message, _ in links.sent] == [push("g")]


def test_a_peer_that_comes_back_as_an_earlier_version_gets_single_frames(links):
    for group in ("g", "h"):
        assert links.out.send("b", push(group), [b"abc"], bulk=True)
    links.room = None
    links.end_turn()
    assert [message for _, _, message, _ in links.sent] == [push("g"), push("h")]


def test_an_earlier_version_gets_what_it_knows(links):
    links.room = None
    for message in (beat("g"), push("g"), beat("h"), answer("i"), acknowledged("h")):
        assert links.out.send("b", message)
    assert [message for _, _, message, _ in links.sent] == [push("g"), acknowledged("h")]
    links.end_turn()
    beats = HeartBeats(
        local_id="a", remote_id="b", requests=[beat("g"), beat("h")], responses=[answer("i")]
    )
    assert [message for _, _, message, _ in links.sent[2:]] == [beats]


def test_one_heartbeat_for_an_earlier_version_goes_as_it_is(links):
    links.room = None
    links.out.send("b", beat("g"))
    links.end_turn()
    assert [message for _, _, message, _ in links.sent] == [beat("g")]
