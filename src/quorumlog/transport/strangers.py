"""Connections that have not said yet who they are: how many there may be, in all and of one host.

Whoever has the most to win by many of them is one host. Many clients behind one translated address
look like one host, too, but say quickly who they are. So connections beyond the bound wait, before
anything is read of them, until others of their host are done; and one that has had a second for it,
and is not done, makes room for one that waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.auth.hosts import host_of, without_port
from quorumlog.transport.member_hosts import MemberHosts

GRACE_S: Final = 1.0
"""A stranger has this time before it makes room for others."""
CHECK_S: Final = 0.05
"""Pause between looks whether those that wait may go on."""
WAITING_SHARE: Final = 4
"""Connections that wait are at most this part of all that a node accepts; those of one host, this
part of them. More are closed."""

_TOO_MANY: Final = "too many connections have not said who they are"


class Stranger(Protocol):
    """A connection, as it is seen here."""

    remote_address: str

    @property
    def is_stranger(self) -> bool:
        """Whether the other side has still to say who it is."""
        ...

    def abort(self, reason: str) -> None:
        """End it."""
        ...


class Strangers:
    """The strangers of all ports of a node: at most `of_host_max` of a host, `most` in all.

    `now`: seconds. `tell` is called with an address, and with why a connection of it is ended: it
    must be quick, and bound what it writes. `ended` counts those that made room, `refused` those
    for which there was not even room to wait. Hosts of the `members` have no bound.
    """

    def __init__(
        self,
        of_host_max: int,
        most: int,
        connections_max: int,
        now: Callable[[], float],
        members: MemberHosts,
        tell: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        self._of_host_max = of_host_max
        self._most = most
        self._waiting_max = max(1, connections_max // WAITING_SHARE)
        self._now = now
        self._tell = tell
        self._known: dict[str, dict[Stranger, float]] = {}
        """By host, the oldest first, since when. Some may not be strangers any more."""
        self._begun: dict[str, int] = {}
        """Those of each host that are being set up."""
        self._count = self._waiting_count = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._members = members
        self._timer: asyncio.TimerHandle | None = None
        self.ended = self.refused = 0

    @property
    def waiting(self) -> int:
        """How many connections wait to be set up."""
        return self._waiting_count

    def place(self, address: str) -> "asyncio.Future[None] | bool":
        """Return whether a connection from an address may be set up, or what it has to wait for.

        Once it may be, and was set up or could not be, `done` is to be called.
        """
        host = host_of(address)
        if host in self._members or (host not in self._waiting and self._has_room(host)):
            self._begin(host)
            return True
        of_host = self._waiting.get(host, ())
        if self._waiting_count >= self._waiting_max or len(of_host) >= max(
            1, self._waiting_max // WAITING_SHARE
        ):
            self.refused += 1
            self._tell(address, f"{_TOO_MANY}, and {len(of_host)} wait")
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        self._waiting_count += 1
        self._look_later()
        return turn

    def _begin(self, host: str) -> None:
        self._begun[host] = self._begun.get(host, 0) + 1
        self._count += 1

    def done(self, address: str) -> None:
        """A connection from an address is set up, or could not be."""
        host = host_of(address)
        self._count -= 1
        self._begun[host] -= 1
        if not self._begun[host]:
            del self._begun[host]

    def came(self, connection: Stranger) -> None:
        """A connection was set up."""
        host = _host_at(connection)
        self._known.setdefault(host, {})[connection] = self._now()
        self._count += 1

    def left(self, connection: Stranger) -> None:
        """A connection has ended."""
        self._forget(_host_at(connection), connection)

    def _forget(self, host: str, connection: Stranger) -> None:
        of_host = self._known.get(host, {})
        if of_host.pop(connection, None) is not None:
            self._count -= 1
            if not of_host:
                del self._known[host]

    def _has_room(self, host: str) -> bool:
        """Whether there is room for one more of a host; if need be, another one is ended."""
        if self._is_within(host):
            return True
        for other in list(self._known) if self._count >= self._most else [host]:
            for one in [one for one in self._known.get(other, ()) if not one.is_stranger]:
                self._forget(other, one)
        if self._is_within(host):
            return True
        full = host
        if self._of_host(host) < self._of_host_max:
            full = max(self._known, key=lambda one: len(self._known[one]), default=host)
        if full not in self._known:
            return False
        oldest, since = next(iter(self._known[full].items()))
        if self._now() - since < GRACE_S:
            return False
        self._forget(full, oldest)
        self.ended += 1
        self._tell(without_port(oldest.remote_address), _TOO_MANY)
        oldest.abort(_TOO_MANY)
        return True

    def _is_within(self, host: str) -> bool:
        return self._count < self._most and self._of_host(host) < self._of_host_max

    def _of_host(self, host: str) -> int:
        return len(self._known.get(host, ())) + self._begun.get(host, 0)

    # -- those that wait --------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._look)

    def _look(self) -> None:
        """Let those go on for which there is room: hosts take turns."""
        self._timer = None
        for host in list(self._waiting):
            turns = self._waiting[host]
            while turns and self._has_room(host):
                turn = turns.popleft()
                self._waiting_count -= 1
                if not turn.done():
                    turn.set_result(None)
                    self._begin(host)
            del self._waiting[host]
            if turns:  # its next one comes after those of other hosts
                self._waiting[host] = turns
        if self._waiting:
            self._look_later()


def _host_at(connection: Stranger) -> str:
    return host_of(without_port(connection.remote_address))
