"""Requests of the Kafka protocol: which are spoken, their header, and the head of their answers.

header of a request    i16 API key, i16 version, i32 correlation id, client id (a string that
                       may be null, never compact), tagged fields if the version is flexible
header of an answer    i32 correlation id, tagged fields if the version is flexible
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.primitives import ELEMENTS_MAX, Cursor, MalformedError
from quorumlog.model.errors import RemoteProtocolError

_FIXED: Final = struct.Struct(">hhi")
_CORRELATION_ID_SIZE: Final = 4
_ANSWER: Final = struct.Struct(">ii")
_FLEXIBLE_ANSWER: Final = struct.Struct(">iib")
Value = TypeVar("Value")


class ApiKey(IntEnum):
    """Kinds of requests that are spoken, with Kafka's numbers.

    Those from 20,000 on are our own, far above what Kafka has: `kafka.schemas`.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    JOIN_SINK = 20_000
    END_SINK_BATCH = 20_001
    LOCATE_BATCHES = 20_002


class Versions(NamedTuple):
    """The first and the last version of a request that are spoken, and the first flexible one."""

    first: int
    last: int
    first_flexible: int


SPOKEN: Final[dict[int, Versions]] = {
    ApiKey.PRODUCE: Versions(3, 10, 9),
    ApiKey.FETCH: Versions(4, 13, 12),
    ApiKey.LIST_OFFSETS: Versions(1, 8, 6),
    ApiKey.METADATA: Versions(0, 12, 9),
    ApiKey.OFFSET_COMMIT: Versions(2, 9, 8),
    ApiKey.OFFSET_FETCH: Versions(1, 9, 6),
    ApiKey.FIND_COORDINATOR: Versions(0, 4, 3),
    ApiKey.JOIN_GROUP: Versions(0, 9, 6),
    ApiKey.HEARTBEAT: Versions(0, 4, 4),
    ApiKey.LEAVE_GROUP: Versions(0, 5, 4),
    ApiKey.SYNC_GROUP: Versions(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 6, 5),
    ApiKey.LIST_GROUPS: Versions(0, 5, 3),
    ApiKey.SASL_HANDSHAKE: Versions(0, 1, 2),
    ApiKey.API_VERSIONS: Versions(0, 3, 3),
    ApiKey.CREATE_TOPICS: Versions(2, 7, 5),
    ApiKey.DELETE_TOPICS: Versions(1, 6, 4),
    ApiKey.DELETE_RECORDS: Versions(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: Versions(0, 4, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 3, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 3, 3),
    ApiKey.END_TXN: Versions(0, 3, 3),
    ApiKey.TXN_OFFSET_COMMIT: Versions(0, 3, 3),
    ApiKey.DESCRIBE_ACLS: Versions(1, 3, 2),
    ApiKey.CREATE_ACLS: Versions(1, 3, 2),
    ApiKey.DELETE_ACLS: Versions(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4, 4),
    ApiKey.ALTER_CONFIGS: Versions(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: Versions(1, 4, 2),
    ApiKey.SASL_AUTHENTICATE: Versions(0, 2, 2),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3, 2),
    ApiKey.DELETE_GROUPS: Versions(0, 2, 2),
    ApiKey.ELECT_LEADERS: Versions(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Versions(0, 0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0, 0),
    ApiKey.OFFSET_DELETE: Versions(0, 0, 1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: Versions(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    ApiKey.DESCRIBE_CLUSTER: Versions(0, 1, 0),
    ApiKey.DESCRIBE_PRODUCERS: Versions(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Versions(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: Versions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Versions(0, 1, 0),
    ApiKey.JOIN_SINK: Versions(0, 0, 0),
    ApiKey.END_SINK_BATCH: Versions(0, 1, 0),
    ApiKey.LOCATE_BATCHES: Versions(0, 1, 0),
}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """What the header of a request says. `body`: where its body begins in the frame's buffer.

    If the request is not spoken in this version, nothing of what follows the correlation id is
    known: `client_id` is None, and `body` is 0.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    body: int = 0
    is_flexible: bool = False

    @property
    def is_spoken(self) -> bool:
        """Whether the request can be read, and an answer to it written."""
        return self.body > 0

    @property
    def name(self) -> str:
        """The request for people."""
        key = self.api_key
        known = ApiKey(key).name if key in SPOKEN else f"API key {key}"
        return f"{known} request, version {self.version}"


def read_header(frame: ReceivedFrame) -> RequestHeader:
    """Return the header of the request in a frame. Raises `RemoteProtocolError` if it has none."""
    start = frame.start
    if len(frame.buffer) - start < _FIXED.size:
        raise RemoteProtocolError(
            f"a frame of {frame.size} bytes is no request, whose header has {_FIXED.size} and more"
        )
    key, version, correlation_id = _FIXED.unpack_from(frame.buffer, start)
    spoken = SPOKEN.get(key)
    if spoken is None or not spoken.first <= version <= spoken.last:
        return RequestHeader(key, version, correlation_id)
    is_flexible = version >= spoken.first_flexible
    cursor = Cursor(frame.buffer, start + _FIXED.size)
    try:
        client_id = cursor.nullable_string(is_flexible=False)
        if is_flexible:
            cursor.skip_tagged_fields()
    except (MalformedError, IndexError, struct.error) as error:
        raise _malformed(f"header of a {ApiKey(key).name} request", frame, cursor, error) from None
    return RequestHeader(key, version, correlation_id, client_id, cursor.place, is_flexible)


def read_body(
    frame: ReceivedFrame,
    header: RequestHeader,
    read: Callable[[Cursor, RequestHeader], Value],
    elements_max: int = ELEMENTS_MAX,
) -> Value:
    """Return what `read` makes of the body of a request with this header.

    Bytes after its end are ignored, as Kafka's brokers do: librdkafka 2.16 has three of them in a
    Metadata request for all topics. Raises `RemoteProtocolError`, with the request and the place in
    it, if the body is no such request; `ManyElementsError` if it has more than `elements_max`
    elements, and may be read with another bound.
    """
    cursor = Cursor(frame.buffer, header.body, elements_max)
    try:
        value = read(cursor, header)
    except (MalformedError, IndexError, struct.error) as error:
        raise _malformed(header.name, frame, cursor, error) from None
    return value


def _malformed(
    what: str, frame: ReceivedFrame, cursor: Cursor, error: Exception
) -> RemoteProtocolError:
    place, text = cursor.place, f"the frame of {frame.size} bytes ends early"
    if isinstance(error, MalformedError):
        place, text = error.place, str(error)
    return RemoteProtocolError(f"{what}, byte {place - frame.start}: {text}")


def answer_head(header: RequestHeader, body_size: int) -> bytes:
    """Return the length and the header of an answer with a body of `body_size` bytes."""
    # clients ask for ApiVersions before they know what is spoken, so that its answer stays readable
    is_flexible = header.version >= SPOKEN[header.api_key].first_flexible
    if is_flexible and header.api_key != ApiKey.API_VERSIONS:
        size = _CORRELATION_ID_SIZE + 1 + body_size
        return _FLEXIBLE_ANSWER.pack(size, header.correlation_id, 0)
    return _ANSWER.pack(_CORRELATION_ID_SIZE + body_size, header.correlation_id)
