"""The client's side of a login on the port for Kafka's clients, over a blocking socket."""

import socket
import struct
from typing import Final

from quorumlog.auth.verifiers import MECHANISMS
from quorumlog.client.login_steps import Credentials, ScramSteps, new_nonce, secret_message
from quorumlog.model.errors import LoginError, RemoteProtocolError

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes of an answer to a message of a login: far more than any has."""
_SASL_HANDSHAKE, _SASL_AUTHENTICATE, _VERSION = 17, 36, 1
"""Kafka's numbers of the requests, and the version of both (KIP-152, KIP-368)."""
_CLIENT_ID: Final = b"quorumlog"
_REQUEST: Final = struct.Struct(">hhih")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


def log_in(connected: socket.socket, credentials: Credentials) -> None:
    """Log in as the first thing on a connection inside TLS.

    Raises `LoginError` if the broker refuses, or its answers are none, or show that it does not
    know the password either; `OSError` if the connection breaks, as that of a broker which has no
    time for it now; `ConfigError` for the file of a token that cannot be read.
    """
    exchange = _Exchange(connected)
    mechanism = credentials.mechanism
    try:
        exchange.begin(mechanism)
        if mechanism not in MECHANISMS:
            if exchange.tell(secret_message(credentials)):  # the error of RFC 7628
                raise LoginError("login refused")
            return
        steps = ScramSteps(credentials, new_nonce())
        steps.take_first(exchange.tell(steps.first()))
        steps.check(exchange.tell(steps.final(steps.salted_password())))
    except (LoginError, RemoteProtocolError) as error:
        user = f" of {credentials.user}" if credentials.user else ""
        raise LoginError(f"login{user} by {mechanism}: {error}") from None


class _Exchange:
    """The requests of one login. Both methods raise `LoginError` if the broker refuses."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._number = 0

    def begin(self, mechanism: str) -> None:
        """Name the mechanism."""
        answer = self._ask(_SASL_HANDSHAKE, _I16.pack(len(mechanism)) + mechanism.encode())
        if answer.i16():
            offered = ", ".join(answer.text() for _ in range(answer.i32()))
            raise LoginError(f"it is not offered, but {offered or 'nothing'}")

    def tell(self, data: bytes) -> bytes:
        """Send a message of the mechanism; return the broker's."""
        answer = self._ask(_SASL_AUTHENTICATE, _I32.pack(len(data)) + data)
        error_code, text = answer.i16(), answer.text()
        if error_code:
            raise LoginError(text or f"refused with error {error_code}")
        return answer.data()

    def _ask(self, key: int, body: bytes) -> "_Answer":
        self._number += 1
        header = _REQUEST.pack(key, _VERSION, self._number, len(_CLIENT_ID)) + _CLIENT_ID
        self._socket.sendall(_I32.pack(len(header) + len(body)) + header + body)
        (size,) = _I32.unpack(self._exactly(_I32.size))
        if not 0 < size <= ANSWER_BYTES_MAX:
            raise RemoteProtocolError(f"an answer of {size} bytes")
        answer = _Answer(self._exactly(size))
        if answer.i32() != self._number:
            raise RemoteProtocolError("an answer to another request")
        return answer

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            some = self._socket.recv(size - len(received))
            if not some:
                raise ConnectionResetError("the broker has closed the connection during the login")
            received += some
        return bytes(received)


class _Answer:
    """Reads an answer, field after field. All methods raise `RemoteProtocolError` at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def i16(self) -> int:
        return int.from_bytes(self._next(_I16.size), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self._next(_I32.size), "big", signed=True)

    def text(self) -> str:
        """Return a text; "" for null."""
        return self._next(max(0, self.i16())).decode(errors="replace")

    def data(self) -> bytes:
        return self._next(max(0, self.i32()))

    def _next(self, size: int) -> bytes:
        found = self._data[self._place : self._place + size]
        if len(found) < size:
            raise RemoteProtocolError("an answer ends early")
        self._place += size
        return found
