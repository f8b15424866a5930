"""What TLS needs at either end of a connection, and what a connection offers to the layer below."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from quorumlog.auth.certificates import ANONYMOUS, Certified, certified_of


class Identity(NamedTuple):
    """Who the other side of a connection is."""

    certified: Certified | None = None
    principal: str = ANONYMOUS
    refusal: str = ""
    """Why it may not be here, which it can be told in the words of the protocol above."""


class SecuredProtocol(Protocol):
    """A connection, as the layer below sees it; the methods of `asyncio.BufferedProtocol` are as
    described there."""

    def attach(self, transport: asyncio.Transport) -> None:
        """There is a connection. It may be closed, but nothing can be sent yet."""

    def begin(self, transport: asyncio.Transport, identity: Identity) -> None:
        """Bytes can be sent by `transport`, and `identity` says who the other side is."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where bytes are received."""

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""

    def pause_writing(self) -> None:
        """Much is unsent."""

    def resume_writing(self) -> None:
        """Little is unsent."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""


def accept_any(certificate: Mapping[str, Any]) -> None:
    """Accept each certificate that the context accepts."""


@dataclass(frozen=True, slots=True)
class OutgoingTls:
    """What the side that connects needs.

    `check` is called with what `ssl.SSLSocket.getpeercert` returns; it raises `RemoteProtocolError`
    if that is not whom this side wants to speak to. `server_hostname` is the name that the
    certificate has to have; see `to`. `certificate`: the file of what is shown, for messages.
    `when_plain` is called if the other side does not speak TLS.
    """

    context: ssl.SSLContext
    check: Callable[[Mapping[str, Any]], object] = accept_any
    server_hostname: str | None = None
    certificate: str = ""
    when_plain: Callable[[], object] | None = None

    def to(self, host: str) -> "OutgoingTls":
        """Return the same for a connection to a host, whose name the context may check."""
        return replace(self, server_hostname=host) if self.context.check_hostname else self

    def identify(self, certificate: Mapping[str, Any]) -> Identity:
        """Return who the server is. Raises `RemoteProtocolError` if that is somebody else."""
        self.check(certificate)
        certified = certified_of(certificate)
        return Identity(certified, ANONYMOUS if certified is None else certified.principal)

    def object_on(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return what speaks TLS for one connection."""
        return self.context.wrap_bio(incoming, outgoing, server_hostname=self.server_hostname)


@dataclass(frozen=True, slots=True)
class IncomingTls:
    """What the side that is connected to needs.

    `identify_object` returns who the client is, or raises `RemoteProtocolError` if that is nobody
    who may be here. `certificate`: as in `OutgoingTls`. `when_failed` is called with the reason if
    the handshake fails.
    """

    context: ssl.SSLContext
    identify_object: Callable[[ssl.SSLObject], Identity]
    certificate: str = ""
    when_failed: Callable[[str], object] = lambda reason: None

    def object_on(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return what speaks TLS for one connection."""
        return self.context.wrap_bio(incoming, outgoing, server_side=True)
