"""Frames: the form of one message on the wire, and how to write it.

    offset  0 4s  magic "QLOG"     8 u32 message length      16 u64 correlation id
            4 u8  version         12 u32 attachment length   24 u32 CRC-32 of message + attachment
            5 u8  kind                                       28 u32 CRC-32 of bytes 0 to 27
            6 u16 flags (0)

All integers are big-endian. The version is 1 in a Hello, and after it what both sides agreed on.
The message is MessagePack; the attachment is a block of entries as they are on disk (or nothing).
The header's own CRC is checked before its lengths are believed.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.base import Message
from quorumlog.wire.kinds import KIND_OF_MESSAGE

MAGIC: Final = b"QLOG"
FIRST_VERSION: Final = 1
"""The version of a Hello, and of all frames until both sides have agreed on one."""
HEADER: Final = struct.Struct(">4sBBHIIQI")
HEADER_SIZE: Final = HEADER.size + 4


class Frame(msgspec.Struct, frozen=True):
    """A message with its correlation id and attachment (writable memory of its own).

    The attachment of a joined frame is valid until more bytes are received: split it at once.
    """

    correlation_id: int
    message: Message
    attachment: memoryview


class RefusedFrame(msgspec.Struct, frozen=True):
    """A whole frame that cannot be understood: answer it with this code and go on."""

    correlation_id: int
    code: ResponseCode
    text: str


_encoder = msgspec.msgpack.Encoder()


def encode_frame(
    message: Message,
    *,
    correlation_id: int = 0,
    attachments: Sequence[Buffer] = (),
    limits: Limits = DEFAULT_LIMITS,
    version: int = FIRST_VERSION,
) -> list[Buffer]:
    """Return the buffers of one frame; attachments are passed on as they are.

    Raises `UnexpectedArgumentError` when the frame would be above a limit, or when a text of the
    message is not valid Unicode.
    """
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise UnexpectedArgumentError(
            f"{type(message).__name__} has a text that is not valid Unicode: {error}"
        ) from error
    length = sum(map(len, attachments))
    if len(body) > limits.message_bytes_max or len(body) + length > limits.frame_bytes_max:
        raise UnexpectedArgumentError(
            f"{type(message).__name__} of {len(body)} bytes with {length} attached is above "
            f"{limits.message_bytes_max} or {limits.frame_bytes_max} in all"
        )
    crc = crc32(body)
    for part in attachments:
        crc = crc32(part, crc)
    kind = KIND_OF_MESSAGE[type(message)]
    header = HEADER.pack(MAGIC, version, kind, 0, len(body), length, correlation_id, crc)
    head = header + crc32(header).to_bytes(4, "big") + body
    return [head, *attachments]
