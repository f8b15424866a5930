"""The requests of Spark's jobs, but for Fetch, and their answers: four schemas of the protocol.

kafka-python has them, too, but loads all its clients and messages with them. That is 0.2 s of the
processor in each of Spark's Python processes (decision 0063).
"""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from quorumlog.kafka.primitives import FIXED, Cursor, MalformedError, count_bytes, string_bytes
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.errors import RemoteProtocolError

ANSWER_BYTES_MAX: Final = 100 * 1024 * 1024
"""A larger answer is none of a broker. One batch may be larger than what is asked for."""
Message: TypeAlias = Any
"""An answer, or a struct of one: an object whose attributes are the fields, in snake case."""
_FIXED: Final = {**FIXED, "uuid": struct.Struct(">16s")}
_STRING: Final = "string"
_NULLABLE: Final = "nullable string"
_HEAD: Final = struct.Struct(">hhi")
_I32: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\0"


class _Array(NamedTuple):
    """An array of structs of these fields, or of values of a type."""

    of: "_Fields | str"


_Fields: TypeAlias = tuple[tuple[str, str | _Array], ...]
"""The fields of a struct: their names and types, in their order."""


class _Schema(NamedTuple):
    version: int
    is_flexible: bool
    """Whether strings and arrays are compact, and structs have tagged fields."""
    request: _Fields
    answer: _Fields


def _by_topic(*of_partition: tuple[str, str]) -> tuple[str, _Array]:
    """Return the field that has these fields of partitions, those of one topic together."""
    return "topics", _Array((("name", _STRING), ("partitions", _Array(of_partition))))


_API_VERSIONS: Final = _Schema(
    version=0,
    is_flexible=False,
    request=(),
    answer=(
        ("error_code", "int16"),
        (
            "api_keys",
            _Array((("api_key", "int16"), ("min_version", "int16"), ("max_version", "int16"))),
        ),
    ),
)
_METADATA: Final = _Schema(
    version=10,  # the first one with the ids of topics
    is_flexible=True,
    request=(
        ("topics", _Array((("topic_id", "uuid"), ("name", _NULLABLE)))),
        ("allow_auto_topic_creation", "bool"),
        ("include_cluster_authorized_operations", "bool"),
        ("include_topic_authorized_operations", "bool"),
    ),
    answer=(
        ("throttle_time_ms", "int32"),
        (
            "brokers",
            _Array(
                (("node_id", "int32"), ("host", _STRING), ("port", "int32"), ("rack", _NULLABLE))
            ),
        ),
        ("cluster_id", _NULLABLE),
        ("controller_id", "int32"),
        (
            "topics",
            _Array(
                (
                    ("error_code", "int16"),
                    ("name", _STRING),
                    ("topic_id", "uuid"),
                    ("is_internal", "bool"),
                    (
                        "partitions",
                        _Array(
                            (
                                ("error_code", "int16"),
                                ("partition_index", "int32"),
                                ("leader_id", "int32"),
                                ("leader_epoch", "int32"),
                                ("replica_nodes", _Array("int32")),
                                ("isr_nodes", _Array("int32")),
                                ("offline_replicas", _Array("int32")),
                            )
                        ),
                    ),
                    ("authorized_operations", "int32"),
                )
            ),
        ),
        ("authorized_operations", "int32"),
    ),
)
_LIST_OFFSETS: Final = _Schema(
    version=5,
    is_flexible=False,
    request=(
        ("replica_id", "int32"),
        ("isolation_level", "int8"),
        _by_topic(
            ("partition_index", "int32"),
            ("current_leader_epoch", "int32"),
            ("timestamp", "int64"),
        ),
    ),
    answer=(
        ("throttle_time_ms", "int32"),
        _by_topic(
            ("partition_index", "int32"),
            ("error_code", "int16"),
            ("timestamp", "int64"),
            ("offset", "int64"),
            ("leader_epoch", "int32"),
        ),
    ),
)
_LOCATE_BATCHES: Final = _Schema(
    version=1,
    is_flexible=True,
    request=(
        ("machine", _STRING),
        ("topic", _STRING),
        ("partition", "int32"),
        ("isolation_level", "int8"),
        ("first_offset", "int64"),
        ("end_offset", "int64"),
    ),
    answer=(
        ("error_code", "int16"),
        ("error_message", _NULLABLE),
        ("is_same_machine", "bool"),
        ("directories", _Array((("path", _STRING), ("device", "int64"), ("inode", "int64")))),
        ("channel", "int64"),
        ("base_offsets", _Array("int64")),
        ("indexes", _Array("int64")),
        ("next_offset", "int64"),
        (
            "aborted_transactions",
            _Array((("producer_id", "int64"), ("first_offset", "int64"), ("last_offset", "int64"))),
        ),
    ),
)
_SCHEMAS: Final[Mapping[ApiKey, _Schema]] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: _API_VERSIONS,
        ApiKey.METADATA: _METADATA,
        ApiKey.LIST_OFFSETS: _LIST_OFFSETS,
        ApiKey.LOCATE_BATCHES: _LOCATE_BATCHES,
    }
)


