"""What the first bytes of a connection say about it: TLS, our own protocol, HTTP, or another one.

A port that speaks TLS reads a few bytes of each connection first. They are too few to be a whole
frame, so whoever takes the connection then gets them as the first bytes that it receives. Reading
them is not less certain than a look with MSG_PEEK, and takes one call less (decision 0065).
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

from quorumlog.model.config import host_port
from quorumlog.transport.client_lines import ClientLines
from quorumlog.transport.lingering import Lingering
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls import Identity, IncomingTls, SecuredProtocol
from quorumlog.transport.tls_layer import HANDSHAKE_BYTES_MAX, TlsLayer
from quorumlog.transport.tls_words import TlsError
from quorumlog.wire.frame import MAGIC

logger = logging.getLogger(__name__)

FIRST_BYTES: Final = 12
"""Fewer than any frame has, of our own protocol (header: 32) or of Kafka's (14 and more)."""
HELLO_HEAD: Final = 9
"""The header of a TLS record, and that of the handshake message in it (RFC 8446, section 4)."""
HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")
HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks TLS, and no HTTP: metrics and health are at adminListen.\n"
)
_TLS_HANDSHAKE: Final = 0x16
_CLIENT_HELLO: Final = 0x01


class TlsPort:
    """What a port that speaks TLS does with a new connection.

    `incoming` returns what is current for it. `answer` returns what a plain client is told, by its
    first bytes, if it must not be served.
    """

    def __init__(
        self,
        tls: NodeTls,
        incoming: Callable[[], IncomingTls],
        answer: Callable[[bytes], bytes] = lambda first: b"",
    ) -> None:
        self._tls = tls
        self._incoming = incoming
        self._answer = answer
        self._lines = ClientLines(logger, time.monotonic)

    def protocol_for(self, app: SecuredProtocol) -> asyncio.BufferedProtocol:
        """Return what is to take the bytes of a new connection, whose owner is `app`."""
        return _FirstBytes(app, self)

    def decide(self, app: SecuredProtocol, below: asyncio.Transport, first: memoryview) -> None:
        """Hand a connection over to who takes it further, or refuse it, if its bytes say enough."""
        if first[0] == _TLS_HANDSHAKE:
            if len(first) >= HELLO_HEAD:
                self._begin_tls(app, below, first)
        elif len(first) < len(MAGIC):
            return
        elif self._tls.is_optional:
            below.set_protocol(cast(asyncio.BaseProtocol, app))
            app.begin(below, Identity())
            app.get_buffer(-1)[: len(first)] = first
            app.buffer_updated(len(first))
        elif (begin := bytes(first[: len(MAGIC)])) in HTTP_METHODS:
            self._refuse(app, below, HTTP_ANSWER, "an HTTP request; this port speaks TLS only")
        else:
            reason = "a plain connection; this port speaks TLS only"
            self._refuse(app, below, self._answer(begin), reason)

    def _begin_tls(self, app: SecuredProtocol, below: asyncio.Transport, first: memoryview) -> None:
        reason = _wrong_hello(first)
        if reason:
            self._refuse(app, below, b"", reason)
            return
        peer = below.get_extra_info("peername")
        address = peer[0] if peer else "?"
        incoming = self._incoming()
        incoming = replace(
            incoming,
            identify_object=partial(self._identify, incoming, address),
            when_failed=partial(self._tell_refused, below),
        )
        layer = TlsLayer(app, incoming, partial(self._tls.handshakes.wait, address))
        below.set_protocol(layer)
        layer.start(below, first)

    def _identify(self, incoming: IncomingTls, address: str, ssl_object: ssl.SSLObject) -> Identity:
        found = incoming.identify_object(ssl_object)
        if found.certified is not None and found.certified.kind == "node":
            self._tls.members.note(address)
        return found

    def _refuse(
        self, app: SecuredProtocol, below: asyncio.Transport, answer: bytes, reason: str
    ) -> None:
        self._tell_refused(below, reason)
        if answer:
            below.write(answer)
        Lingering(below, lambda _: app.connection_lost(TlsError(reason)))

    def _tell_refused(self, below: asyncio.Transport, reason: str) -> None:
        peer = below.get_extra_info("peername")
        address = host_port(*peer[:2]) if peer else "?"
        self._lines.warn("connection refused", "", address, reason=reason)


def _wrong_hello(first: memoryview) -> str:
    """Return why TLS does not go on with a connection that begins so; "": it does."""
    length = int.from_bytes(first[3:5], "big")
    if length < HELLO_HEAD - 5 or first[1] != 3 or first[5] != _CLIENT_HELLO:
        return "it begins like TLS, but with no ClientHello"
    size = int.from_bytes(first[6:9], "big")
    if size > HANDSHAKE_BYTES_MAX:
        return f"a TLS ClientHello of {size} bytes; at most {HANDSHAKE_BYTES_MAX} are taken"
    return ""


class _FirstBytes(asyncio.BufferedProtocol):
    """Takes the first bytes of one connection."""

    def __init__(self, app: SecuredProtocol, port: TlsPort) -> None:
        self._app = app
        self._port = port
        self._below: asyncio.Transport | None = None
        self._first = memoryview(bytearray(FIRST_BYTES))
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._below = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self._app.attach(self._below)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._first[self._count :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._count += nbytes
        if self._below is not None and not self._below.is_closing():
            self._port.decide(self._app, self._below, self._first[: self._count])

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._app.connection_lost(exc)
