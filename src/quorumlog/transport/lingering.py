"""Ends a connection so that the other side can still read why."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

RECEIVED_BYTES_MAX: Final = 64 * 1024
"""Bytes taken from a socket at a time, where a connection's own bytes are not decrypted yet."""
CLOSE_GRACE_SECONDS: Final = 5.0
"""How long a connection that ends waits for the other side to read what was sent."""
LINGER_S: Final = 1.0
"""How long the other side, once all was sent, has to read why it was refused."""
LINGER_BYTES_MAX: Final = 1024 * 1024
"""Bytes that it may still send meanwhile."""

_of_thread = threading.local()


def receive_buffer() -> memoryview:
    """Return the memory that all encrypted connections of this thread's loop receive into.

    Asking for it, reading, and using what was read are one step, so one is enough.
    """
    found: memoryview | None = getattr(_of_thread, "buffer", None)
    if found is None:
        found = _of_thread.buffer = memoryview(bytearray(RECEIVED_BYTES_MAX))
    return found


class Lingering(asyncio.BufferedProtocol):
    """Waits until the other side has read the last words and closes; what it sends is forgotten.

    A socket that is closed while something is unread resets the connection, and what was sent to
    the other side is lost. What is unsent has a time of its own before that. `lost` is called at
    the end.
    """

    def __init__(self, transport: asyncio.Transport, lost: Callable[[Exception | None], None]):
        self._transport = transport
        self._lost = lost
        self._left = LINGER_BYTES_MAX
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CLOSE_GRACE_SECONDS, transport.abort)
        self._is_waiting = False
        transport.set_protocol(self)
        with suppress(OSError, RuntimeError):  # it has ended meanwhile: connection_lost follows
            transport.set_write_buffer_limits(high=0)  # resume_writing says when all is sent
            if not transport.get_write_buffer_size():
                self._wait()

    def _wait(self) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        with suppress(OSError, RuntimeError):
            self._transport.resume_reading()
            self._transport.write_eof()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._wait()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._left -= nbytes
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._timer.cancel()
        self._lost(exc)
