"""Frames of the Kafka protocol: a length of four bytes, big-endian, and one request.

A request that carries a record batch becomes an entry of a log where it lies: the entry's header is
written into the bytes before the batch. So each frame is in writable memory of its own, and has
`SPARE_BYTES` before it.
"""

from typing import Final

import msgspec

from quorumlog.model.errors import RemoteProtocolError
from quorumlog.wire.receiver import TLS_HANDSHAKE, FrameReceiver, UnexpectedTlsError

FIRST_FRAME_BYTES_MAX: Final = 64 * 1024
"""Largest first request of a connection, of which nobody knows yet whether it is a Kafka client."""
LOGIN_FRAME_BYTES_MAX: Final = 16 * 1024
"""Largest request before a client that has to has logged in."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest request."""
SPARE_BYTES: Final = 64
"""Bytes before each frame, at least those of an entry's header."""
_LENGTH_SIZE: Final = 4
_HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")


class ReceivedFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame without its length: bytes `start` to the end of `buffer`, which is its own."""

    buffer: memoryview
    start: int = SPARE_BYTES

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return len(self.buffer) - self.start


class FrameReader(FrameReceiver):
    """Cuts received bytes into frames of the Kafka protocol.

    A large frame is received where it stays; small ones that came together are copied out of what
    was received. The first frame may have `FIRST_FRAME_BYTES_MAX` bytes, all others
    `FRAME_BYTES_MAX`; `LOGIN_FRAME_BYTES_MAX` from `await_login` to `end_login`.
    """

    header_size = _LENGTH_SIZE

    def __init__(self, *, staged: memoryview | None = None, allocates_ahead: bool = True) -> None:
        super().__init__(staged=staged, allocates_ahead=allocates_ahead)
        self.frame_bytes_max = FIRST_FRAME_BYTES_MAX
        self._has_frame = self._awaits_login = False

    def await_login(self) -> None:
        """Take short frames only, until `end_login`."""
        self._awaits_login, self.frame_bytes_max = True, LOGIN_FRAME_BYTES_MAX

    def end_login(self) -> None:
        """Take frames of any size that is allowed."""
        self._awaits_login, self.frame_bytes_max = False, FRAME_BYTES_MAX

    def next_frame(self) -> ReceivedFrame | None:
        """Return the next whole frame, or None until more bytes come.

        Raises `RemoteProtocolError` for a length that is not positive or above the bound, before
        any memory is taken for it.
        """
        found = self._next_bytes()
        if found is None:
            return None
        payload, is_own = found
        if not self._has_frame:
            self._has_frame = True
            if not self._awaits_login:
                self.frame_bytes_max = FRAME_BYTES_MAX
        if is_own:
            return ReceivedFrame(memoryview(payload.obj))
        buffer = memoryview(bytearray(SPARE_BYTES + len(payload)))
        buffer[SPARE_BYTES:] = payload
        return ReceivedFrame(buffer)

    def _allocate(self, size: int) -> memoryview:
        return super()._allocate(SPARE_BYTES + size)[SPARE_BYTES:]

    def _read_header(self, start: bytes) -> int | None:
        if len(start) < _LENGTH_SIZE:
            return None
        length = int.from_bytes(start, "big", signed=True)
        if 0 < length <= self.frame_bytes_max:
            return length
        if self._has_frame:
            raise RemoteProtocolError(
                f"a frame states the length {length}; 1 to {self.frame_bytes_max} are taken"
            )
        if start.startswith(TLS_HANDSHAKE):
            raise UnexpectedTlsError(_not_kafka(start, self.frame_bytes_max))
        raise RemoteProtocolError(_not_kafka(start, self.frame_bytes_max))


def _not_kafka(start: bytes, length_max: int) -> str:
    """Return what a connection is taken for that begins with these bytes."""
    if start.startswith(TLS_HANDSHAKE):
        what = "a TLS handshake; set security.protocol=PLAINTEXT"
    elif start in _HTTP_METHODS:
        what = "an HTTP request; metrics and health have a port of their own"
    else:
        shown = start.decode("ascii", "backslashreplace")
        what = f"the bytes {shown!r}, which are not the length of a first request (1 to "
        what += f"{length_max})"
    return f"a connection begins with {what}: this port speaks the Kafka protocol"
