"""A message of each kind with a value of its own in every field, and the golden bytes of a release.

Values are made from the types of the fields alone, in their order. The golden bytes are written
anew when a release is made, never to mend a test: see test_wire_golden.py.
"""

import itertools
import json
from pathlib import Path

import msgspec

from quorumlog.wire.kinds import MESSAGE_OF_KIND

GOLDEN = Path(__file__).parent / "fixtures" / "wire.json"


class Golden(msgspec.Struct):
    """A message of one kind as a release encoded it; `fields` are the names of all its fields."""

    name: str
    fields: list[str]
    encoded: bytes


class GoldenRelease(msgspec.Struct):
    """What a release speaks: by number the messages of all kinds, by name the values in them."""

    release: str
    kinds: dict[int, Golden]
    values: dict[str, list[str]]


def read_golden():
    return msgspec.json.decode(GOLDEN.read_bytes(), type=GoldenRelease, strict=False)


def write_golden(release):
    """Write what the code that runs speaks, a line for each message."""
    kinds = {
        kind: Golden(
            name=message.__name__,
            fields=list(message.__struct_fields__),
            encoded=msgspec.msgpack.encode(sample_of(message)),
        )
        for kind, message in MESSAGE_OF_KIND.items()
    }
    found = msgspec.to_builtins(GoldenRelease(release, kinds, values_in_messages()), str_keys=True)
    parts = [
        f'"{name}": {{\n'
        + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in found[name].items())
        + "\n}"
        for name in ("kinds", "values")
    ]
    GOLDEN.write_text(f'{{"release": "{release}",\n' + ",\n".join(parts) + "}\n")


def values_in_messages():
    """Return the fields of all structures that messages hold, by their names."""
    found = {}
    for message in MESSAGE_OF_KIND.values():
        for field in msgspec.inspect.type_info(message).fields:
            _note_values(field.type, found)
    return found


def _note_values(kind, found):
    if isinstance(kind, msgspec.inspect.StructType):
        found[kind.cls.__name__] = list(kind.cls.__struct_fields__)
    for inner in _inner_types(kind):
        _note_values(inner, found)


def _inner_types(kind):
    info = msgspec.inspect
    if isinstance(kind, info.StructType):
        return [field.type for field in kind.fields]
    if isinstance(kind, info.UnionType):
        return kind.types
    if isinstance(kind, info.ListType):
        return [kind.item_type]
    if isinstance(kind, info.TupleType):
        return kind.item_types
    if isinstance(kind, info.DictType):
        return [kind.key_type, kind.value_type]
    return [kind.type] if isinstance(kind, info.Metadata) else []


def sample_of(message):
    """Return a message of a class with a value of its own in every field."""
    return _value_of(msgspec.inspect.type_info(message), itertools.count(1))


def _value_of(kind, numbers):
    info = msgspec.inspect
    if isinstance(kind, info.StructType):
        return kind.cls(**{one.name: _value_of(one.type, numbers) for one in kind.fields})
    if isinstance(kind, info.UnionType):
        return _value_of(next(one for one in kind.types if one != info.NoneType()), numbers)
    inner = [_value_of(one, numbers) for one in _inner_types(kind)]
    if isinstance(kind, info.Metadata):
        return inner[0]
    if isinstance(kind, info.ListType):
        return inner
    if isinstance(kind, info.TupleType):
        return tuple(inner)
    if isinstance(kind, info.DictType):
        return {inner[0]: inner[1]}
    return _plain_value_of(kind, numbers)


def _plain_value_of(kind, numbers):
    info = msgspec.inspect
    if isinstance(kind, info.EnumType):
        return list(kind.cls)[1]
    if isinstance(kind, info.BoolType):
        return True
    number = next(numbers)
    if isinstance(kind, info.IntType):
        return number if kind.le is None or number <= kind.le else kind.le
    if isinstance(kind, info.FloatType):
        return number + 0.5
    if isinstance(kind, info.StrType):
        return f"text {number}"
    if isinstance(kind, info.BytesType):
        return b"bytes %d" % number
    raise TypeError(f"no sample of {kind}")
