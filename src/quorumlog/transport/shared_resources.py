"""What the connections that a node accepted share: memory to receive into, bounds, and turns."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from quorumlog.auth.admissions import Admissions
from quorumlog.auth.throttles import Throttles
from quorumlog.model.audit_events import NO_AUDIT, Audit
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello
from quorumlog.transport.budget import Budgets, RequestMemory
from quorumlog.transport.client_lines import ClientLines
from quorumlog.transport.member_hosts import MemberHosts
from quorumlog.transport.scheduler import Scheduler
from quorumlog.transport.strangers import Strangers
from quorumlog.transport.unsecured import UnsecuredClients

logger = logging.getLogger(__name__)

RECEIVED_BYTES_MAX = 64 * 1024
"""Bytes received from one connection before others that wait are served."""
FRAME_RECEIVED_BYTES_MAX = 256 * 1024
"""The same, if it belongs to a large frame."""


class ReceivingConnection(Protocol):
    """A connection, as those see it that end connections of which a frame is late."""

    def is_late(self, now: float) -> bool:
        """Whether a frame has been arriving for too long, or too slowly since."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        ...


class SharedResources:
    """What all connections of one listener share."""

    def __init__(
        self,
        limits: Limits,
        is_member: Callable[[Hello], bool],
        is_crowded: Callable[[], bool] = lambda: False,
        appends: RequestMemory | None = None,
        members: MemberHosts | None = None,
    ) -> None:
        self.members = MemberHosts() if members is None else members
        self.budgets = Budgets(
            limits.receive_bytes_max,
            limits.peer_receive_bytes_max,
            limits.send_bytes_max,
            limits.unread_ms,
            limits.frame_bytes_per_second_min,
            appends or RequestMemory(limits.append_bytes_max),
        )
        self.is_member = is_member
        self.unfinished: set[ReceivingConnection] = set()
        """Connections of which a frame has not arrived whole."""
        self.staged = memoryview(bytearray(RECEIVED_BYTES_MAX))
        # a loop's own time may stand still within one turn
        self.now = time.monotonic
        self.lines = ClientLines(logger, self.now)
        self.audit: Audit = NO_AUDIT
        """Where it is recorded that a connection was refused."""
        self.unsecured = UnsecuredClients()
        self.strangers = Strangers(
            limits.strangers_per_address_max,
            limits.strangers_max,
            limits.connections_max,
            self.now,
            self.members,
            self._tell_of_stranger,
        )
        self.admissions = Admissions(Throttles())
        """Both are those of all ports of a node, once it serves."""
        self.scheduler = Scheduler(asyncio.get_running_loop(), self.now, is_crowded)

    def _tell_of_stranger(self, address: str, reason: str) -> None:
        self.lines.warn("closing the connection of a stranger", "", f"{address}:", reason=reason)

    def check(self) -> int:
        """End connections of which a frame is late, or whose answers nobody reads.

        Returns how many frames were late. It does not look at all connections: with thousands of
        them the loop would stand still.
        """
        now, late = self.now(), 0
        for connection in list(self.unfinished):
            if connection.is_late(now):
                late += 1
                connection.abort("a frame did not arrive in time")
        self.budgets.answers.check()
        return late
