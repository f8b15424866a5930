"""OffsetCommit, read and written by hand: consumers send more of them than of what is left to
`codec`, and each is small.

    request    group id | i32 generation or epoch | member id | from 7 on group instance id | up to
               4 i64 retention time | topics: name, partitions: i32 partition, i64 offset, from 6
               on i32 leader epoch, metadata
    answer     from 3 on i32 throttle time | topics: name, partitions: i32 partition, i16 error code

Version 8 is the first flexible one. Names of fields are Kafka's, as `codec` has them.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.primitives import ELEMENTS_MAX, Cursor, count_bytes, string_bytes
from quorumlog.kafka.requests import RequestHeader, answer_head, read_body

_FIRST_WITH_THROTTLE_TIME: Final = 3
_LAST_WITH_RETENTION_TIME: Final = 4
_FIRST_WITH_LEADER_EPOCH: Final = 6
_FIRST_WITH_INSTANCE_ID: Final = 7
_RETENTION_TIME: Final = struct.Struct(">q")
_OFFSET: Final = struct.Struct(">iq")
_OFFSET_6: Final = struct.Struct(">iqi")
_ANSWERED: Final = struct.Struct(">ih")
_ANSWERED_8: Final = struct.Struct(">ihx")
_NO_THROTTLE_TIME: Final = bytes(4)


class PartitionOffset(msgspec.Struct, gc=False):
    """Where the consumers of a partition shall go on. `committed_leader_epoch` -1: not known."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class TopicOffsets(msgspec.Struct, gc=False):
    """The offsets of one topic."""

    name: str
    partitions: list[PartitionOffset]


class OffsetCommitRequest(msgspec.Struct, gc=False):
    """What a consumer asks: to commit how far its group has come."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: list[TopicOffsets]


def read_offset_commit(
    frame: ReceivedFrame, header: RequestHeader, elements_max: int = ELEMENTS_MAX
) -> OffsetCommitRequest:
    """Return the request in a frame. Raises `RemoteProtocolError` if it is none.

    Raises `ManyElementsError` if it has more than `elements_max` elements.
    """
    return read_body(frame, header, _read, elements_max)


def _read(cursor: Cursor, header: RequestHeader) -> OffsetCommitRequest:
    version, is_flexible = header.version, header.is_flexible
    group = cursor.string(is_flexible=is_flexible)
    epoch = cursor.int32()
    member_id = cursor.string(is_flexible=is_flexible)
    instance_id = None
    if version >= _FIRST_WITH_INSTANCE_ID:
        instance_id = cursor.nullable_string(is_flexible=is_flexible)
    if version <= _LAST_WITH_RETENTION_TIME:
        cursor.fixed(_RETENTION_TIME)  # the cluster has one for all (offsets.retention.minutes)
    topics = []
    for _ in range(cursor.count(is_flexible=is_flexible)):
        name = cursor.string(is_flexible=is_flexible)
        count = cursor.count(is_flexible=is_flexible)
        topics.append(TopicOffsets(name, [_partition(cursor, header) for _ in range(count)]))
        if is_flexible:
            cursor.skip_tagged_fields()
    if is_flexible:
        cursor.skip_tagged_fields()
    return OffsetCommitRequest(group, epoch, member_id, instance_id, topics)


def _partition(cursor: Cursor, header: RequestHeader) -> PartitionOffset:
    is_flexible, leader_epoch = header.is_flexible, -1
    if header.version >= _FIRST_WITH_LEADER_EPOCH:
        number, offset, leader_epoch = cursor.fixed(_OFFSET_6)
    else:
        number, offset = cursor.fixed(_OFFSET)
    metadata = cursor.nullable_string(is_flexible=is_flexible)
    if is_flexible:
        cursor.skip_tagged_fields()
    return PartitionOffset(number, offset, leader_epoch, metadata)


def offset_commit_answer(
    header: RequestHeader, topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]
) -> bytes:
    """Return the frame of an answer: error codes of the partitions of topics, by their numbers."""
    is_flexible = header.is_flexible
    tags = b"\0" if is_flexible else b""
    parts = [_NO_THROTTLE_TIME] if header.version >= _FIRST_WITH_THROTTLE_TIME else []
    parts.append(count_bytes(len(topics), is_flexible=is_flexible))
    for name, partitions in topics:
        parts += (
            string_bytes(name, is_flexible=is_flexible),
            count_bytes(len(partitions), is_flexible=is_flexible),
            _partitions(partitions, is_flexible=is_flexible),
            tags,
        )
    parts.append(tags)
    body = b"".join(parts)
    return answer_head(header, len(body)) + body


def _partitions(partitions: Iterable[tuple[int, int]], *, is_flexible: bool) -> bytes:
    """Return numbers and error codes; each is followed by no tagged fields if that is flexible."""
    form = _ANSWERED_8 if is_flexible else _ANSWERED
    return b"".join([form.pack(number, code) for number, code in partitions])
