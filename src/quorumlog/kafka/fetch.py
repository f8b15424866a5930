"""Fetch, read and written by hand: record batches are sent from where they are.

    request    i32 replica id, i32 longest wait, i32 least bytes, i32 most bytes, i8 isolation
               level, from 7 on i32 session id, i32 session epoch | topics: name, from 13 on id,
               partitions: i32 partition, from 9 on i32
               leader epoch, i64 offset, from 12 on i32 last fetched epoch, from 5 on i64 log start
               offset, i32 most bytes | from 7 on forgotten topics: name or id, partitions |
               from 11 on rack
    answer     i32 throttle time, from 7 on i16 error code, i32 session id | topics: name or id,
               partitions: i32 partition, i16 error code, i64 high watermark, i64 last stable
               offset, from 5 on i64 log start offset, aborted transactions, from 11 on i32
               preferred replica, records as bytes

Version 12 is the first flexible one. Fetch sessions are declined: the answer has session id 0.
"""

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import Final

import msgspec

from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.primitives import (
    ELEMENTS_MAX,
    Cursor,
    MalformedError,
    count_bytes,
    string_bytes,
    uvarint_bytes,
)
from quorumlog.kafka.requests import RequestHeader, answer_head, read_body
from quorumlog.model.block import Buffer

GATHERED_BYTES_MAX: Final = 4 * 1024
"""Records below this are copied together: each buffer of a write has a price."""
_FIRST_BY_ID: Final = 13
_START: Final = struct.Struct(">iiiib")
_SESSION: Final = struct.Struct(">ii")
_I32: Final = struct.Struct(">i")
_TOPIC_ID: Final = struct.Struct("16s")
_PARTITION: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")
_PARTITION_12_UNTAGGED: Final = struct.Struct(">iiqiqix")
"""A partition and the number of its tagged fields, which is zero as a rule."""
_ANSWER: Final = struct.Struct(">i")
_ANSWER_WITH_SESSION: Final = struct.Struct(">ihi")
_NO_SESSION: Final = 0
_READS_UNCOMMITTED: Final = 0
READS_COMMITTED: Final = 1
"""Isolation level of consumers that read no records of transactions that did not commit."""
_ANSWERED: Final = struct.Struct(">ihqq")
_ANSWERED_5: Final = struct.Struct(">ihqqq")
_HEAD_11: Final = struct.Struct(">ihqqqiii")
"""The same with the number of aborted transactions, the preferred replica, the size of records."""
_HEAD_12: Final = struct.Struct(">ihqqqbi")
"""The same if it is flexible, and without the size of records."""
_ABORTED: Final = struct.Struct(">qq")
_ABORTED_12: Final = struct.Struct(">qqx")
_NULL: Final = count_bytes(-1, is_flexible=False)
_NULL_COMPACT: Final = count_bytes(-1, is_flexible=True)


class FetchPartition(msgspec.Struct, frozen=True, gc=False):
    """What is asked of one partition; epochs and offsets that the client does not know are -1.

    `leader_epoch`: that of the leader that the client takes this node for. `last_fetched_epoch`:
    that of the last batch it has. `log_start` is only of interest to replicas.
    """

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    bytes_max: int


class FetchTopic(msgspec.Struct, frozen=True):
    """What is asked of one topic: by name before version 13, from then on by id."""

    name: str | None
    topic_id: bytes | None
    partitions: list[FetchPartition]


class ForgottenTopic(msgspec.Struct, frozen=True):
    """Partitions that a fetch session no longer has."""

    name: str | None
    topic_id: bytes | None
    partitions: list[int]


class FetchRequest(msgspec.Struct, frozen=True):
    """What a consumer asks: records of partitions, at most `bytes_max` bytes in all.

    The answer may be up to `wait_ms_max` late if there are not yet `bytes_min` bytes.
    `replica_id` is -1 for consumers. `reads_committed`: records of transactions are wanted only
    once these are committed. A client without a fetch session has session id 0; it starts one
    with session epoch 0, and wants none with -1.
    """

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    reads_committed: bool
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack: str


