"""Connections that have not said yet who they are: how many there may be, in all and of one host.

Whoever has the most to win by many of them is one host. Many clients behind one translated address
look like one host, too, but say quickly who they are. So connections beyond the bound wait, before
anything is read of them, until others of their host are done; and one that has had a second for it,
and is not done, makes room for one that waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol

from quorumlog.auth.hosts import host_of, without_port
from quorumlog.transport.member_hosts import MemberHosts

GRACE_S: Final = 1.0
"""A stranger has this time before it makes room for others."""
CHECK_S: Final = 0.05
"""Pause between looks whether those that wait may go on."""
WAITING_SHARE: Final = 4
"""Connections that wait are at most this part of all that a port accepts; those of one host, this
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
    for which there was not even room to wait. How many may wait in all is a matter of their ports.
    Hosts of the `members` have no bound.
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
        self._waiting_of_host_max = max(1, connections_max // WAITING_SHARE // WAITING_SHARE)
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
        if len(of_host) >= self._waiting_of_host_max:
            self.refused += 1
            self._tell(address, f"{_TOO_MANY}, and {len(of_host)} wait")
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        self._waiting_count += 1
        self._look_later()
        return turn

    def turn_away(self, address: str, turn: "asyncio.Future[None]") -> bool:
        """End one that waits, as others need its place; False: its turn has come already."""
        if turn.done():
            return False
        turns = self._waiting[host_of(address)]
        turns.remove(turn)
        if not turns:
            del self._waiting[host_of(address)]
        self._waiting_count -= 1
        self.refused += 1
        self._tell(address, f"{_TOO_MANY}, and others wait, too")
        turn.cancel()
        return True

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
        self._prune(list(self._known) if self._count >= self._most else [host])
        return self._is_within(host) or self._make_room(host, self._by_size())

    def _prune(self, hosts: list[str]) -> None:
        """Forget those of some hosts that are no strangers any more."""
        for host in hosts:
            for one in [one for one in self._known.get(host, ()) if not one.is_stranger]:
                self._forget(host, one)

    def _by_size(self) -> list[tuple[int, int, str]]:
        """Return the hosts as a heap, the one with most first, of those the one known longest."""
        found = [
            (-len(known), place, host) for place, (host, known) in enumerate(self._known.items())
        ]
        heapify(found)
        return found

    def _make_room(self, host: str, by_size: list[tuple[int, int, str]]) -> bool:
        """End the oldest of a host that is full, or else of the one that has most; if it may be.

        `by_size` was made before; hosts may only have lost some since.
        """
        full = host
        if self._of_host(host) < self._of_host_max:
            full = self._fullest(by_size)
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

    def _fullest(self, by_size: list[tuple[int, int, str]]) -> str:
        while by_size:
            noted, place, host = by_size[0]
            count = len(self._known.get(host, ()))
            if count == -noted:
                return host
            if count:
                heapreplace(by_size, (-count, place, host))
            else:
                heappop(by_size)
        return ""

    def _is_within(self, host: str) -> bool:
        return self._count < self._most and self._of_host(host) < self._of_host_max

    def _of_host(self, host: str) -> int:
        return len(self._known.get(host, ())) + self._begun.get(host, 0)

    # -- those that wait --------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._look)

    def _look(self) -> None:
        """Let those go on for which there is room: hosts take turns, one each."""
        self._timer = None
        self._prune(list(self._known))
        by_size, hosts = self._by_size(), deque(self._waiting)
        while hosts:
            host = hosts.popleft()
            turns = self._waiting[host]
            while turns and turns[0].done():  # it is not waited for any more
                turns.popleft()
                self._waiting_count -= 1
            if turns and not (self._is_within(host) or self._make_room(host, by_size)):
                continue
            del self._waiting[host]
            if turns:
                turns.popleft().set_result(None)
                self._waiting_count -= 1
                self._begin(host)
            if turns:  # its next one comes after those of other hosts, at the next look, too
                self._waiting[host] = turns
                hosts.append(host)
        if self._waiting:
            self._look_later()


def _host_at(connection: Stranger) -> str:
    return host_of(without_port(connection.remote_address))
