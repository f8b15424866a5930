"""Bytes from a socket in, frames out; any split of the bytes gives the same frames.

This is the only code that touches bytes of strangers. Whatever they are, they either parse, are
refused as one frame (`RefusedFrame`), or raise `RemoteProtocolError`: the connection must close.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.message import Message
from quorumlog.wire.frame import HEADER, HEADER_SIZE, MAGIC, VERSION, Frame, RefusedFrame
from quorumlog.wire.kinds import MESSAGE_OF_KIND

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Largest frame before the handshake is done: a stranger costs no more memory than this."""
STAGED_BYTES_MIN: Final = 4 * 1024
STAGED_BYTES_MAX: Final = 256 * 1024
"""Room for frames that come together; it grows for a connection that fills it."""
DIRECT_BYTES_MIN: Final = 32 * 1024
"""When so much of a frame is still to come it is received where it will stay."""
_NO_ATTACHMENT = memoryview(bytearray())
_DECODERS = {kind: msgspec.msgpack.Decoder(message) for kind, message in MESSAGE_OF_KIND.items()}


class _Header(NamedTuple):
    version: int
    kind: int
    length: int
    attached: int
    correlation_id: int
    crc: int


class FrameDecoder:
    """`space` says where the next bytes go, `received` how many came; `next_frame` gives the next
    whole frame or None.

    Whole frames are to be taken before more is received. `frame_bytes_max` may be raised once the
    other side is known.
    """

    def __init__(self, limits: Limits, *, frame_bytes_max: int | None = None) -> None:
        self._limits = limits
        self.frame_bytes_max = frame_bytes_max or limits.frame_bytes_max
        self._staged = memoryview(bytearray(STAGED_BYTES_MIN))
        self._begin = self._end = 0
        self._header: _Header | None = None
        self._payload: memoryview | None = None
        self._filled = 0
        self._is_direct = False

    def space(self) -> memoryview:
        """Return memory for bytes to come, at least one."""
        self._is_direct = False
        if self._payload is not None and self._begin == self._end:
            missing = len(self._payload) - self._filled
            if missing >= DIRECT_BYTES_MIN:
                self._is_direct = True
                return self._payload[self._filled :]
        if self._begin:
            rest = bytes(self._staged[self._begin : self._end])  # less than a header
            self._staged[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        if self._end == len(self._staged):
            self._grow()
        return self._staged[self._end :]

    def _grow(self) -> None:
        staged = memoryview(bytearray(2 * len(self._staged)))
        staged[: self._end] = self._staged[: self._end]
        self._staged = staged

    def received(self, count: int) -> None:
        """So many bytes were written to the begin of what `space` returned last."""
        if self._is_direct:
            self._filled += count
            return
        self._end += count
        if self._end == len(self._staged) < STAGED_BYTES_MAX:
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
            header = self._header = self._read_header()
            if header is None:
                return None
        total = header.length + header.attached
        available = self._end - self._begin
        if self._payload is None:
            if available >= total:  # most frames came whole: only what is attached is copied
                payload = self._staged[self._begin : self._begin + total]
                self._begin += total
                return self._finish(header, payload, is_own=False)
            # large ones are not filled with zeros first
            is_small = total < DIRECT_BYTES_MIN
            self._payload = memoryview(bytearray(total)) if is_small else np.empty(total, "B").data
            self._filled = 0
        count = min(total - self._filled, available)
        if count:
            part = self._staged[self._begin : self._begin + count]
            self._payload[self._filled : self._filled + count] = part
            self._filled += count
            self._begin += count
        if self._filled < total:
            return None
        payload, self._payload = self._payload, None
        return self._finish(header, payload, is_own=True)

    def _read_header(self) -> _Header | None:
        begin = bytes(self._staged[self._begin : min(self._end, self._begin + HEADER_SIZE)])
        if begin[:4] != MAGIC[: len(begin)]:
            shown = begin[:4].decode("ascii", "backslashreplace")
            raise RemoteProtocolError(f"bytes '{shown}' are not the beginning of a frame")
        if len(begin) < HEADER_SIZE:
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
        version, kind, length, attached, correlation_id, crc = header
        if crc32(payload) != crc:
            raise RemoteProtocolError("the CRC of a frame does not fit")
        if version != VERSION:
            text = f"protocol version {version} is not spoken here, only {VERSION}"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED_VERSION, text)
        decoder = _DECODERS.get(kind)
        if decoder is None:
            text = f"kind {kind} is not known here"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED, text)
        try:
            message: Message = decoder.decode(payload[:length])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            code = ResponseCode.UNEXPECTED_ARGUMENT
            return RefusedFrame(correlation_id, code, f"kind {kind} is malformed: {error}")
        attachment = _NO_ATTACHMENT
        if attached:
            attachment = payload[length:] if is_own else memoryview(bytearray(payload[length:]))
        return Frame(correlation_id, message, attachment)
