"""Joined frames: whatever is joined comes apart as it was; a damaged part is dropped alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import DEFAULT_LIMITS, KIB
from quorumlog.model.messages.base import JOINED_MAX, Hello, Response, Responses
from quorumlog.model.messages.client import AppendResponse, FetchRequest
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    NodeHeartBeat,
    PeerTurn,
    ReadIndexRequest,
    VoteRequest,
)
from quorumlog.wire import joined
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import Frame, RefusedFrame, encode_frame
from quorumlog.wire.joined import Outgoing, attached_max, runs_of, split
from quorumlog.wire.kinds import KIND_OF_MESSAGE

PEER = {"local_id": "a", "remote_id": "b", "term": 3}
MESSAGES = [
    HeartBeatRequest(group="g", round=5, **PEER),
    ReadIndexRequest(group="g" * 128, request_id=7, **PEER),
    VoteRequest(group="h", ledger_end_index=9, ledger_end_term=2, **PEER),
]
MALFORMED = [b"", b"\xc1", b"\x90", msgspec.msgpack.encode(["g", "a", "b", -5, 0, 0, 5])]


def outgoing(message, *attachments, number=0):
    return Outgoing(message, attachments, sum(map(len, attachments)), number)


given_messages = st.lists(
    st.builds(
        lambda message, parts: outgoing(message, *parts),
        st.sampled_from(MESSAGES),
        st.lists(st.binary(min_size=1, max_size=900), max_size=3),
    ),
    max_size=40,
)


def turn_of(run):
    return PeerTurn(local_id="a", remote_id="b", parts=run.parts)


def sent(given_now, attached_bytes_max):
    """The bytes of all frames."""
    raw = b""
    for run in runs_of(given_now, attached_bytes_max):
        message = run.first.message if len(run.parts) == 1 else turn_of(run)
        raw += b"".join(encode_frame(message, attachments=run.attachments))
    return raw


def received(raw, cuts):
    """The single messages that come of bytes that arrive in pieces."""
    decoder, found, position = FrameDecoder(DEFAULT_LIMITS), [], 0
    while position < len(raw):
        step = cuts[len(found) % len(cuts)]
        decoder.receive_data(raw[position : position + step])
        position += step
        while (frame := decoder.next_frame()) is not None:
            if isinstance(frame.message, PeerTurn):
                found += split(frame.message, frame.attachment)
            else:
                found.append(frame)
    return found


@given(
    given_messages,
    st.integers(1, 5_000),
    st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
)
def test_whatever_is_joined_and_however_it_arrives_it_comes_apart_as_it_was(
    messages, attached_bytes_max, cuts
):
    found = received(sent(messages, attached_bytes_max), cuts)
    assert [(frame.message, bytes(frame.attachment)) for frame in found] == [
        (one.message, b"".join(one.attachments)) for one in messages
    ]


@given(st.data(), given_messages.filter(bool), st.sampled_from(MALFORMED))
def test_a_damaged_part_is_dropped_alone(data, messages, damage):
    (run,) = runs_of(messages, 1 << 20)
    damaged = data.draw(st.integers(0, len(messages) - 1))
    kind, number, _, size = run.parts[damaged]
    run.parts[damaged] = (kind, number, damage, size)
    attachment = memoryview(bytearray(b"".join(map(bytes, run.attachments))))
    for place, frame in enumerate(split(turn_of(run), attachment)):
        if place == damaged:
            assert isinstance(frame, RefusedFrame)
            assert frame.code is ResponseCode.UNEXPECTED_ARGUMENT
        else:
            assert frame.message == messages[place].message
            assert bytes(frame.attachment) == b"".join(messages[place].attachments)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (Hello(cluster="c", node_id="a", role="control"), "Hello"),
        (PeerTurn(local_id="a", remote_id="b", parts=[]), "PeerTurn"),
        (FetchRequest(group="g", begin_index=1), "FetchRequest"),
        (
            NodeHeartBeat(
                local_id="a", remote_id="b", run=1, number=1, base=0, version=1, interval_ms=9
            ),
            "NodeHeartBeat",
        ),
    ],
)
def test_a_turn_carries_messages_of_groups_and_nothing_else(message, name):
    parts = [
        (KIND_OF_MESSAGE[type(one)], 0, msgspec.msgpack.encode(one), 0)
        for one in (MESSAGES[0], message, MESSAGES[1])
    ]
    parts.append((254, 0, b"", 0))
    turn = PeerTurn(local_id="a", remote_id="b", parts=parts)
    first, refused, second, unknown = split(turn, memoryview(b""))
    assert (first.message, second.message) == (MESSAGES[0], MESSAGES[1])
    assert refused.text == f"{name} is no part of a PeerTurn"
    assert unknown.text == "kind 254 is no part of a PeerTurn"


@pytest.mark.parametrize("attached", [3, 5])
def test_parts_that_do_not_add_up_are_all_refused(attached):
    (run,) = runs_of([outgoing(MESSAGES[0], b"ab"), outgoing(MESSAGES[1], b"cd")], 1 << 20)
    (refused,) = split(turn_of(run), memoryview(bytes(attached)))
    assert refused.code is ResponseCode.UNEXPECTED_ARGUMENT
    assert "do not add up" in refused.text


def test_a_part_keeps_no_more_memory_than_its_own():
    """A block of 1 KiB that stays in the tail cache must not keep a frame of 1 MiB alive."""
    block = bytes(KIB)
    raw = sent([outgoing(MESSAGES[0], block)] * 500, 1 << 20)
    frames = received(raw, [1 << 20])
    assert len(frames) == 500
    assert {len(frame.attachment.obj) for frame in frames} == {KIB}
    frames[0].attachment[0] = 1  # writable, and nobody else's
    assert bytes(frames[1].attachment) == block


def test_no_frame_is_above_its_bounds_and_nothing_is_lost():
    beats = [outgoing(MESSAGES[0])] * (2 * JOINED_MAX + 5)
    assert [len(run.parts) for run in runs_of(beats, 1 << 20)] == [JOINED_MAX] * 2 + [5]
    blocks = [outgoing(MESSAGES[0], bytes(60 * KIB))] * 40
    most = attached_max(DEFAULT_LIMITS)
    runs = list(runs_of(blocks, most))
    assert [len(run.parts) for run in runs] == [17, 17, 6]
    assert max(sum(map(len, run.attachments)) for run in runs) <= most == 1 << 20


def test_long_messages_are_spread_over_frames_and_one_alone_goes_as_it_is(monkeypatch):
    long = ReadIndexRequest(group="g" * 128, request_id=7, **PEER)
    two = 2 * len(msgspec.msgpack.encode(long))
    monkeypatch.setattr(joined, "JOINED_MESSAGES_MAX", two)
    runs = list(runs_of([outgoing(MESSAGES[0]), *[outgoing(long)] * 4, outgoing(MESSAGES[2])], 9))
    assert [len(run.parts) for run in runs] == [2, 2, 2]
    monkeypatch.setattr(joined, "JOINED_MESSAGES_MAX", 100)
    runs = list(runs_of([outgoing(MESSAGES[0]), *[outgoing(long)] * 2, outgoing(MESSAGES[2])], 9))
    assert [run.first.message for run in runs] == [MESSAGES[0], long, long, MESSAGES[2]]


def test_the_largest_frame_of_parts_fits_every_message_bound():
    longest = ReadIndexRequest(group="ä" * 128, request_id=7, **PEER)
    for run in runs_of([outgoing(longest, bytes(2_000))] * 2_000, attached_max(DEFAULT_LIMITS)):
        turn = PeerTurn(local_id="ä" * 128, remote_id="ä" * 128, parts=run.parts)
        raw = b"".join(encode_frame(turn, attachments=run.attachments))
        assert len(raw) < 1 << 21


def test_answers_are_joined_with_their_correlation_ids():
    answers = [
        outgoing(AppendResponse(first_index=3, last_index=3), number=17),
        outgoing(Response(code=404, text="no"), b"abc", number=19),
    ]
    (run,) = runs_of(answers, 1 << 20)
    decoder = FrameDecoder(DEFAULT_LIMITS)
    frame_bytes = encode_frame(Responses(parts=run.parts), attachments=run.attachments)
    decoder.receive_data(b"".join(frame_bytes))
    frame = decoder.next_frame()
    found = list(split(frame.message, frame.attachment))
    assert [(one.correlation_id, one.message) for one in found] == [
        (17, answers[0].message),
        (19, answers[1].message),
    ]
    assert bytes(found[1].attachment) == b"abc"
    assert all(isinstance(one, Frame) for one in found)
