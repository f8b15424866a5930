"""Kafka clients' side of the protocol, by code that is not ours: kafka-python's codec."""

import struct
from uuid import UUID

from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl

from quorumlog.kafka import schemas
from quorumlog.kafka.frames import FRAME_BYTES_MAX, FrameReader
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader, read_header

MESSAGES = {
    (one.API_KEY, one.is_request()): one
    for module in (admin, consumer, metadata, producer, sasl, schemas)
    for one in (getattr(module, name) for name in module.__all__)
    if getattr(one, "type", None) in ("request", "response") and one.API_KEY in SPOKEN
}
SPOKEN_VERSIONS = [
    (ApiKey(key), version)
    for key, versions in SPOKEN.items()
    for version in range(versions.first, versions.last + 1)
]
NO_UUID = UUID(int=0)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
OF_TYPE = {
    "bool": st.booleans(),
    "int8": st.integers(-(1 << 7), (1 << 7) - 1),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "float64": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "uuid": st.uuids().filter(lambda value: value != NO_UUID),
    "string": TEXTS,
    "records": st.binary(max_size=200),
    "bitfield": st.sets(st.integers(0, 30)),
}


def values_of(struct, version):
    """Return a strategy for the fields of a struct, tagged ones left out, as plain values."""
    present = [one for one in struct._fields if one.for_version_q(version) and one.tag is None]
    return st.fixed_dictionaries({one.name: _value_of(one, version) for one in present})


def _value_of(field, version):
    if field.is_struct_array():
        value = st.lists(values_of(field.array_of, version), max_size=3)
    elif field.is_array():
        value = st.lists(OF_TYPE[field.array_of.type_str], max_size=3)
    elif field.is_struct():
        value = values_of(field, version)
    else:
        value = OF_TYPE[field.type_str]
    return st.none() | value if field.nullable_for_version_q(version) else value


def made(message, version, values):
    """Return kafka-python's object of these plain values."""
    fields = message._struct.fields
    found = {name: _made_value(fields[name], version, one) for name, one in values.items()}
    return message(version=version, **found)


def _made_value(field, version, value):
    if value and field.is_struct_array():
        return [made(field.data_class, version, one) for one in value]
    if value is not None and field.is_struct():
        return made(field.data_class, version, value)
    return value


def sent(key, version, values, *, correlation_id=7, client_id="client"):
    """Return the frame of a request, as kafka-python's clients send it."""
    request = made(MESSAGES[key, True], version, values)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(version=version, header=True, framed=True))


def cut(raw):
    """Return the one frame in these bytes, and the header of the request in it."""
    reader = FrameReader()
    reader.frame_bytes_max = FRAME_BYTES_MAX
    reader.receive_data(raw)
    frame = reader.next_frame()
    assert not reader.is_mid_frame
    return frame, read_header(frame)


def framed(body):
    """Return the frame of these bytes."""
    return len(body).to_bytes(4, "big") + body


def request(key, version, body):
    """Return the frame of a request with this body, and a header without a client id."""
    tags = b"\0" if version >= SPOKEN[key].first_flexible else b""
    return framed(struct.pack(">hhih", key, version, 7, -1) + tags + body)


def answered(header: RequestHeader, raw, *, version=None):
    """Return the answer in a frame, as kafka-python's clients read it."""
    version = header.version if version is None else version
    response = MESSAGES[header.api_key, False]
    found = response.decode(bytes(raw), version=version, header=True, framed=True)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    assert found.header.correlation_id == header.correlation_id
    return found


@st.composite
def damaged(draw, raw):
    """Draw a frame with some of its bytes changed, lost or put in; its length is right again."""
    body = bytearray(raw[4:])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(body) - 1)) if body else 0
        match draw(st.integers(0, 4)):
            case 0 if body:
                body[place] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del body[place:]
            case 2:
                worst = [b"\xff" * 4, b"\x80\0\0\0", b"\xff" * 9 + b"\1", b"\xff\xff\xff\xff\x0f"]
                evil = draw(st.sampled_from(worst))
                body[place : place + len(evil)] = evil
            case 3:
                body[place:place] = draw(st.binary(max_size=6))
            case 4:
                del body[place : place + draw(st.integers(1, 6))]
    return framed(bytes(body) or b"\0")
