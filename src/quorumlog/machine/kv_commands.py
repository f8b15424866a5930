"""Commands, queries and answers of the key-value machine, and their encoding.

A command is always a transaction: compares, operations to apply if all of them are true, and
operations to apply otherwise. A put, a delete and a compare-and-set are small transactions.
Everything is MessagePack (arrays that start with a number for the kind), checked on both sides: a
client learns at once what is wrong with a command, and a replica does not trust what it decodes
from the log, where any client may have written anything.
"""

from typing import TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from quorumlog.model.block import Buffer
from quorumlog.model.errors import UnexpectedArgumentError

KEY_BYTES_MAX = 511
"""LMDB takes no longer keys, and no empty one."""
VALUE_BYTES_MAX = 1 << 20
"""Length of one value."""
OPERATIONS_MAX = 1_024
"""Items in each of a transaction's three lists."""
SCAN_ITEMS_MAX = 10_000
"""Items or events in one answer, whatever limit was asked for."""
SCAN_BYTES_MAX = 1 << 20
"""Bytes of keys and values in one answer, but at least one item or the events of one entry."""
EVENTS_KEPT = 100_000
"""Newest changes that are kept. All replicas of a group must agree on it."""
ABSENT = -1
"""Stands in place of the index that last changed a key: there is no such key."""

_Kind = TypeVar("_Kind")


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of everything that is encoded as an array of its fields."""


# -- commands ---------------------------------------------------------------------------------


class Put(_Message, frozen=True, tag=0):
    """Give a key a value."""

    key: bytes
    value: bytes


class Delete(_Message, frozen=True, tag=1):
    """Remove a key; nothing happens if there is none."""

    key: bytes


Operation: TypeAlias = Put | Delete


class Compare(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A condition on a key: its value, the index that last changed it, or both.

    `value` None: there is no such key; `index` `ABSENT`: the same. Encoded as a map, since msgspec
    cannot leave out a field of an array.
    """

    key: bytes
    value: bytes | UnsetType | None = UNSET
    index: int | UnsetType = UNSET


class Transaction(_Message, frozen=True, tag=0):
    """If all `compares` are true, apply `then`, else `otherwise`; in order, all or nothing."""

    compares: tuple[Compare, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()


class Outcome(_Message, frozen=True):
    """The result of a transaction.

    `succeeded`: all compares were true. `index` is that of its entry. `previous` has, for each
    operation that was applied, the value before (None: no such key). `error` is not empty if
    the command was malformed or too large; then it changed nothing.
    """

    succeeded: bool
    index: int
    previous: list[bytes | None]
    error: str = ""


# -- queries ----------------------------------------------------------------------------------


class Get(_Message, frozen=True, tag=0):
    """Ask for the value of a key; the answer is a `Value`."""

    key: bytes


class Scan(_Message, frozen=True, tag=1):
    """Ask for up to `limit` items from `begin` to before `end` (None: to the last key).

    The answer is a `Page`, in order of the keys, or with `reverse` in the opposite order.
    """

    begin: bytes
    end: bytes | None
    limit: int
    reverse: bool = False


class Events(_Message, frozen=True, tag=2):
    """Ask for up to `limit` changes of keys with a prefix, by entries from an index on.

    The answer is a `Happened`.
    """

    prefix: bytes
    first_index: int
    limit: int


Query: TypeAlias = Get | Scan | Events


class Value(_Message, frozen=True, tag=0):
    """The value of a key and the index that last changed it; None and `ABSENT`: no such key."""

    value: bytes | None
    index: int


class Page(_Message, frozen=True, tag=1):
    """Items (key, value, index); `more`: the range holds others, after (or before) the last."""

    items: list[tuple[bytes, bytes, int]]
    more: bool


class Happened(_Message, frozen=True, tag=2):
    """Changes (index, key, value or None: deleted), in order; those of one entry stay together.

    Further ones follow from `next_index`. If `first_kept_index` is after the requested index, the
    changes in between are forgotten: then there are no events, and `next_index` does not advance.
    """

    events: list[tuple[int, bytes, bytes | None]]
    next_index: int
    first_kept_index: int


Answer: TypeAlias = Value | Page | Happened


# -- encoding ---------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Transaction)
_outcomes = msgspec.msgpack.Decoder(Outcome)
_queries: msgspec.msgpack.Decoder[Query] = msgspec.msgpack.Decoder(Query)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def _decode(decoder: msgspec.msgpack.Decoder[_Kind], data: Buffer, what: str) -> _Kind:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedArgumentError(f"not a key-value {what}: {error}") from error


def encode_command(command: Transaction) -> bytes:
    """Return the body of an entry. Raises `UnexpectedArgumentError` if it is beyond a bound."""
    _check_command(command)
    return _encoder.encode(command)


def decode_command(data: Buffer) -> Transaction:
    """Return a decoded command. Raises `UnexpectedArgumentError` if malformed or too large."""
    command = _decode(_commands, data, "command")
    _check_command(command)
    return command


def encode_outcome(outcome: Outcome) -> bytes:
    """Return a command's result."""
    return _encoder.encode(outcome)


def decode_outcome(data: Buffer) -> Outcome:
    """Return the decoded value. Raises `UnexpectedArgumentError` if the bytes are malformed."""
    return _decode(_outcomes, data, "outcome")


def encode_query(query: Query) -> bytes:
    """Return an encoded query. Raises `UnexpectedArgumentError` if it can have no answer."""
    _check_query(query)
    return _encoder.encode(query)


def decode_query(data: Buffer) -> Query:
    """Return the decoded value. Raises `UnexpectedArgumentError` if the bytes are malformed."""
    query = _decode(_queries, data, "query")
    _check_query(query)
    return query


def encode_answer(answer: Answer) -> bytes:
    """Return the answer to a query."""
    return _encoder.encode(answer)


def decode_answer(data: Buffer) -> Answer:
    """Return the decoded value. Raises `UnexpectedArgumentError` if the bytes are malformed."""
    return _decode(_answers, data, "answer")


# -- bounds -----------------------------------------------------------------------------------


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UnexpectedArgumentError(message)


def _check_key(key: bytes) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise UnexpectedArgumentError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")


def _check_command(command: Transaction) -> None:
    for part in (command.compares, command.then, command.otherwise):
        if len(part) > OPERATIONS_MAX:
            raise UnexpectedArgumentError(
                f"a transaction has at most {OPERATIONS_MAX} compares and as many operations in "
                f"each branch, not {len(part)}"
            )
    for compare in command.compares:
        _check_key(compare.key)
        is_empty = compare.value is UNSET and compare.index is UNSET
        _require(not is_empty, "a compare needs a value or an index")
    for operations in (command.then, command.otherwise):
        for operation in operations:
            _check_key(operation.key)
            if isinstance(operation, Put) and len(operation.value) > VALUE_BYTES_MAX:
                raise UnexpectedArgumentError(
                    f"a value has at most {VALUE_BYTES_MAX} bytes, not {len(operation.value)}"
                )


def _check_query(query: Query) -> None:
    if isinstance(query, Get):
        _check_key(query.key)
    else:
        _require(query.limit > 0, f"the limit must be at least 1, not {query.limit}")
    if isinstance(query, Events):
        _require(query.first_index >= 0, f"there is no index {query.first_index}")


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all that start with a prefix; None: there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
