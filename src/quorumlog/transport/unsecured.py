"""Who has been served over connections that are plain, or without having said who it is.

Whoever changes a cluster over to TLS and logins has to know who still comes without.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.hosts import without_port
from quorumlog.model.wording import foreign

CLIENTS_MAX: Final = 1_000
"""Clients of one port that are remembered; the one that was seen the longest ago is forgotten."""
NAME_LENGTH_MAX: Final = 64


class UnsecuredClient(NamedTuple):
    """Connections that differ in nothing but their port. `name`: what the client calls itself."""

    principal: str
    host: str
    name: str
    is_plain: bool


class ClientConnection(Protocol):
    """A connection that a node has accepted."""

    @property
    def principal(self) -> str:
        """Who the other side has proved to be."""
        ...

    @property
    def remote_address(self) -> str:
        """Its `host:port`."""
        ...

    @property
    def called(self) -> str:
        """What the other side calls itself; it may be anything."""
        ...

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody in between can read or change what is sent."""
        ...

    @property
    def is_served(self) -> bool:
        """Whether it has got something here: it is a member's, or a request was answered."""
        ...


class UnsecuredClients:
    """Remembers such clients of one port, when their connections end."""

    def __init__(self) -> None:
        self._last: dict[UnsecuredClient, float] = {}
        """When each was seen last, the longest ago first."""

    def note_end(self, connection: ClientConnection, now: float) -> None:
        """Take notice of a connection that ends. `now`: in seconds."""
        client = _client_of(connection)
        if client is not None:
            self._last.pop(client, None)
            if len(self._last) >= CLIENTS_MAX:
                del self._last[next(iter(self._last))]
            self._last[client] = now

    def seen(
        self, connections: Iterable[ClientConnection], now: float
    ) -> list[tuple[UnsecuredClient, float]]:
        """Return clients, with the seconds since each was seen, those of just now first.

        `connections`: those that are open.
        """
        present = dict.fromkeys(filter(None, map(_client_of, connections)), now)
        known = {**self._last, **present}
        found = [(client, now - at) for client, at in known.items()]
        return sorted(found, key=lambda one: one[1])


def _client_of(connection: ClientConnection) -> UnsecuredClient | None:
    is_plain, principal = not connection.is_encrypted, connection.principal
    if not connection.is_served or not (is_plain or principal == ANONYMOUS):
        return None
    name = foreign(connection.called, NAME_LENGTH_MAX)
    return UnsecuredClient(principal, without_port(connection.remote_address), name, is_plain)
