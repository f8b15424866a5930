"""Bytes from a socket in, frames out; any split of the bytes gives the same frames.

This is the only code that touches bytes from outside. Any bytes either parse, are refused as one
frame (`RefusedFrame`), or raise `RemoteProtocolError`; then the connection must close.
"""

from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Message
from quorumlog.wire.frame import FIRST_VERSION, HEADER, HEADER_SIZE, MAGIC, Frame, RefusedFrame
from quorumlog.wire.kinds import (
    CLIENT_KINDS,
    HELLO_KINDS,
    JOINED_KINDS,
    LOGIN_KINDS,
    MESSAGE_OF_KIND,
    UNATTACHED_KINDS,
    UNVERSIONED_KINDS,
)
from quorumlog.wire.receiver import TLS_HANDSHAKE, FrameReceiver, UnexpectedTlsError

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Largest frame before the handshake is done: an unknown sender costs no more memory than this."""
LOGIN_BYTES_MAX: Final = 8 * 1024
"""Largest frame before a client that has to has logged in."""
KEPT_MESSAGE_BYTES_MAX: Final = 1024
"""An attachment is a part of its frame's memory if the message is not longer than this. A longer
one, with fields that nobody knows, would be kept for as long as the request waits."""
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


class FrameDecoder(FrameReceiver):
    """Cuts received bytes into frames of our own protocol.

    Once the other side is known, `frame_bytes_max` may be raised, and `version` is what both agreed
    on; a Hello, and a Response that refuses one, are in the first version all the same. `staged`
    and `allocates_ahead` are those of `FrameReceiver`.
    """

    header_size = HEADER_SIZE

    def __init__(
        self,
        limits: Limits,
        *,
        frame_bytes_max: int | None = None,
        staged: memoryview | None = None,
        allocates_ahead: bool = True,
    ) -> None:
        super().__init__(staged=staged, allocates_ahead=allocates_ahead)
        self._limits = limits
        self.frame_bytes_max = frame_bytes_max or limits.frame_bytes_max
        self.kinds: frozenset[int] | None = None
        """What may come; nothing else is decoded. None: anything may."""
        self.version = FIRST_VERSION
        self._header: _Header | None = None

    def next_frame(self) -> Frame | RefusedFrame | None:
        """Return the next whole frame, or None until more bytes come.

        Raises `RemoteProtocolError` when the bytes are no frame of ours.
        """
        found = self._next_bytes()
        if found is None or self._header is None:
            return None
        payload, is_own = found
        return self._finish(self._header, payload, is_own=is_own)

    def _read_header(self, begin: bytes) -> int | None:
        if begin[:4] != MAGIC[: len(begin)]:
            if begin.startswith(TLS_HANDSHAKE):
                raise UnexpectedTlsError("a TLS handshake: this port does not speak TLS (no [tls])")
            shown = begin[:4].decode("ascii", "backslashreplace")
            raise RemoteProtocolError(f"bytes '{shown}' are not the beginning of a frame")
        if len(begin) < HEADER_SIZE:
            return None
        if crc32(begin[: HEADER.size]) != int.from_bytes(begin[HEADER.size :], "big"):
            raise RemoteProtocolError("the CRC of a frame's header does not fit")
        _, version, kind, flags, length, attached, correlation_id, crc = HEADER.unpack_from(begin)
        if flags:
            version = -1
        total: int = length + attached
        if length > self._limits.message_bytes_max or total > self.frame_bytes_max:
            raise RemoteProtocolError(
                f"a frame of {length} + {attached} bytes is above the limit of "
                f"{self._limits.message_bytes_max} or {self.frame_bytes_max} in all"
            )
        self._header = _Header(version, kind, length, attached, correlation_id, crc)
        return total

    def _finish(
        self, header: _Header, payload: memoryview, *, is_own: bool
    ) -> Frame | RefusedFrame:
        kind, length, correlation_id = header.kind, header.length, header.correlation_id
        if crc32(payload) != header.crc:
            raise RemoteProtocolError("the CRC of a frame does not fit")
        if header.version != self.version and not _precedes_agreement(header):
            text = f"protocol version {header.version} is not spoken here, only {self.version}"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED_VERSION, text)
        decoder = DECODERS.get(kind)
        if decoder is None:
            text = f"kind {kind} is not known here"
            return RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED, text)
        if self.kinds is not None and kind not in self.kinds:
            name = MESSAGE_OF_KIND[kind].__name__
            if self.kinds is HELLO_KINDS:
                raise RemoteProtocolError(f"{name} before Hello")
            if self.kinds is LOGIN_KINDS:
                text = f"{name} before a login: this node takes requests of known users only"
                return RefusedFrame(correlation_id, ResponseCode.LOGIN_REQUIRED, text)
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


def _precedes_agreement(header: _Header) -> bool:
    """Whether a frame is what a side may have sent before it knew the version to use."""
    return header.version == FIRST_VERSION and header.kind in UNVERSIONED_KINDS
