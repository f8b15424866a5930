"""Values of messages have ranges: a frame with one that is impossible, or too long, is refused."""

import tracemalloc
import types
import typing

import msgspec
import pytest
from isal.isal_zlib import crc32

from quorumlog.model import bounds
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.base import Hello, Response, Responses
from quorumlog.model.messages.client import (
    AppendRequest,
    FetchRequest,
    GroupIdentity,
    MetadataRequest,
    StoreLocation,
    Throttled,
)
from quorumlog.model.messages.login import Authenticated
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.model.messages.peer import (
    HEART_BEATS_MAX,
    HeartBeatRequest,
    HeartBeats,
    NodeHeartBeat,
    NodeHeartBeatResponse,
)
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import (
    FIRST_VERSION,
    HEADER,
    MAGIC,
    Frame,
    RefusedFrame,
    encode_frame,
)
from quorumlog.wire.kinds import CLIENT_KINDS, HELLO_KINDS, MESSAGE_OF_KIND, PEER_KINDS
from raft_messages import long_push

FULL_RANGE = {bounds.FileNumber, bounds.Batch, bounds.Number, bounds.AskedIndex, bounds.Position}
"""Those of a machine or of a user, or without arithmetic: 64 bits of them are believed."""


def sample(kind):
    """A value that fits an annotation."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return sample(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in arguments if one is not type(None)))
    if origin is list:
        return [sample(arguments[0])]
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if origin is tuple:
        return tuple(sample(one) for one in arguments if one is not Ellipsis)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [sample(field) for field in hints(kind).values()]
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return next(iter(kind)).value
    return {int: 1, str: "s", bytes: b"b", bool: False, float: 0.0}[kind]


def hints(message):
    return typing.get_type_hints(message, include_extras=True)


def integers(kind, path=()):
    """Paths to all integers of an encoded value, with their annotations."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is int or (origin is typing.Annotated and arguments[0] is int):
        yield path, kind
    elif origin is typing.Annotated:
        yield from integers(arguments[0], path)
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from integers(one, path)
    elif origin in (list, tuple):
        for place, one in enumerate(arguments):
            yield from integers(one, (*path, place))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for place, one in enumerate(hints(kind).values()):
            yield from integers(one, (*path, place))


FIELDS = [
    pytest.param(number, path, kind, id=f"{message.__name__}-{'.'.join(map(str, path))}")
    for number, message in MESSAGE_OF_KIND.items()
    for path, kind in integers(message)
]


