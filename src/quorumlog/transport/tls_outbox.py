"""What was written to an encrypted connection and is not encrypted yet."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from quorumlog.model.block import Buffer

PIECE_BYTES_MAX: Final = 64 * 1024
"""Bytes that OpenSSL encrypts at a time."""
JOINED_BYTES_MAX: Final = 16 * 1024
"""Parts that are not longer are encrypted together: each piece costs a record of its own."""


class TlsOutbox:
    """Cuts what is written into pieces to encrypt; `size` counts the bytes that wait."""

    def __init__(self) -> None:
        self._parts: deque[Buffer] = deque()
        self.size = 0

    def add(self, parts: Sequence[Buffer]) -> None:
        """Add buffers, which must not change until they are encrypted."""
        for part in parts:
            if part:
                self._parts.append(part)
                self.size += len(part)

    def next_piece(self) -> Buffer:
        """Remove what is to be encrypted next, and return it: at most `PIECE_BYTES_MAX`."""
        parts = self._parts
        piece = parts.popleft()
        size = len(piece)
        if size > PIECE_BYTES_MAX:
            whole = memoryview(piece)
            piece, size = whole[:PIECE_BYTES_MAX], PIECE_BYTES_MAX
            parts.appendleft(whole[PIECE_BYTES_MAX:])
        elif size <= JOINED_BYTES_MAX and parts:
            joined = [piece]
            while parts and len(parts[0]) <= min(JOINED_BYTES_MAX, PIECE_BYTES_MAX - size):
                joined.append(parts.popleft())
                size += len(joined[-1])
            piece = b"".join(joined)
        self.size -= size
        return piece

    def put_back(self, piece: Buffer) -> None:
        """Take back a piece that could not be encrypted now."""
        self._parts.appendleft(piece)
        self.size += len(piece)

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self.size = 0
