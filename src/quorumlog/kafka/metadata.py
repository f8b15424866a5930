"""Answers to Metadata, written by hand: partitions of one group share all bytes but their number.

    answer     from 3 on i32 throttle time | brokers: i32 id, host, i32 port, from 1 on rack |
               from 2 on cluster id | from 1 on i32 controller id | topics: i16 error code, name,
               from 10 on topic id, from 1 on bool internal, partitions: i16 error code,
               i32 partition, i32 leader, from 7 on i32 leader epoch, replicas, in-sync replicas,
               from 5 on offline replicas; from 8 on i32 operations on the topic |
               from 8 to 10 i32 operations on the cluster

Version 9 is the first flexible one.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from quorumlog.kafka.primitives import count_bytes, string_bytes
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader, answer_head

UNTOLD: Final = -(1 << 31)
"""In the place of allowed operations that were not asked for."""
_FIRST_FLEXIBLE: Final = SPOKEN[ApiKey.METADATA].first_flexible
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">hi")
_NO_TOPIC_ID: Final = bytes(16)


class MetadataBroker(msgspec.Struct, frozen=True):
    """A node that clients may connect to."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class Place(msgspec.Struct, frozen=True):
    """Where the partitions of a group are; ids of brokers. The leader and its epoch may be -1."""

    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()


def place_bytes(version: int, place: Place) -> bytes:
    """Return what an answer of this version says of a partition after its number."""
    is_flexible = version >= _FIRST_FLEXIBLE
    parts = [_I32.pack(place.leader_id)]
    if version >= 7:
        parts.append(_I32.pack(place.leader_epoch))
    lists = [place.replicas, place.in_sync]
    if version >= 5:
        lists.append(place.offline)
    for brokers in lists:
        parts.append(count_bytes(len(brokers), is_flexible=is_flexible))
        parts.append(struct.pack(f">{len(brokers)}i", *brokers))
    parts.append(_tags(version))
    return b"".join(parts)


def topic_bytes(
    version: int,
    name: str | None,
    topic_id: bytes | None,
    error_code: int = 0,
    partitions: Iterable[tuple[int, int, bytes]] = (),
    operations: int = UNTOLD,
) -> bytes:
    """Return what an answer of this version says of a topic.

    `partitions`: error code, number, and `place_bytes`. Before version 12 a name is never null.
    """
    is_flexible = version >= _FIRST_FLEXIBLE
    named = name or "" if version < 12 else name
    parts = [_I16.pack(error_code), string_bytes(named, is_flexible=is_flexible)]
    if version >= 10:
        parts.append(topic_id or _NO_TOPIC_ID)
    if version >= 1:
        parts.append(b"\0")
    pack = _PARTITION.pack
    rows = [pack(code, number) + place for code, number, place in partitions]
    parts.append(count_bytes(len(rows), is_flexible=is_flexible))
    parts += rows
    if version >= 8:
        parts.append(_I32.pack(operations))
    parts.append(_tags(version))
    return b"".join(parts)


def metadata_answer(
    header: RequestHeader,
    *,
    brokers: Sequence[MetadataBroker],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
    operations: int = UNTOLD,
) -> bytes:
    """Return the frame of an answer; `topics` are the `topic_bytes` of its version."""
    version, is_flexible = header.version, header.is_flexible
    tags = _tags(version)
    parts = [_I32.pack(0)] if version >= 3 else []
    parts.append(count_bytes(len(brokers), is_flexible=is_flexible))
    for broker in brokers:
        host = string_bytes(broker.host, is_flexible=is_flexible)
        parts += [_I32.pack(broker.broker_id), host, _I32.pack(broker.port)]
        if version >= 1:
            parts.append(string_bytes(broker.rack, is_flexible=is_flexible))
        parts.append(tags)
    if version >= 2:
        parts.append(string_bytes(cluster_id, is_flexible=is_flexible))
    if version >= 1:
        parts.append(_I32.pack(controller_id))
    parts.append(count_bytes(len(topics), is_flexible=is_flexible))
    parts += topics
    if 8 <= version <= 10:
        parts.append(_I32.pack(operations))
    parts.append(tags)
    body = b"".join(parts)
    return answer_head(header, len(body)) + body


def _tags(version: int) -> bytes:
    """Return the end of a struct: that it has no tagged fields."""
    return b"\0" if version >= _FIRST_FLEXIBLE else b""
