"""The append hook of simulated nodes: it fills reserved bytes at the end of clients' values.

value   number, space, dots, and in the last 17 bytes, which were dots, too:
        index, position (8 bytes each), and how often a hook has run, beginning with a dot
"""

import re
import struct
from dataclasses import dataclass
from random import Random

from quorumlog.model.hooks import AppendHook, AppendPlace

VALUE = re.compile(rb"\d+ \.{3}")
"""What bodies begin with that have room for it, unlike commands of state machines."""
VALUE_BYTES_MIN = 40
_STAMP = struct.Struct(">qqB")
RESERVED = b"." * _STAMP.size
ONCE = RESERVED[-1] + 1
REFUSED = 0.02
"""Share of entries that the hook refuses."""


class HookError(Exception):
    """The hook does not like an entry."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a hook has written into a value."""

    index: int
    position: int
    runs: int


def has_room(body: bytes) -> bool:
    """Whether a body is a value with reserved bytes."""
    return len(body) >= VALUE_BYTES_MIN and VALUE.match(body) is not None


def make_hook(random: Random) -> AppendHook:
    """Return a hook that fills reserved bytes, and now and then refuses an entry."""

    def fill(place: AppendPlace, body: memoryview) -> None:
        if not has_room(bytes(body)):
            return
        if random.random() < REFUSED:
            raise HookError
        start = len(body) - _STAMP.size
        _STAMP.pack_into(body, start, place.index, place.position, body[-1] + 1)

    return fill


def stamp_of(body: bytes) -> Stamp:
    """Return what a hook has written into a value that has room."""
    return Stamp(*_STAMP.unpack(body[-_STAMP.size :]))


def unfilled(body: bytes) -> bytes:
    """Return a body as its client appended it."""
    return body[: -_STAMP.size] + RESERVED if has_room(body) else body