def growing(kind, path=()):
    """Paths to all strings and lists of a value that have no bound of their own."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (str, bytes) or origin in (list, dict):
        yield path
    if origin is typing.Annotated:
        bound = any(getattr(one, "max_length", None) for one in arguments[1:])
        within = typing.get_args(arguments[0]) if bound else arguments[:1]
        for one in within:
            yield from growing(one, path)
    elif origin in (typing.Union, types.UnionType, list, tuple):
        for place, one in enumerate(arguments):
            yield from growing(one, (*path, place))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for name, one in hints(kind).items():
            yield from growing(one, (*path, name))


def thaw(value):
    return [thaw(one) for one in value] if isinstance(value, list | tuple) else value


def framed(number, value):
    """What comes of a frame with any payload."""
    body = msgspec.msgpack.encode(value)
    header = HEADER.pack(MAGIC, FIRST_VERSION, number, 0, len(body), 0, 5, crc32(body))
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.receive_data(header + crc32(header).to_bytes(4, "big") + body)
    return decoder.next_frame()


@pytest.mark.parametrize(("number", "path", "kind"), FIELDS)
def test_an_impossible_integer_makes_a_frame_malformed(number, path, kind):
    assert isinstance(framed(number, thaw(sample(MESSAGE_OF_KIND[number]))), Frame)
    extremes = [-2, -(1 << 63), (1 << 64) - 1] if kind is not bounds.Batch else [-2, -(1 << 63)]
    extremes = extremes[:2] if kind is bounds.FileNumber else extremes
    if kind not in FULL_RANGE:
        extremes += [(1 << 63) - 1, 1 << 62]
    elif kind not in (bounds.FileNumber, bounds.Batch):
        extremes.append((1 << 63) - 1)
    for extreme in extremes:
        value = thaw(sample(MESSAGE_OF_KIND[number]))
        place = value
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = extreme
        refused = framed(number, value)
        assert isinstance(refused, RefusedFrame), extreme
        assert refused.code is ResponseCode.UNEXPECTED_ARGUMENT
        assert "malformed" in refused.text


def heartbeats(count):
    one = HeartBeatRequest(group="g", local_id="a", remote_id="b", term=1, round=1)
    return HeartBeats(local_id="a", remote_id="b", requests=[one] * count, responses=[])


@pytest.mark.parametrize(
    "message",
    [
        heartbeats(HEART_BEATS_MAX + 1),
        NodeHeartBeatResponse(
            local_id="a", remote_id="b", run=1, number=1, version=1, unconfirmed=["g"] * 513
        ),
        NodeHeartBeat(
            local_id="a",
            remote_id="b",
            run=1,
            number=1,
            base=0,
            version=1,
            interval_ms=1,
            changes=[("g", 1)] * 513,
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_longer_lists_than_any_node_sends_are_refused(message):
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.receive_data(b"".join(encode_frame(message)))
    assert isinstance(decoder.next_frame(), RefusedFrame)


def test_the_largest_message_of_heartbeats_is_taken():
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.receive_data(b"".join(encode_frame(heartbeats(HEART_BEATS_MAX))))
    assert isinstance(decoder.next_frame(), Frame)


def test_every_integer_has_a_range():
    unbounded = [path for path, kind in integers(StoreLocation) if kind is int]
    for message in MESSAGE_OF_KIND.values():
        unbounded += [(message.__name__, path) for path, kind in integers(message) if kind is int]
    assert not unbounded


@pytest.mark.parametrize("number", sorted(CLIENT_KINDS | HELLO_KINDS))
def test_nothing_that_a_stranger_says_is_decoded_to_more_than_its_bounds(number):
    """A request may be kept for as long as it waits, and lists take many bytes for each."""
    assert list(growing(MESSAGE_OF_KIND[number])) == []


def test_only_appends_and_queries_have_something_attached():
    """A fetch that waits half a minute with megabytes attached would hold them all the time."""
    decoder = FrameDecoder(Limits())
    for message in (
        FetchRequest(group="g", begin_index=1 << 40, wait_ms=30_000),
        MetadataRequest(group="g"),
        AppendRequest(group="g", count=1),
        QueryRequest(group="g"),
    ):
        decoder.receive_data(b"".join(encode_frame(message, attachments=[bytes(100)])))
        frame = decoder.next_frame()
        is_refused = isinstance(frame, RefusedFrame)
        assert is_refused is isinstance(message, FetchRequest | MetadataRequest)
        if is_refused:
            assert frame.code is ResponseCode.UNEXPECTED_ARGUMENT
            text = f"a {type(message).__name__} has nothing attached, not 100 bytes"
            assert frame.text == text


def test_a_request_with_an_endless_name_is_refused():
    request = FetchRequest(group="g", begin_index=1, machine="m" * 200_000)
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.receive_data(b"".join(encode_frame(request)))
    refused = decoder.next_frame()
    assert isinstance(refused, RefusedFrame)
    assert refused.code is ResponseCode.UNEXPECTED_ARGUMENT


def decoded_as(kinds, message):
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.kinds = kinds
    decoder.receive_data(b"".join(encode_frame(message)))
    tracemalloc.start()
    try:
        return decoder.next_frame(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_only_members_say_is_not_decoded_for_clients():
    """A list of pairs takes some thirty times what it has in a frame."""
    push = long_push()
    refused, took = decoded_as(CLIENT_KINDS, push)
    assert isinstance(refused, RefusedFrame)
    assert refused.code is ResponseCode.UNSUPPORTED
    assert took < 10_000
    taken, took = decoded_as(PEER_KINDS, push)
    assert isinstance(taken, Frame)
    assert took > 1_000_000


def test_before_the_handshake_nothing_but_a_hello_is_decoded():
    with pytest.raises(RemoteProtocolError, match="FetchRequest before Hello"):
        decoded_as(HELLO_KINDS, FetchRequest(group="g", begin_index=1))
    decoded, _ = decoded_as(HELLO_KINDS, Hello(cluster="", node_id="", role="client"))
    assert isinstance(decoded, Frame)


def test_every_kind_is_said_by_somebody():
    answer_types = (Response, Responses, GroupIdentity, Authenticated, Throttled)  # to clients
    answers = {
        kind for kind, message in MESSAGE_OF_KIND.items() if issubclass(message, answer_types)
    }
    assert CLIENT_KINDS | PEER_KINDS | HELLO_KINDS | answers == set(MESSAGE_OF_KIND)
    assert not CLIENT_KINDS & PEER_KINDS
