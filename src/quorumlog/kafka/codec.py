"""Bodies of requests and answers by Kafka's schemas; with those of requests that kafka-python does
not know (`schemas`), the only module that imports it.

Answers are encoded by kafka-python. Requests become its objects, too, but are read here, with its
schemas: its own decoder is made for the answers of a broker that one trusts. It takes strings that
end early, reads a varint of any length in quadratic time, and copies the rest of the request for
each struct with tagged fields.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBufferPool

from quorumlog.kafka import schemas
from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.primitives import ELEMENTS_MAX, FIXED, Cursor
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader, answer_head, read_body
from quorumlog.model.block import Buffer
from quorumlog.model.wording import shortened

Message: TypeAlias = Any
"""A message of kafka-python: an object whose attributes are the fields, in snake case."""
UNSUPPORTED_VERSION: Final = 35
"""Kafka's error code for a version of a request that is not spoken."""
_PRODUCE_FIRST_ANNOUNCED: Final = 0
"""Some versions of librdkafka compress records only if a broker announces the first versions of
Produce (KAFKA-18659), which they do not use then."""
_MESSAGE: Final = "error_message"
_UUID: Final = struct.Struct("16s")
_NO_UUID: Final = bytes(16)
_I32: Final = struct.Struct(">i")
_THROTTLE_TIME: Final = "throttle_time_ms"
_Read: TypeAlias = Callable[[Cursor], Any]


def _messages() -> dict[tuple[int, bool], Any]:
    """Return the classes of messages that are spoken, by API key and whether it is a request."""
    modules = (admin, consumer, metadata, producer, sasl, schemas)
    names = [getattr(module, name) for module in modules for name in module.__all__]
    found = [one for one in names if getattr(one, "type", None) in ("request", "response")]
    return {(one.API_KEY, one.is_request()): one for one in found if one.API_KEY in SPOKEN}


_MESSAGES: Final = _messages()


def decode_request(
    frame: ReceivedFrame, header: RequestHeader, elements_max: int = ELEMENTS_MAX
) -> Message:
    """Return the body of a request as kafka-python's object. Tagged fields are ignored.

    Produce and Fetch are read by `produce` and `fetch`. Raises `RemoteProtocolError` unless the
    frame is exactly that request, `ManyElementsError` if it has more than `elements_max` elements.
    """
    read = _request_reader(header.api_key, header.version)
    return read_body(frame, header, lambda cursor, _: read(cursor), elements_max)


def encode_response(header: RequestHeader, values: Mapping[str, Any]) -> bytes:
    """Return the frame of the answer with these fields, named as in kafka-python's objects.

    A struct is a mapping, an array of structs a list of mappings. Fields that the version does not
    have are left out, those without a value have the default of the schema. Error messages are
    shortened: older versions have no room for long ones. Raises `ValueError` for a field that no
    version has.
    """
    message = _built(_MESSAGES[header.api_key, False], values, header.version)
    body = message.encode(version=header.version)
    return answer_head(header, len(body)) + bytes(body)


def api_versions() -> list[dict[str, int]]:
    """Return what an answer to ApiVersions says in its field `api_keys`."""
    return [
        {
            "api_key": key,
            "min_version": _PRODUCE_FIRST_ANNOUNCED if key == ApiKey.PRODUCE else spoken.first,
            "max_version": spoken.last,
        }
        for key, spoken in SPOKEN.items()
    ]


def refuse_version(header: RequestHeader) -> bytes | None:
    """Return the answer to a request whose version is not spoken; None: its key is not known.

    It says so by error code `UNSUPPORTED_VERSION`, in the answer itself or in a nameless element of
    it, as the request was not read. That to ApiVersions has version 0, and tells what is spoken.
    """
    key = header.api_key
    if key not in SPOKEN:
        return None
    version = min(max(header.version, 0), _MESSAGES[key, False].max_version)
    more = {}
    if key == ApiKey.API_VERSIONS:
        version, more = 0, {"api_keys": api_versions()}
    spoken = msgspec.structs.replace(header, version=version)
    return error_response(spoken, UNSUPPORTED_VERSION, more)


