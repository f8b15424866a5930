"""TLS as a layer between a connection and its socket.

The layers of event loops do not say how much is unsent, keep a large buffer for each connection,
and encrypt all that is written at once (decision 0065). This one counts what it holds, encrypts in
slices, receives into one buffer for all connections, and takes few bytes of anybody who has not
finished the handshake.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from quorumlog.model.block import Buffer
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.transport.lingering import Lingering, receive_buffer
from quorumlog.transport.tls import Identity, IncomingTls, OutgoingTls, SecuredProtocol
from quorumlog.transport.tls_outbox import TlsOutbox
from quorumlog.transport.tls_words import CUT_OFF, CUT_OFF_EARLY, NOT_TLS, TlsError, in_words

FED_BYTES: Final = 64 * 1024
"""Bytes given to OpenSSL at a time: its memory for them stays with each connection."""
HANDSHAKE_BYTES_MAX: Final = 16 * 1024
"""Bytes of the other side that are taken before the handshake is done."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""Bytes that one connection encrypts in one turn of the loop; while more of them are unsent, it
encrypts none."""
ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes of TLS's own answers, as to changes of keys, that the other side may leave unread."""
_RECORD_TYPES: Final = (0x15, 0x16)
"""What the bytes of a TLS server begin with: an alert, or a handshake."""


