"""Turns of TLS handshakes: each takes up to a millisecond, which everything else on the loop waits.

However many clients come at once, a turn of the loop has little time for their handshakes, so that
members' messages are not late, and those who are served keep three quarters of a busy loop: what a
login takes after its handshake counts, too. Hosts take turns with each other, members' hosts before
all others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.auth.hosts import host_of
from quorumlog.transport.member_hosts import MemberHosts

TURN_S: Final = 0.001
"""Time for handshakes in one turn of the loop; the last one may go beyond it."""
PAUSE_S: Final = 0.001
"""Pause after such a turn, if more of them wait: they take half of the loop's time at most."""
BUSY_PAUSE: Final = 3
"""While the loop is busy with others, the pause is this many times what the turn took: handshakes
take a quarter of its time."""
IDLE_SHARE: Final = 0.5
"""A loop is busy if its thread has computed for more than this share of a pause."""


class ShakingHands(Protocol):
    """A connection whose handshake is to go on."""

    def go_on(self) -> None:
        """Take the next step of the handshake, unless the connection has ended."""
        ...


class HandshakeTurns:
    """The handshakes of all ports of a node. `now`: seconds, which go on within a turn.

    `used`: seconds of the processor that the thread of the loop has used. Those of the `members`
    come first.
    """

    def __init__(
        self, now: Callable[[], float], used: Callable[[], float], members: MemberHosts
    ) -> None:
        self._now = now
        self._used = used
        self._members = members
        self._waiting: dict[str, deque[ShakingHands]] = {}
        """By host, in the order of their turns; its connections in the order in which they came."""
        self._is_called = False
        self._spent = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, address: str, connection: ShakingHands) -> None:
        """Have a connection from an address go on in its turn."""
        self._waiting.setdefault(host_of(address), deque()).append(connection)
        if not self._is_called:
            self._is_called = True
            self._spent = 0.0  # nobody has waited meanwhile
            asyncio.get_running_loop().call_soon(self._run)

    def spend(self, seconds: float) -> None:
        """Count time of a login that came after a handshake as if that had taken it."""
        self._spent += seconds

    def _run(self) -> None:
        begun = self._now()
        try:
            while self._waiting and self._now() < begun + TURN_S:
                self._next().go_on()
        finally:
            self._is_called = bool(self._waiting)
            if self._waiting:
                now = self._now()
                # logins that go on meanwhile must not make each pause longer than the last one
                took = now - begun + min(self._spent, TURN_S)
                self._spent = 0.0
                self._pause(now, now + BUSY_PAUSE * took)

    def _pause(self, now: float, until: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(PAUSE_S, self._go_on_unless_busy, now, self._used(), until)

    def _go_on_unless_busy(self, since: float, used: float, until: float) -> None:
        computed, now = self._used() - used, self._now()
        if now < until and computed > IDLE_SHARE * (now - since):
            self._pause(now, until)
        else:
            self._run()

    def _next(self) -> ShakingHands:
        host = self._members.first_of(self._waiting) or next(iter(self._waiting))
        connections = self._waiting.pop(host)
        found = connections.popleft()
        if connections:  # its next one comes after those of other hosts
            self._waiting[host] = connections
        return found