def encode_request(key: ApiKey, values: Mapping[str, Any], number: int, client_id: str) -> bytes:
    """Return the frame of a request with these fields. Those that are left out are 0 or false."""
    schema = _SCHEMAS[key]
    head = _HEAD.pack(key, schema.version, number) + string_bytes(client_id, is_flexible=False)
    if schema.is_flexible:
        head += _NO_TAGS
    body = head + _struct_bytes(schema.request, values, schema.is_flexible)
    return _I32.pack(len(body)) + body


def decode_answer(key: ApiKey, answer: bytes | bytearray) -> Message:
    """Return the answer to a request: its frame without the size. Raises `RemoteProtocolError`."""
    schema = _SCHEMAS[key]
    cursor = Cursor(memoryview(answer), _I32.size, ANSWER_BYTES_MAX)
    try:
        if schema.is_flexible:
            cursor.skip_tagged_fields()
        return _read_struct(schema.answer, cursor, schema.is_flexible)
    except (MalformedError, IndexError, struct.error) as error:
        raise RemoteProtocolError(f"an answer that cannot be read: {error}") from None


def _struct_bytes(fields: _Fields, values: Mapping[str, Any], is_flexible: bool) -> bytes:
    found = [_value_bytes(kind, values.get(name), is_flexible) for name, kind in fields]
    return b"".join([*found, _NO_TAGS] if is_flexible else found)


def _value_bytes(kind: str | _Array, value: Any, is_flexible: bool) -> bytes:
    if isinstance(kind, _Array):
        return _array_bytes(kind.of, value, is_flexible)
    if kind in (_STRING, _NULLABLE):
        return string_bytes(value, is_flexible=is_flexible)
    if value is None:
        return bytes(_FIXED[kind].size)
    return _FIXED[kind].pack(value.bytes if kind == "uuid" else value)


def _array_bytes(of: _Fields | str, values: Sequence[Any] | None, is_flexible: bool) -> bytes:
    if values is None:
        return count_bytes(-1, is_flexible=is_flexible)
    if isinstance(of, str):
        found = [_value_bytes(of, one, is_flexible) for one in values]
    else:
        found = [_struct_bytes(of, one, is_flexible) for one in values]
    return b"".join([count_bytes(len(values), is_flexible=is_flexible), *found])


def _read_struct(fields: _Fields, cursor: Cursor, is_flexible: bool) -> Message:
    found = SimpleNamespace(
        **{name: _read_value(kind, cursor, is_flexible) for name, kind in fields}
    )
    if is_flexible:
        cursor.skip_tagged_fields()
    return found


def _read_value(kind: str | _Array, cursor: Cursor, is_flexible: bool) -> Any:
    if isinstance(kind, _Array):
        return _read_array(kind.of, cursor, is_flexible)
    if kind == _STRING:
        return cursor.string(is_flexible=is_flexible)
    if kind == _NULLABLE:
        return cursor.nullable_string(is_flexible=is_flexible)
    (value,) = cursor.fixed(_FIXED[kind])
    return UUID(bytes=value) if kind == "uuid" else value


def _read_array(of: _Fields | str, cursor: Cursor, is_flexible: bool) -> list[Any]:
    count = cursor.count(is_flexible=is_flexible)
    if isinstance(of, str):
        return [value for (value,) in cursor.rows(_FIXED[of], count)]
    return [_read_struct(of, cursor, is_flexible) for _ in range(count)]
