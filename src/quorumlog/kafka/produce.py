"""Produce, read and written by hand: record batches stay where they were received.

    request    transactional id | i16 acks, i32 time-out | topics: name, partitions: i32 partition,
               records as bytes
    answer     topics: name, partitions: i32 partition, i16 error code, i64 base offset, i64 log
               append time, from 5 on i64 log start offset, from 8 on errors of single records and
               an error message | i32 throttle time

Version 9 is the first flexible one.
"""

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.primitives import ELEMENTS_MAX, Cursor, count_bytes, string_bytes
from quorumlog.kafka.requests import RequestHeader, answer_head, read_body

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_I32: Final = struct.Struct(">i")
_ANSWERED: Final = struct.Struct(">ihqq")
_ANSWERED_5: Final = struct.Struct(">ihqqq")
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_FLEXIBLE: Final = b"\1\0\0"
BatchPlace: TypeAlias = tuple[int, int, int]
"""A partition, and where the record batch for it starts and ends in the frame's buffer; nothing is
in between if the client sent none."""


class ProduceRequest(msgspec.Struct, frozen=True):
    """What a producer asks: to append record batches to partitions.

    `acks`: 0 for no answer, 1 for one from the leader, -1 for one once a majority has it. The
    time-out is in milliseconds. `topics`: names and what is for each.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[BatchPlace]]]


class ProducedPartition(msgspec.Struct, frozen=True, gc=False):
    """What became of the batch for one partition; offsets and times that are not known are -1.

    `append_time`: the time of its records in milliseconds since 1970, if the leader gave it.
    """

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    error_message: str | None = None


def read_produce(
    frame: ReceivedFrame, header: RequestHeader, elements_max: int = ELEMENTS_MAX
) -> ProduceRequest:
    """Return the request in a frame. Raises `RemoteProtocolError` if it is none.

    Raises `ManyElementsError` if it has more than `elements_max` elements.
    """
    return read_body(frame, header, _read, elements_max)


def _read(cursor: Cursor, header: RequestHeader) -> ProduceRequest:
    is_flexible = header.is_flexible
    transactional_id = cursor.nullable_string(is_flexible=is_flexible)
    acks, timeout_ms = cursor.fixed(_ACKS_AND_TIMEOUT)
    topics = []
    for _ in range(cursor.count(is_flexible=is_flexible)):
        name = cursor.string(is_flexible=is_flexible)
        places = []
        for _ in range(cursor.count(is_flexible=is_flexible)):
            partition = cursor.int32()
            start, end = cursor.bytes_range(is_flexible=is_flexible)
            places.append((partition, start, end))
            if is_flexible:
                cursor.skip_tagged_fields()
        topics.append((name, places))
        if is_flexible:
            cursor.skip_tagged_fields()
    if is_flexible:
        cursor.skip_tagged_fields()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def produce_answer(
    header: RequestHeader,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_ms: int = 0,
) -> bytes:
    """Return the frame of an answer."""
    is_flexible = header.is_flexible
    tags = b"\0" if is_flexible else b""
    parts = [count_bytes(len(topics), is_flexible=is_flexible)]
    for name, partitions in topics:
        parts.append(string_bytes(name, is_flexible=is_flexible))
        parts.append(count_bytes(len(partitions), is_flexible=is_flexible))
        parts += [_partition(header, one) for one in partitions]
        parts.append(tags)
    parts += (_I32.pack(throttle_ms), tags)
    body = b"".join(parts)
    return answer_head(header, len(body)) + body


def _partition(header: RequestHeader, one: ProducedPartition) -> bytes:
    """Return the answer for a partition."""
    code, offset, time_ms = one.error_code, one.base_offset, one.append_time
    if header.version < 5:
        return _ANSWERED.pack(one.partition, code, offset, time_ms)
    head = _ANSWERED_5.pack(one.partition, code, offset, time_ms, one.log_start)
    if header.version < 8:
        return head
    if one.error_message is None:
        return head + (_NO_ERRORS_FLEXIBLE if header.is_flexible else _NO_ERRORS)
    return head + _error_bytes(one.error_message, is_flexible=header.is_flexible)


def _error_bytes(text: str, *, is_flexible: bool) -> bytes:
    """Return the errors of single records, of which there are none, and the message."""
    no_errors = count_bytes(0, is_flexible=is_flexible)
    return no_errors + string_bytes(text, is_flexible=is_flexible) + (b"\0" if is_flexible else b"")