class FetchedPartition(msgspec.Struct, frozen=True):
    """The answer for one partition; `records` are whole record batches, in any number of parts.

    `aborted`: producer id and first offset of aborted transactions in the records; None for
    clients that do not read committed. `preferred_replica`: the node to be asked instead, or -1.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_replica: int = -1
    records: Sequence[Buffer] = ()


class FetchedTopic(msgspec.Struct, frozen=True):
    """The answer for one topic, named as it was in the request."""

    name: str | None
    topic_id: bytes | None
    partitions: list[FetchedPartition]


def read_fetch(
    frame: ReceivedFrame, header: RequestHeader, elements_max: int = ELEMENTS_MAX
) -> FetchRequest:
    """Return the request in a frame. Raises `RemoteProtocolError` if it is none.

    Raises `ManyElementsError` if it has more than `elements_max` elements.
    """
    return read_body(frame, header, _read, elements_max)


def _read(cursor: Cursor, header: RequestHeader) -> FetchRequest:
    version, is_flexible = header.version, header.is_flexible
    start = cursor.place
    replica_id, wait_ms_max, bytes_min, bytes_max, isolation_level = cursor.fixed(_START)
    if isolation_level not in (_READS_UNCOMMITTED, READS_COMMITTED):
        raise MalformedError(f"there is no isolation level {isolation_level}", start)
    session_id, session_epoch = cursor.fixed(_SESSION) if version >= 7 else (0, -1)
    topics = []
    for _ in range(cursor.count(is_flexible=is_flexible)):
        name, topic_id = _read_topic(cursor, header)
        topics.append(FetchTopic(name, topic_id, _read_partitions(cursor, version)))
        if is_flexible:
            cursor.skip_tagged_fields()
    forgotten = []
    for _ in range(cursor.count(is_flexible=is_flexible) if version >= 7 else 0):
        name, topic_id = _read_topic(cursor, header)
        count = cursor.count(is_flexible=is_flexible)
        partitions = [number for (number,) in cursor.rows(_I32, count)]
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
        if is_flexible:
            cursor.skip_tagged_fields()
    rack = cursor.string(is_flexible=is_flexible) if version >= 11 else ""
    if is_flexible:
        cursor.skip_tagged_fields()
    return FetchRequest(
        replica_id,
        wait_ms_max,
        bytes_min,
        bytes_max,
        isolation_level == READS_COMMITTED,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def _read_topic(cursor: Cursor, header: RequestHeader) -> tuple[str | None, bytes | None]:
    if header.version >= _FIRST_BY_ID:
        return None, cursor.fixed(_TOPIC_ID)[0]
    return cursor.string(is_flexible=header.is_flexible), None


def _read_partitions(cursor: Cursor, version: int) -> list[FetchPartition]:
    count = cursor.count(is_flexible=version >= 12)
    made = FetchPartition
    if version < 5:
        return [made(p, -1, o, -1, -1, m) for p, o, m in cursor.rows(_PARTITION, count)]
    if version < 9:
        return [made(p, -1, o, -1, s, m) for p, o, s, m in cursor.rows(_PARTITION_5, count)]
    if version < 12:
        return [made(p, e, o, -1, s, m) for p, e, o, s, m in cursor.rows(_PARTITION_9, count)]
    size = _PARTITION_12_UNTAGGED.size
    tags = cursor.data[cursor.place + size - 1 : cursor.place + count * size : size]
    if bytes(tags).count(0) == count:
        return list(starmap(made, cursor.rows(_PARTITION_12_UNTAGGED, count)))
    partitions = []
    for _ in range(count):
        partitions.append(made(*cursor.fixed(_PARTITION_12)))
        cursor.skip_tagged_fields()
    return partitions


def fetch_answer(
    header: RequestHeader,
    topics: Sequence[FetchedTopic],
    error_code: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """Return the frame of an answer as buffers to be sent one after the other.

    The parts of records are among them as they are, unless they are few bytes. Before version 7
    there is no `error_code`.
    """
    version, is_flexible = header.version, header.is_flexible
    tags = b"\0" if is_flexible else b""
    buffers: list[Buffer] = []
    parts: list[Buffer] = [
        _ANSWER_WITH_SESSION.pack(throttle_ms, error_code, _NO_SESSION)
        if version >= 7
        else _ANSWER.pack(throttle_ms),
        count_bytes(len(topics), is_flexible=is_flexible),
    ]
    for topic in topics:
        if version >= _FIRST_BY_ID:
            parts.append(_TOPIC_ID.pack(topic.topic_id))
        else:
            parts.append(string_bytes(topic.name, is_flexible=is_flexible))
        parts.append(count_bytes(len(topic.partitions), is_flexible=is_flexible))
        for one in topic.partitions:
            records = one.records
            size = len(records[0]) if len(records) == 1 else sum(map(len, records))
            parts.append(_head(one, size, version, is_flexible=is_flexible))
            if size < GATHERED_BYTES_MAX:
                parts += records
            else:
                buffers.append(b"".join(parts))
                buffers += records
                parts = []
            parts.append(tags)
        parts.append(tags)
    parts.append(tags)
    buffers.append(b"".join(parts))
    buffers[0] = answer_head(header, sum(map(len, buffers))) + buffers[0]
    return buffers


def _head(one: FetchedPartition, size: int, version: int, *, is_flexible: bool) -> bytes:
    """Return what comes before the records of a partition, which have `size` bytes."""
    aborted = one.aborted
    if version >= 11 and not aborted:  # as most are: all in one
        count = -1 if aborted is None else 0
        fields = (
            one.partition,
            one.error_code,
            one.high_watermark,
            one.last_stable_offset,
            one.log_start,
        )
        if is_flexible:
            head = _HEAD_12.pack(*fields, count + 1, one.preferred_replica)
            return head + uvarint_bytes(size + 1)
        return _HEAD_11.pack(*fields, count, one.preferred_replica, size)
    marks = (one.partition, one.error_code, one.high_watermark, one.last_stable_offset)
    parts = [_ANSWERED_5.pack(*marks, one.log_start) if version >= 5 else _ANSWERED.pack(*marks)]
    if aborted is None:
        parts.append(_NULL_COMPACT if is_flexible else _NULL)
    else:
        parts.append(count_bytes(len(aborted), is_flexible=is_flexible))
        form = _ABORTED_12 if is_flexible else _ABORTED
        parts += starmap(form.pack, aborted)
    if version >= 11:
        parts.append(_I32.pack(one.preferred_replica))
    parts.append(count_bytes(size, is_flexible=is_flexible))
    return b"".join(parts)
