"""Integers of messages have ranges: a frame with one that is impossible is refused."""

import types
import typing

import msgspec
import pytest
from isal.isal_zlib import crc32

from quorumlog.model import bounds
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.message import (
    HEART_BEATS_MAX,
    HeartBeatRequest,
    HeartBeats,
    NodeBeat,
    NodeBeatAnswer,
    StoreLocation,
)
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import (
    HEADER,
    MAGIC,
    VERSION,
    Frame,
    RefusedFrame,
    encode_frame,
)
from quorumlog.wire.kinds import MESSAGE_OF_KIND

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


def thaw(value):
    return [thaw(one) for one in value] if isinstance(value, list | tuple) else value


def framed(number, value):
    """What comes of a frame with any payload."""
    body = msgspec.msgpack.encode(value)
    header = HEADER.pack(MAGIC, VERSION, number, 0, len(body), 0, 5, crc32(body))
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


def beats(count):
    one = HeartBeatRequest(group="g", local_id="a", remote_id="b", term=1, round=1)
    return HeartBeats(local_id="a", remote_id="b", requests=[one] * count, responses=[])


@pytest.mark.parametrize(
    "message",
    [
        beats(HEART_BEATS_MAX + 1),
        NodeBeatAnswer(local_id="a", remote_id="b", run=1, number=1, version=1, strays=["g"] * 513),
        NodeBeat(
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
    decoder.receive_data(b"".join(encode_frame(beats(HEART_BEATS_MAX))))
    assert isinstance(decoder.next_frame(), Frame)


def test_every_integer_has_a_range():
    unbounded = [path for path, kind in integers(StoreLocation) if kind is int]
    for message in MESSAGE_OF_KIND.values():
        unbounded += [(message.__name__, path) for path, kind in integers(message) if kind is int]
    assert not unbounded
