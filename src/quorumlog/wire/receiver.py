"""Memory for the bytes of a connection until they are whole frames, whatever frames look like.

Bytes arrive in any split. Frames that come together are received into one buffer; a large one is
received into memory of its own, where it stays.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np

from quorumlog.model.block import Buffer
from quorumlog.model.errors import RemoteProtocolError

TLS_HANDSHAKE: Final = b"\x16\x03"
"""How the bytes of a TLS client begin (RFC 8446, section 5.1)."""
STAGED_BYTES_MIN: Final = 4 * 1024
STAGED_BYTES_MAX: Final = 256 * 1024
"""Room for frames that come together; it grows for a connection that fills it."""
DIRECT_BYTES_MIN: Final = 32 * 1024
"""A frame of which this much is still to come is received where it will stay."""
AHEAD_BYTES_MIN: Final = 64 * 1024
"""Unless memory is allocated ahead, that for a large frame doubles as it comes, from here on."""


class UnexpectedTlsError(RemoteProtocolError):
    """A TLS client has connected to a port that does not speak TLS."""


class FrameReceiver(ABC):
    """Collects the bytes of frames: `space` returns the memory for the next bytes, `received` takes
    their number, and `next_frame` returns the next whole frame or None. A frame is a header of
    `header_size` bytes and the bytes that the header counts.

    Callers take all whole frames, or call `set_aside`, before they receive more. `staged` is memory
    for frames that arrive together; receivers may share it, as nothing stays in it. Unless
    `allocates_ahead`, the memory for a large frame is at most twice what has arrived of it.
    """

    header_size: int

    def __init__(self, *, staged: memoryview | None = None, allocates_ahead: bool = True) -> None:
        self.allocates_ahead = allocates_ahead
        self._is_shared = staged is not None
        self._staged = memoryview(bytearray(STAGED_BYTES_MIN)) if staged is None else staged
        self._aside = b""
        self._has_header = False
        self._total = 0
        self._begin = self._end = 0
        self._payload: memoryview | None = None
        self._filled = 0
        self._is_direct = False

    @abstractmethod
    def next_frame(self) -> Any:
        """Return the next whole frame, or None until more bytes come.

        Raises `RemoteProtocolError` when the bytes are no frame.
        """

    @abstractmethod
    def _read_header(self, begin: bytes) -> int | None:
        """Return how many bytes follow the header; None: `begin` is not all of it yet.

        Raises `RemoteProtocolError` when it is the beginning of no frame.
        """

    def _allocate(self, size: int) -> memoryview:
        """Return memory for the bytes of one frame; large memory is not filled with zeros."""
        return memoryview(bytearray(size)) if size < DIRECT_BYTES_MIN else np.empty(size, "B").data

    def space(self) -> memoryview:
        """Return memory for the next bytes, at least one."""
        self._is_direct = False
        if self._payload is not None and not self._aside and self._begin == self._end:
            if self._filled == len(self._payload):
                self._extend()
            if self._total - self._filled >= DIRECT_BYTES_MIN:
                self._is_direct = True
                return self._payload[self._filled :]
        if self._aside or self._begin:
            self.take_up()
        if self._end == len(self._staged):
            self._grow()
        return self._staged[self._end :]

    def take_up(self) -> None:
        """Continue with the bytes that `set_aside` kept."""
        rest = self._aside or bytes(self._staged[self._begin : self._end])
        self._aside = b""
        self._staged[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def set_aside(self) -> None:
        """Keep a copy of received bytes that were not taken yet: others use their memory next."""
        self._aside = bytes(self._staged[self._begin : self._end])
        self._begin = self._end = 0

    def discard(self) -> None:
        """Release everything that was received and not taken; nothing more may be received."""
        self._aside, self._payload, self._has_header = b"", None, False
        self._begin = self._end = 0

    @property
    def has_aside(self) -> bool:
        """Whether `set_aside` kept more than a part of a header, or left a large frame whole."""
        if self._payload is None:
            return len(self._aside) >= self.header_size
        return self._aside != b"" or self._filled == self._total

    @property
    def has_unread(self) -> bool:
        """Whether bytes were received that belong to no frame that was taken."""
        return self._begin < self._end

    @property
    def held_bytes(self) -> int:
        """Bytes of memory held for frames that are not taken yet."""
        return len(self._aside) + (0 if self._payload is None else len(self._payload))

    @property
    def arrived_bytes(self) -> int:
        """Bytes that have arrived of a frame that is not whole yet."""
        return len(self._aside) + (0 if self._payload is None else self._filled)

    @property
    def wanted_bytes(self) -> int:
        """Bytes of memory that will be held once more bytes are received."""
        payload = self._payload
        grows = payload is not None and self._filled == len(payload) < self._total
        return len(self._aside) + self._next_size() if grows else self.held_bytes

    @property
    def is_staging(self) -> bool:
        """Whether the bytes received last do not belong to a large frame."""
        return not self._is_direct

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived, but not all of it."""
        return self._has_header or self._aside != b"" or self._begin != self._end

    def _next_size(self) -> int:
        return min(self._total, max(AHEAD_BYTES_MIN, 2 * self._filled))

    def _extend(self) -> None:
        """Make room for more of a frame: as much again as has arrived of it."""
        payload = self._allocate(self._next_size())
        if self._payload is not None:
            payload[: self._filled] = self._payload[: self._filled]
        self._payload = payload

    def _grow(self) -> None:
        staged = memoryview(bytearray(2 * len(self._staged)))
        staged[: self._end] = self._staged[: self._end]
        self._staged = staged

    def received(self, count: int) -> None:
        """Report that `count` bytes were written to the start of what `space` returned last."""
        if self._is_direct:
            self._filled += count
            return
        self._end += count
        if self._end == len(self._staged) < STAGED_BYTES_MAX and not self._is_shared:
            self._grow()

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that were received elsewhere."""
        rest = memoryview(data)
        while rest:
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self.received(count)
            rest = rest[count:]

    def _next_bytes(self) -> tuple[memoryview, bool] | None:
        """Return what follows the header of the next whole frame; None until more bytes come.

        With it: whether that is memory of its own, from `_allocate`. Otherwise it is valid only
        until more bytes are received.
        """
        if not self._has_header:
            if self._begin == self._end:  # as a rule: all that was received is taken
                self._begin = self._end = 0
                return None
            if not self._take_header():
                return None
        total = self._total
        available = self._end - self._begin
        if self._payload is None:
            if available >= total:  # most frames arrive whole
                whole = self._staged[self._begin : self._begin + total]
                self._begin += total
                self._has_header = False
                return whole, False
            self._filled = 0
            is_small = total < DIRECT_BYTES_MIN or self.allocates_ahead
            size = total if is_small else min(total, max(available, STAGED_BYTES_MIN))
            self._payload = self._allocate(size)
        while self._filled < total and available:
            if self._filled == len(self._payload):
                self._extend()
            count = min(len(self._payload) - self._filled, available)
            part = self._staged[self._begin : self._begin + count]
            self._payload[self._filled : self._filled + count] = part
            self._filled += count
            self._begin += count
            available -= count
        if self._filled < total:
            self._begin = self._end = 0
            return None
        payload, self._payload, self._has_header = self._payload, None, False
        return payload, True

    def _take_header(self) -> bool:
        stop = min(self._end, self._begin + self.header_size)
        total = self._read_header(bytes(self._staged[self._begin : stop]))
        if total is None:
            self.set_aside()
            return False
        self._begin += self.header_size
        self._total, self._has_header = total, True
        return True