class TlsLayer(asyncio.BufferedProtocol):
    """Encrypts for a connection, `app`: the protocol of the socket's transport, `below`, which
    offers to the connection what that uses of an `asyncio.Transport`.

    Of what the connection writes in one turn of the loop, or while it receives, all but the first
    is encrypted at the end, so that small parts share a record. If the connection pauses, what was
    received and is not decrypted yet is kept. `await_turn` is called when bytes have come during
    the handshake, which goes on with `go_on`; None: it goes on at once.
    """

    def __init__(
        self,
        app: SecuredProtocol,
        tls: OutgoingTls | IncomingTls,
        await_turn: "Callable[[TlsLayer], None] | None" = None,
    ) -> None:
        self._await_turn = await_turn
        self._app: SecuredProtocol | None = app
        self._tls = tls
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.object_on(self._incoming, self._outgoing)
        self._below: asyncio.Transport | None = None
        self._handshake_bytes = 0
        self._is_open = self._is_closing = self._is_paused = self._has_said_goodbye = False
        self._kept: bytes | None = None
        self._outbox = TlsOutbox()
        self._is_flush_due = self._is_below_full = self._has_paused_app = False
        self._limits = UNSENT_BYTES_MAX, UNSENT_BYTES_MAX // 4
        self._unread_answers = 0
        self._error: TlsError | None = None

    # -- asyncio.BufferedProtocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        below = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        if self._app is not None:
            self._app.attach(below)
        self.start(below, memoryview(b""))

    def start(self, below: asyncio.Transport, received: memoryview) -> None:
        """Begin the handshake; the connection is attached, and some bytes were received."""
        self._below = below
        self.set_write_buffer_limits()
        self._receive(received)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        # what waits for the handshake's turn is kept, so it must not be much
        return receive_buffer() if self._is_open else receive_buffer()[:HANDSHAKE_BYTES_MAX]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        data = receive_buffer()[:nbytes]
        if self._kept is None:
            self._take(data)
        else:  # it came although nothing was to be read
            self._kept += data

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_below_full = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_below_full = False
        self._unread_answers = 0
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        app, self._app = self._app, None
        self._outbox.clear()
        self._kept = None
        error = self._error or exc
        if error is None and not self._is_closing:
            error = TlsError(CUT_OFF if self._is_open else CUT_OFF_EARLY)
        self._is_closing = True
        if app is not None:
            app.connection_lost(error)

    # -- in ---------------------------------------------------------------------------------

    def _take(self, data: memoryview) -> None:
        if self._is_open or self._await_turn is None:
            self._receive(data)
        elif not self._is_closing:
            self.pause_reading()
            self._kept = bytes(data)
            self._await_turn(self)

    def go_on(self) -> None:
        """See `ShakingHands`."""
        if not (self._is_closing or self._below is None or self._below.is_closing()):
            self._is_paused = False
            self._read_again()

    def _receive(self, data: memoryview) -> None:
        """Decrypt what was received, and pass it on until the connection pauses."""
        if self._is_closing:
            return
        was_due, self._is_flush_due = self._is_flush_due, True  # answers share records
        try:
            if not self._is_open:
                data = self._shake_hands(data)
            while self._is_open:
                data = data[self._incoming.write(data[:FED_BYTES]) :]
                if not self._pass_on() or not data:
                    break
            self._send_answers()
        except (ssl.SSLError, RemoteProtocolError, TlsError) as error:
            self._fail(error)
            return
        finally:
            self._is_flush_due = was_due
        if self._is_paused and not self._is_closing:
            self._kept = bytes(data)
        if self._outbox.size or self._is_closing:  # OpenSSL may have waited for these bytes
            self._flush()

    def _shake_hands(self, data: memoryview) -> memoryview:
        """Go on with the handshake; return what was received beyond it."""
        tls = self._tls
        is_first = data and not self._handshake_bytes
        if isinstance(tls, OutgoingTls) and is_first and data[0] not in _RECORD_TYPES:
            if tls.when_plain is not None:
                tls.when_plain()
            raise TlsError(NOT_TLS)
        taken = data[: HANDSHAKE_BYTES_MAX - self._handshake_bytes]
        self._handshake_bytes += len(taken)
        self._incoming.write(taken)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_answers()
            if self._handshake_bytes >= HANDSHAKE_BYTES_MAX:
                raise TlsError(
                    f"it sent {HANDSHAKE_BYTES_MAX} bytes, and the handshake is not done"
                ) from None
            return memoryview(b"")
        identity = self._identity()
        self._send_answers()
        self._is_open = True
        if self._app is not None:
            self._app.begin(cast(asyncio.Transport, self), identity)
        return data[len(taken) :]

    def _identity(self) -> Identity:
        tls = self._tls
        if isinstance(tls, IncomingTls):
            return tls.identify_object(self._ssl)
        return tls.identify(self._ssl.getpeercert() or {})

    def _pass_on(self) -> bool:
        """Decrypt what OpenSSL has; return whether it needs more bytes.

        The connection is asked for memory only when there is something for it.
        """
        read = self._ssl.read
        try:
            while self._app is not None and not self._is_closing:
                if self._is_paused:
                    return False
                first = read(1)
                if not first:  # close_notify
                    self.close()
                    return False
                space = self._app.get_buffer(-1)
                space[:1] = first
                filled, is_empty = self._fill(space)
                self._app.buffer_updated(filled)
                if self._error is not None:
                    raise self._error
                if is_empty:
                    return not self._is_paused
        except ssl.SSLWantReadError:
            return True
        except ssl.SSLZeroReturnError:
            self.close()
        return False

    def _fill(self, space: memoryview) -> tuple[int, bool]:
        """Decrypt into memory after its first byte.

        Return how much of it is filled, and whether OpenSSL needs more bytes.
        """
        filled, size = 1, len(space)
        read = cast(Callable[[int, memoryview], int], self._ssl.read)  # with memory: a number
        while filled < size:
            if not self._incoming.pending and not self._ssl.pending():
                return filled, True  # an exception would say so, too, at thrice the time
            try:
                count = read(size - filled, space[filled:])
            except ssl.SSLWantReadError:
                return filled, True
            except ssl.SSLZeroReturnError:
                break
            except ssl.SSLError as error:  # what came before it is passed on
                self._error = self._told(error)
                break
            if not count:
                break
            filled += count
        return filled, False

    def _send_answers(self) -> None:
        """Send what TLS itself has to say."""
        if self._below is None or not self._outgoing.pending:
            return
        answers = self._outgoing.read()
        if self._is_below_full:
            self._unread_answers += len(answers)
            if self._unread_answers > ANSWER_BYTES_MAX:
                raise TlsError("it changes keys again and again, and does not read the answers")
        if not self._below.is_closing():
            self._below.write(answers)

    def _fail(self, error: Exception) -> None:
        """End the connection; an alert may tell the other side why."""
        self._error, self._is_closing = self._error or self._told(error), True
        if isinstance(self._tls, IncomingTls) and not self._is_open:
            self._tls.when_failed(str(self._error))
        self._outbox.clear()
        below = self._below
        if below is None or below.is_closing():
            return
        if self._outgoing.pending:
            below.write(self._outgoing.read())
        Lingering(below, self.connection_lost)

    def _told(self, error: Exception) -> TlsError:
        if isinstance(error, ssl.SSLError):
            return TlsError(in_words(error, self._tls.certificate, time.time()))
        return error if isinstance(error, TlsError) else TlsError(str(error))

    # -- out: asyncio.Transport -------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """See `asyncio.WriteTransport`."""
        self.writelines((data,))

    def writelines(self, parts: Sequence[Buffer]) -> None:
        """See `asyncio.WriteTransport`."""
        if self._is_closing:
            return
        self._outbox.add(parts)
        if self._is_flush_due:
            self._watch_size()
        else:  # the first is sent at once, what else is written in this turn at its end
            self._flush()
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        """Encrypt some of what waits, unless too much is unsent already."""
        below, outbox, left = self._below, self._outbox, UNSENT_BYTES_MAX
        if below is None or self._app is None or self._error is not None:
            return
        try:
            while outbox.size and left > 0 and not self._is_below_full:
                piece = outbox.next_piece()
                try:
                    self._ssl.write(piece)
                except ssl.SSLWantReadError:  # half of a change of keys has come
                    outbox.put_back(piece)
                    return
                left -= len(piece)
                below.write(self._outgoing.read())
        except ssl.SSLError as error:
            self._fail(error)
            return
        except RuntimeError as error:  # uvloop has closed it without a call of connection_lost
            self.connection_lost(error)
            return
        if outbox.size and not self._is_below_full:
            self._flush_soon()
        elif self._is_closing and not outbox.size:
            self._say_goodbye()
        self._watch_size()

    def _watch_size(self) -> None:
        """Tell the connection when much, and again little, is unsent."""
        size, app = self.get_write_buffer_size(), self._app
        if app is None:
            return
        high, low = self._limits
        if size > high and not self._has_paused_app:
            self._has_paused_app = True
            app.pause_writing()
        elif size <= low and self._has_paused_app:
            self._has_paused_app = False
            app.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        high = UNSENT_BYTES_MAX if high is None else high
        low = high // 4 if low is None else low
        self._limits = high, low
        if self._below is not None:  # what it holds without a word must not keep the app waiting
            self._below.set_write_buffer_limits(high=min(UNSENT_BYTES_MAX, low))

    def get_write_buffer_size(self) -> int:
        """Return how much is unsent: what is not encrypted, and what the socket has not taken."""
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return self._outbox.size + below

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._is_paused = True
        if self._below is not None and not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`; bytes come in a later turn."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._receive(memoryview(kept))
        below = self._below
        if below is not None and not (self._is_paused or self._is_closing or below.is_closing()):
            below.resume_reading()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing or self._below is None or self._below.is_closing()

    def close(self) -> None:
        """End the connection when what was written is sent; nothing more is received."""
        if self._is_closing:
            return
        self._is_closing = True
        self._kept = None
        if self._below is not None and not self._below.is_closing():
            self._below.pause_reading()
        self._flush_soon()

    def _say_goodbye(self) -> None:
        below = self._below
        if below is None or below.is_closing() or self._has_said_goodbye:
            return
        self._has_said_goodbye = True
        lingers = False
        try:
            self._ssl.unwrap()
        except ssl.SSLError:  # the other side's close_notify has not come, and is not waited for
            # who is refused goes on sending, and shall read why
            lingers = isinstance(self._tls, IncomingTls)
        below.write(self._outgoing.read())
        if lingers:
            Lingering(below, self.connection_lost)
        else:
            below.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closing = True
        if self._below is not None:
            self._below.abort()

    def get_extra_info(self, name: str, default: object = None) -> Any:
        """Return what is known: of TLS `ssl_object` and `peercert`, or of the socket."""
        if name == "ssl_object":
            return self._ssl
        if name == "peercert":
            return self._ssl.getpeercert() if self._is_open else default
        return default if self._below is None else self._below.get_extra_info(name, default)
