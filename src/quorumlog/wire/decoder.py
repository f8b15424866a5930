"""Bytes from a socket in, frames out; any split of the bytes gives the same frames.

This is the only code that touches bytes of strangers. Whatever they are, they either parse, are
refused as one frame (`RefusedFrame`), or raise `RemoteProtocolError`: the connection must close.
"""

from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.message import Message
from quorumlog.wire.frame import HEADER, HEADER_SIZE, MAGIC, VERSION, Frame, RefusedFrame
from quorumlog.wire.kinds import MESSAGE_OF_KIND

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Largest frame before the handshake is done: a stranger costs no more memory than this."""
_NO_ATTACHMENT = memoryview(bytearray())
_DECODERS = {kind: msgspec.msgpack.Decoder(message) for kind, message in MESSAGE_OF_KIND.items()}


class FrameDecoder:
    """`receive_data` takes bytes, `next_frame` gives the next whole frame or None.

    `frame_bytes_max` may be raised once the other side is known.
    """

    def __init__(self, limits: Limits, *, frame_bytes_max: int | None = None) -> None:
        self._limits = limits
        self.frame_bytes_max = frame_bytes_max or limits.frame_bytes_max
        self._small = bytearray()
        self._consumed = 0
        self._header: tuple[int, int, int, int, int, int] | None = None
        self._payload: bytearray | None = None
        self._filled = 0

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes in the order they came."""
        if self._payload is not None and not self._small:
            wanted = len(self._payload) - self._filled
            part = memoryview(data)[:wanted]
            self._payload[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if len(part) == len(data):
                return
            data = memoryview(data)[wanted:]
        self._small += data

    def next_frame(self) -> Frame | RefusedFrame | None:
        """Return the next whole frame, or None until more bytes come.

        Raises `RemoteProtocolError` when the bytes are no frame of ours.
        """
        if self._header is None and not self._read_header():
            return None
        self._fill_payload()
        if self._payload is None or self._filled < len(self._payload):
            return None
        return self._finish()

    def _read_header(self) -> bool:
        available = len(self._small) - self._consumed
        begin = bytes(self._small[self._consumed : self._consumed + HEADER_SIZE])
        if begin[:4] != MAGIC[: len(begin)]:
            raise RemoteProtocolError(f"bytes {begin[:4]!r} are not the beginning of a frame")
        if available < HEADER_SIZE:
            return False
        if crc32(begin[: HEADER.size]) != int.from_bytes(begin[HEADER.size :], "big"):
            raise RemoteProtocolError("the CRC of a frame's header does not fit")
        _, version, kind, flags, length, attached, correlation_id, crc = HEADER.unpack(
            begin[: HEADER.size]
        )
        if flags:
            version = -1
        total = length + attached
        if length > self._limits.message_bytes_max or total > self.frame_bytes_max:
            raise RemoteProtocolError(
                f"a frame of {length} + {attached} bytes is above the limit of "
                f"{self._limits.message_bytes_max} or {self.frame_bytes_max} in all"
            )
        self._header = (version, kind, length, attached, correlation_id, crc)
        self._payload = bytearray(total)
        self._filled = 0
        self._consumed += HEADER_SIZE
        return True

    def _fill_payload(self) -> None:
        """Move what is already here into the payload."""
        if self._payload is None:
            return
        wanted = len(self._payload) - self._filled
        available = len(self._small) - self._consumed
        count = min(wanted, available)
        if count:
            with memoryview(self._small) as view:
                part = view[self._consumed : self._consumed + count]
                self._payload[self._filled : self._filled + count] = part
                part.release()
            self._filled += count
            self._consumed += count
        if self._consumed == len(self._small):
            self._small.clear()
            self._consumed = 0
        elif self._consumed > HANDSHAKE_BYTES_MAX:
            del self._small[: self._consumed]
            self._consumed = 0

    def _finish(self) -> Frame | RefusedFrame:
        header, payload = self._header, self._payload
        if header is None or payload is None:
            raise RemoteProtocolError("no frame was begun")
        self._header = self._payload = None
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
        view = memoryview(payload)
        try:
            message: Message = decoder.decode(view[:length])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            code = ResponseCode.UNEXPECTED_ARGUMENT
            return RefusedFrame(correlation_id, code, f"kind {kind} is malformed: {error}")
        return Frame(correlation_id, message, view[length:] if attached else _NO_ATTACHMENT)
