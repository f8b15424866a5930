"""Frames of the Kafka protocol: any split gives the same; memory is bounded, and each has room."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_peer import framed
from quorumlog.kafka.frames import (
    FIRST_FRAME_BYTES_MAX,
    FRAME_BYTES_MAX,
    SPARE_BYTES,
    FrameReader,
)
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.wire.receiver import DIRECT_BYTES_MIN, STAGED_BYTES_MAX


def body_of(frame):
    return bytes(frame.buffer[frame.start :])


def taken(reader):
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(frame)
    return frames


def later(**options):
    """Return a reader that has had its first frame."""
    reader = FrameReader(**options)
    reader.receive_data(framed(b"first"))
    assert reader.next_frame() is not None
    return reader


def refused(raw, reader):
    tracemalloc.start()
    try:
        reader.receive_data(raw)
        with pytest.raises(RemoteProtocolError) as caught:
            reader.next_frame()
        assert tracemalloc.get_traced_memory()[1] < FIRST_FRAME_BYTES_MAX
    finally:
        tracemalloc.stop()
    return str(caught.value)


@given(
    st.lists(st.binary(min_size=1, max_size=3_000), max_size=8),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=60),
)
def test_any_split_gives_the_same_frames(bodies, cuts):
    raw = b"".join(map(framed, bodies))
    reader, found, position, turn = FrameReader(), [], 0, 0
    while position < len(raw):
        step = cuts[turn % len(cuts)]
        reader.receive_data(raw[position : position + step])
        position, turn = position + step, turn + 1
        found += map(body_of, taken(reader))
    assert found == bodies
    assert not reader.is_mid_frame


@pytest.mark.parametrize("allocates_ahead", [True, False])
def test_what_is_written_before_and_into_a_frame_changes_no_other(allocates_ahead):
    sizes = [1, 7, 3 * DIRECT_BYTES_MIN, 900, DIRECT_BYTES_MIN - 1, 1_000_000, 40, 2]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    reader, raw, frames = later(allocates_ahead=allocates_ahead), b"".join(map(framed, bodies)), []
    for place in range(0, len(raw), 50_001):
        reader.receive_data(raw[place : place + 50_001])
        frames += taken(reader)
    assert SPARE_BYTES >= HEADER_SIZE
    assert [frame.size for frame in frames] == sizes
    for frame, body in zip(frames, bodies, strict=True):
        assert frame.start >= SPARE_BYTES
        assert body_of(frame) == body
        frame.buffer[:] = b"\xff" * len(frame.buffer)


def test_a_large_frame_is_received_where_it_stays():
    reader = later()
    body = bytes(range(256)) * 4_000
    reader.receive_data(framed(body)[:100])
    assert reader.next_frame() is None
    space = reader.space()
    assert not reader.is_staging
    assert len(space) == len(body) - 96
    space[:] = body[96:]
    reader.received(len(space))
    frame = reader.next_frame()
    assert body_of(frame) == body
    space[-1] = 0
    assert frame.buffer[-1] == 0


@pytest.mark.parametrize("length", [0, -1, -(1 << 31), (1 << 31) - 1, FRAME_BYTES_MAX + 1])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_length_that_cannot_be_is_refused_before_memory_is_taken(length, is_first):
    reader = FrameReader() if is_first else later()
    text = refused(length.to_bytes(4, "big", signed=True), reader)
    bound = FIRST_FRAME_BYTES_MAX if is_first else FRAME_BYTES_MAX
    assert f"1 to {bound}" in text


def test_the_first_frame_has_a_smaller_bound():
    within = b"x" * FIRST_FRAME_BYTES_MAX
    reader = FrameReader()
    reader.receive_data(framed(within) + framed(within + b"y"))
    assert [frame.size for frame in taken(reader)] == [len(within), len(within) + 1]
    refused((FIRST_FRAME_BYTES_MAX + 1).to_bytes(4, "big"), FrameReader())
    reader.receive_data(framed(bytes(FRAME_BYTES_MAX)))
    assert [frame.size for frame in taken(reader)] == [FRAME_BYTES_MAX]


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x02\0\x01\0\x01", b"GET / HTTP/1.1\r\n", b"QLOG\1\1"]
)
def test_who_speaks_another_protocol_is_told_which_this_is(raw):
    assert "this port speaks the Kafka protocol" in refused(raw, FrameReader())


def test_one_byte_at_a_time_gives_nothing_until_the_frame_is_whole():
    reader, raw = FrameReader(), framed(b"request")
    for place in range(len(raw) - 1):
        reader.receive_data(raw[place : place + 1])
        assert reader.next_frame() is None
        assert reader.is_mid_frame
    reader.receive_data(raw[-1:])
    assert body_of(reader.next_frame()) == b"request"


def test_a_frame_that_never_comes_holds_no_more_than_twice_what_has_come():
    reader = later(allocates_ahead=False)
    reader.receive_data(framed(bytes(FRAME_BYTES_MAX))[:1_000_000])
    assert reader.next_frame() is None
    assert reader.held_bytes <= 2 * 1_000_000


def test_many_small_frames_that_come_together_share_bounded_memory():
    reader, rest, count, largest = FrameReader(), memoryview(framed(b"x" * 60) * 10_000), 0, 0
    while rest:
        space = reader.space()
        largest = max(largest, len(space))
        size = min(len(space), len(rest))
        space[:size] = rest[:size]
        reader.received(size)
        rest = rest[size:]
        count += len(taken(reader))
    assert count == 10_000
    assert largest <= STAGED_BYTES_MAX


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_are_frames_or_refused(raw):
    reader = FrameReader()
    reader.receive_data(raw)
    try:
        frames = taken(reader)
    except RemoteProtocolError:
        return
    whole = b"".join(framed(body_of(frame)) for frame in frames)
    assert raw.startswith(whole)


def test_a_large_frame_that_came_whole_is_still_to_be_taken_after_a_pause():
    reader = FrameReader()
    reader.frame_bytes_max = FRAME_BYTES_MAX
    raw = framed(bytes(4 * DIRECT_BYTES_MIN))
    reader.receive_data(raw[:100])
    assert reader.next_frame() is None
    reader.receive_data(raw[100:])
    reader.set_aside()
    assert reader.has_aside
    reader.take_up()
    assert body_of(reader.next_frame()) == raw[4:]
    assert not reader.has_aside
