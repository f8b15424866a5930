"""Requests of Kafka clients, well formed and damaged, from a seed."""

from uuid import UUID

from kafka_peer import MESSAGES, NO_UUID, framed, sent
from quorumlog.kafka.requests import SPOKEN, ApiKey
from record_batches import batch_of

TOPICS = ("t", "unknown", "", "../x", "a" * 249, "ü")
EVIL = (
    b"\xff\xff\xff\xff\x0f",  # the largest varint
    b"\xff" * 9 + b"\x01",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\x80\x00",
    b"\x00" * 8,
)
"""Lengths and counts that no request has."""
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
STRUCTS_MAX = 3


def request(random, key, version):
    """Return the frame of a well-formed request."""
    return sent(key, version, _values(random, MESSAGES[key, True]._struct, version))


def requests(random, keys):
    """Yield a key, a version and a well-formed frame, for each version that is spoken."""
    for key in keys:
        for version in range(SPOKEN[key].first, SPOKEN[key].last + 1):
            yield ApiKey(key), version, request(random, key, version)


def _values(random, struct, version):
    fields = [one for one in struct._fields if one.for_version_q(version) and one.tag is None]
    return {one.name: _value(random, one, version) for one in fields}


def _value(random, field, version):
    if field.nullable_for_version_q(version) and random.random() < 0.2:
        return None
    count = random.randint(0, STRUCTS_MAX)
    if field.is_struct_array():
        return [_values(random, field.array_of, version) for _ in range(count)]
    if field.is_array():
        return [_scalar(random, field.array_of.type_str, field.name) for _ in range(count)]
    return _scalar(random, field.type_str, field.name)


def _scalar(random, kind, name):
    match kind:
        case "bool":
            return random.random() < 0.5
        case "string":
            return random.choice(TOPICS)
        case "uuid":
            found = UUID(int=random.getrandbits(128))
            return found if found != NO_UUID else UUID(int=1)
        case "records":
            return bytes(batch_of(range(random.randint(1, 3))))
        case "bytes":
            return random.randbytes(random.randint(0, 8))
        case "float64":
            return random.choice((0.0, 1.5, -1.0, float("inf"), float("nan")))
        case "bitfield":
            return {random.randint(0, 30)}
        case _ if "timeout" in name or "wait" in name:
            return random.choice((0, 1, -1))  # else each request would wait
        case _ if name == "isolation_level":
            return random.randint(0, 1)
        case _:
            edge = 1 << (BITS[kind] - 1)
            return random.choice((0, 0, 1, -1, 2, edge - 1, -edge))


def damaged(random, frame):
    """Return a frame with bits, bytes, lengths or its end changed; its own length is right."""
    body = bytearray(frame[4:])
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(body)) if body else 0
        match random.randrange(6):
            case 0 if body:
                body[place] ^= 1 << random.randrange(8)
            case 1:
                del body[place:]
            case 2:
                evil = random.choice(EVIL)
                body[place : place + len(evil)] = evil
            case 3:
                body[place:place] = random.randbytes(random.randint(1, 6))
            case 4:
                del body[place : place + random.randint(1, 6)]
            case 5:
                body[place:place] = random.choice(EVIL)
    return framed(bytes(body) or b"\0")