def error_response(
    header: RequestHeader, error_code: int, more: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Return the answer that a whole request failed, with `more` fields.

    An answer that has error codes only in its elements has one nameless element.
    """
    made, version = _MESSAGES[header.api_key, False], header.version
    values = _error_values(made._struct, version, error_code) or {}
    message = _built(made, {**values, **more}, version)
    is_flexible = made.flexible_version_q(version)
    with EncodeBufferPool.acquire() as out:
        # `encode` would make and compile a program for this version, up to 20 ms of the loop, which
        # anybody could have it do for each of some 200
        made._struct.encode_into(
            message, out, version=version, compact=is_flexible, tagged=is_flexible
        )
        body = bytes(out.result())
    return answer_head(header, len(body)) + body


@cache
def _throttle_place(api_key: int, version: int) -> int:
    """Return where answers have their throttle time, from their end if below 0; 0: nowhere."""
    fields = _MESSAGES[api_key, False]._struct.untagged_fields(version)
    is_flexible = version >= SPOKEN[api_key].first_flexible
    head = len(answer_head(RequestHeader(api_key, version, 0), 0))
    if fields[0].name == _THROTTLE_TIME:
        return head
    if fields[-1].name == _THROTTLE_TIME:  # no tagged fields are sent
        return -_I32.size - is_flexible
    if len(fields) > 1 and fields[1].name == _THROTTLE_TIME:  # after an error code
        return head + FIXED[fields[0].type_str].size
    return 0


def with_throttle_time(
    header: RequestHeader, answer: Sequence[Buffer], throttle_ms: int
) -> Sequence[Buffer]:
    """Return the answer to a request with the time that its client has to wait, in milliseconds.

    It stays as it is if it has no room for that: the version is too early or not spoken, or the
    client wants no answer.
    """
    place = _throttle_place(header.api_key, header.version) if header.is_spoken and answer else 0
    if not place:
        return answer
    number = 0 if place > 0 else -1
    changed = bytearray(answer[number])
    _I32.pack_into(changed, place % len(changed), throttle_ms)
    found = list(answer)
    found[number] = changed
    return found


def _error_values(fields: Any, version: int, error_code: int) -> dict[str, Any] | None:
    """Return values of a struct with an error code in it, or in one element of an array."""
    present = fields.untagged_fields(version)
    if any(field.name == "error_code" for field in present):
        return {"error_code": error_code}
    for field in present:
        if field.name.endswith("_error_code"):
            return {field.name: error_code}
        is_array = field.is_struct_array()
        values = _error_values(field, version, error_code) if is_array else None
        if values is not None:
            return {field.name: [values]}
    return None


def _built(made: Any, values: Mapping[str, Any], version: int) -> Message:
    """Return kafka-python's object of the class `made` with these values."""
    fields = made._struct.fields
    found = {
        name: _built_value(fields.get(name), value, version)
        for name, value in values.items()
        if name not in fields or fields[name].for_version_q(version)
    }
    return made(version=version, **found)


def _built_value(field: Any, value: Any, version: int) -> Any:
    if field is None or value is None:
        return value
    if field.name == _MESSAGE:
        return shortened(str(value))
    if field.is_struct_array():
        return [_built(field.data_class, one, version) for one in value]
    if field.is_struct():
        return _built(field.data_class, value, version)
    return UUID(bytes=value) if isinstance(value, bytes) and field.type_str == "uuid" else value


@cache
def _request_reader(api_key: int, version: int) -> _Read:
    request = _MESSAGES[api_key, True]
    is_flexible = version >= SPOKEN[api_key].first_flexible
    return _struct_reader(request._struct, request, version, is_flexible=is_flexible)


def _struct_reader(fields: Any, made: Any, version: int, *, is_flexible: bool) -> _Read:
    """Return what reads a struct, and makes an object of kafka-python's class `made` of it."""
    readers = [
        (field.name, _field_reader(field, version, is_flexible=is_flexible))
        for field in fields.untagged_fields(version)
    ]

    def read(cursor: Cursor) -> Message:
        found = object.__new__(made)  # as kafka-python makes what it decodes
        found._version = version
        for name, read_field in readers:
            setattr(found, name, read_field(cursor))
        if is_flexible:
            cursor.skip_tagged_fields()
        return found

    return read


def _field_reader(
    field: Any, version: int, *, is_flexible: bool, is_element: bool = False
) -> _Read:
    """Return what reads a field, or an element of an array, which is never null."""
    is_nullable = field.nullable_for_version_q(version) and not is_element
    if field.is_array():
        element = field.array_of
        if field.is_struct_array():
            read = _struct_reader(element, field.data_class, version, is_flexible=is_flexible)
        else:
            read = _field_reader(element, version, is_flexible=is_flexible, is_element=True)
        return partial(_read_array, read, is_nullable=is_nullable, is_flexible=is_flexible)
    if field.type_str == "string":
        read_string = Cursor.nullable_string if is_nullable else Cursor.string
        return partial(read_string, is_flexible=is_flexible)
    if field.type_str == "bytes":
        return partial(_read_bytes, is_flexible=is_flexible)
    if field.type_str == "uuid":
        return _read_uuid
    return partial(_read_fixed, FIXED[field.type_str])


def _read_array(
    read: _Read, cursor: Cursor, *, is_nullable: bool, is_flexible: bool
) -> list[Any] | None:
    if is_nullable:
        count = cursor.nullable_count(is_flexible=is_flexible)
        if count is None:
            return None
    else:
        count = cursor.count(is_flexible=is_flexible)
    return [read(cursor) for _ in range(count)]


def _read_fixed(form: struct.Struct, cursor: Cursor) -> Any:
    return cursor.fixed(form)[0]


def _read_bytes(cursor: Cursor, *, is_flexible: bool) -> bytes:
    """Return a copy of a field of bytes: what is kept of it must not keep its request."""
    start, end = cursor.bytes_range(is_flexible=is_flexible)
    return bytes(cursor.data[start:end])


def _read_uuid(cursor: Cursor) -> UUID | None:
    """Return a topic id; zero stands for none."""
    (value,) = cursor.fixed(_UUID)
    return None if value == _NO_UUID else UUID(bytes=value)
