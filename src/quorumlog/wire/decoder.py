"""Bytes from a socket in, frames out; any split of the bytes gives the same frames.

This is the only code that touches bytes from outside. Any bytes either parse, are refused as one
frame (`RefusedFrame`), or raise `RemoteProtocolError`; then the connection must close.
"""

from typing import Final

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Message
from quorumlog.wire.frame import HEADER, HEADER_SIZE, MAGIC, VERSION, Frame, RefusedFrame
from quorumlog.wire.kinds import (
    CLIENT_KINDS,
    HELLO_KINDS,
    JOINED_KINDS,
    MESSAGE_OF_KIND,
    UNATTACHED_KINDS,
)

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Largest frame before the handshake is done: an unknown sender costs no more memory than this."""
STAGED_BYTES_MIN: Final = 4 * 1024
STAGED_BYTES_MAX: Final = 256 * 1024
"""Room for frames that come together; it grows for a connection that fills it."""
DIRECT_BYTES_MIN: Final = 32 * 1024
"""A frame of which this much is still to come is received where it will stay."""
KEPT_MESSAGE_BYTES_MAX: Final = 1024
"""An attachment is a part of its frame's memory if the message is not longer than this. A longer
one, with fields that nobody knows, would be kept for as long as the request waits."""
AHEAD_BYTES_MIN: Final = 64 * 1024
"""Memory for a frame of a client doubles as its bytes come, from here on."""
_NO_ATTACHMENT = memoryview(bytearray())
DECODERS = {kind: msgspec.msgpack.Decoder(message) for kind, message in MESSAGE_OF_KIND.items()}
"""What decodes the messages of a kind."""


class _Header(msgspec.Struct, frozen=True):
    version: int
    kind: int
    length: int
    attached: int
    correlation_id: int
    crc: int


class FrameDecoder:
    """Cuts received bytes into frames: `space` returns the memory for the next bytes, `received`
    takes their number, and `next_frame` returns the next whole frame or None.

    Callers take all whole frames, or call `set_aside`, before they receive more. `frame_bytes_max`
    may be raised once the other side is known. `staged` is memory for frames that arrive together;
    decoders may share it, as nothing stays in it. Unless `allocates_ahead`, the memory for a large
    frame is at most twice what has arrived of it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        frame_bytes_max: int | None = None,
        staged: memoryview | None = None,
        allocates_ahead: bool = True,
    ) -> None:
        self._limits = limits
        self.frame_bytes_max = frame_bytes_max or limits.frame_bytes_max
        self.allocates_ahead = allocates_ahead
        self.kinds: frozenset[int] | None = None
        """What may come; nothing else is decoded. None: anything may."""
        self._is_shared = staged is not None
        self._staged = memoryview(bytearray(STAGED_BYTES_MIN)) if staged is None else staged
        self._aside = b""
        self._total = 0
        self._begin = self._end = 0
        self._header: _Header | None = None
        self._payload: memoryview | None = None
        self._filled = 0
        self._is_direct = False

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
        self._aside, self._payload, self._header = b"", None, None
        self._begin = self._end = 0

    @property
    def has_aside(self) -> bool:
        """Whether `set_aside` kept more than a part of a header."""
        return len(self._aside) >= HEADER_SIZE or (self._payload is not None and self._aside != b"")

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
        return self._header is not None or self._aside != b"" or self._begin != self._end

    def _next_size(self) -> int:
        return min(self._total, max(AHEAD_BYTES_MIN, 2 * self._filled))

    def _extend(self) -> None:
        """Make room for more of a frame: as much again as has arrived of it."""
        payload = np.empty(self._next_size(), "B").data
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

    def next_frame(self) -> Frame | RefusedFrame | None:
        """Return the next whole frame, or None until more bytes come.

        Raises `RemoteProtocolError` when the bytes are no frame of ours.
        """
        header = self._header
        if header is None:
            if self._begin == self._end:  # as a rule: all that was received is taken
                self._begin = self._end = 0
                return None
            header = self._header = self._read_header()
            if header is None:
                return None
        total = header.length + header.attached
        available = self._end - self._begin
        if self._payload is None:
            if available >= total:  # most frames arrive whole: only the attachment is copied
                payload = self._staged[self._begin : self._begin + total]
                self._begin += total
                return self._finish(header, payload, is_own=False)
            self._total, self._filled = total, 0
            # large ones are not filled with zeros first
            is_small = total < DIRECT_BYTES_MIN
            size = total if self.allocates_ahead else min(total, max(available, STAGED_BYTES_MIN))
            self._payload = memoryview(bytearray(total)) if is_small else np.empty(size, "B").data
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
        payload, self._payload = self._payload, None
        return self._finish(header, payload, is_own=True)

    def _read_header(self) -> _Header | None:
        begin = bytes(self._staged[self._begin : min(self._end, self._begin + HEADER_SIZE)])
        if begin[:4] != MAGIC[: len(begin)]:
            shown = begin[:4].decode("ascii", "backslashreplace")
            raise RemoteProtocolError(f"bytes '{shown}' are not the beginning of a frame")
        if len(begin) < HEADER_SIZE:
            self.set_aside()
            return None
        if crc32(begin[: HEADER.size]) != int.from_bytes(begin[HEADER.size :], "big"):
            raise RemoteProtocolError("the CRC of a frame's header does not fit")
        _, version, kind, flags, length, attached, correlation_id, crc = HEADER.unpack_from(begin)
        if flags:
            version = -1
        if length > self._limits.message_bytes_max or length + attached > self.frame_bytes_max:
            raise RemoteProtocolError(
                f"a frame of {length} + {attached} bytes is above the limit of "
                f"{self._limits.message_bytes_max} or {self.frame_bytes_max} in all"
            )
        self._begin += HEADER_SIZE
        return _Header(version, kind, length, attached, correlation_id, crc)

    def _finish(
        self, header: _Header, payload: memoryview, *, is_own: bool
    ) -> Frame | RefusedFrame:
        self._header = None
        kind, length, correlation_id = header.kind, header.length, header.correlation_id
        if crc32(payload) != header.crc:
            raise RemoteProtocolError("the CRC of a frame does not fit")
        if header.version != VERSION:
            text = f"protocol version {header.version} is not spoken here, only {VERSION}"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED_VERSION, text)
        decoder = DECODERS.get(kind)
        if decoder is None:
            text = f"kind {kind} is not known here"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED, text)
        if self.kinds is not None and kind not in self.kinds:
            name = MESSAGE_OF_KIND[kind].__name__
            if self.kinds is HELLO_KINDS:
                raise RemoteProtocolError(f"{name} before Hello")
            who = "client" if self.kinds is CLIENT_KINDS else "peer"
            text = f"{name} is not a {who}'s message"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED, text)
        try:
            message: Message = decoder.decode(payload[:length])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            code = ResponseCode.UNEXPECTED_ARGUMENT
            return RefusedFrame(correlation_id, code, f"kind {kind} is malformed: {error}")
        attachment = _NO_ATTACHMENT
        if header.attached:
            if kind in UNATTACHED_KINDS:
                text = (
                    f"a {type(message).__name__} has nothing attached, not {header.attached} bytes"
                )
                return RefusedFrame(correlation_id, ResponseCode.UNEXPECTED_ARGUMENT, text)
            if kind in JOINED_KINDS:  # whoever splits it gives each part memory of its own
                attachment = payload[length:]
            elif is_own and length <= KEPT_MESSAGE_BYTES_MAX:
                attachment = payload[length:]  # keeps the encoded message, too
            else:
                attachment = memoryview(bytearray(payload[length:]))
        return Frame(correlation_id, message, attachment)
