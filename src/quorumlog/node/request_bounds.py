"""Bounds on the requests of all clients to a node that wait for their answers: the memory that they
hold, and how much each client may have under way when several append at the same time.

A log stores entries in the order in which they arrive, so an append waits for all that arrived
before it. A single connection may use half of the memory for appends under way. When there are
several, each gets a much smaller share: otherwise clients that send as fast as they can
would make all others wait for seconds.
"""

from collections.abc import Callable

from quorumlog.model.limits import Limits
from quorumlog.transport.budget import RequestMemory

SHARED_BYTES = 512 * 1024
"""Bytes that all connections of a node together may have under way when there are several, besides
one request of each: as much as a few group commits write."""
REQUEST_BYTES = 8 * 1024
"""Bytes added to each request's block: even the smallest request takes time."""
RECENT_S = 1.0
"""A connection keeps its share for this long after its last append or answer, in seconds."""


class AppendShares:
    """How the clients of one node share what may wait; `now` is in seconds.

    `memory` is what all appends hold.
    """

    def __init__(self, now: Callable[[], float], memory: RequestMemory) -> None:
        self._now = now
        self._memory = memory
        self._under_way: dict[object, int] = {}
        self._all_under_way = 0
        self._active: dict[object, float] = {}
        """When each connection last appended or had an answer, the longest ago first."""

    def add(self, connection: object, block_bytes: int) -> None:
        """A connection appends a block."""
        size = block_bytes + REQUEST_BYTES
        self._memory.hold(size)
        self._change(connection, size)

    def remove(self, connection: object, block_bytes: int) -> None:
        """One of its appends was answered; the connection may have ended meanwhile."""
        size = block_bytes + REQUEST_BYTES
        self._memory.release(size)
        if connection in self._under_way:
            self._change(connection, -size)

    def forget(self, connection: object) -> None:
        """A connection has ended: its unanswered appends count against no share any more."""
        self._all_under_way -= self._under_way.pop(connection, 0)
        self._active.pop(connection, None)

    def _change(self, connection: object, size: int) -> None:
        now = self._now()
        under_way = self._under_way.get(connection, 0) + size
        self._all_under_way += size
        if under_way:
            self._under_way[connection] = under_way
        else:
            self._under_way.pop(connection, None)
        self._active.pop(connection, None)
        self._active[connection] = now
        while now - self._active[oldest := next(iter(self._active))] > RECENT_S:
            del self._active[oldest]

    def is_crowded(self) -> bool:
        """Whether several connections together have as much under way as they may share."""
        return len(self._active) > 1 and self._all_under_way > SHARED_BYTES

    def is_beyond(self, connection: object) -> bool:
        """Whether a connection has more under way than its share.

        Alone, or among few, it may have more than what all share, but not while memory is short.
        """
        under_way, sharing = self._under_way.get(connection, 0), len(self._active)
        if sharing > 1 and under_way * sharing > SHARED_BYTES:
            return True
        return under_way > SHARED_BYTES and self._memory.is_half_full


class RequestBounds:
    """What bounds the requests of all clients to one node that wait for their answers."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.appends = RequestMemory(limits.append_bytes_max)
        self.queries = RequestMemory(limits.query_bytes_max // 2)
        self.waiting_queries = RequestMemory(limits.query_bytes_max // 2)
        """Of queries that wait for an index: they may take half a minute, the others end soon."""
        self.shares = AppendShares(now, self.appends)
        self.polls = 0
        """Requests that wait for something to happen."""
