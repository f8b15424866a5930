"""What the unanswered requests of one connection hold, and when no more of it is read."""

from typing import Final

from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendRequest, FetchRequest, WatchLeaderRequest
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.node.request_bounds import RequestBounds
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""What the unanswered requests of one connection may ask for, or have attached; reading pauses
above."""
QUERY_BYTES: Final = 1024
"""What a query takes besides its body until it is answered."""
QUERIES_SHARE: Final = 4
"""One connection has at most this part of the memory for queries: it is read again when some are
answered. More queries that wait for an index are refused."""
WAITING: Final = (FetchRequest, QueryRequest, WatchLeaderRequest)
"""Requests that may wait for something to happen."""


class Unanswered:
    """Counts the requests of a connection in what `bounds` has for all of them together.

    Attributes:
        polls: how many wait for something to happen; the others are read nevertheless.
        waiting_query_bytes: what queries hold that wait.
        query_bytes_max: the most that those of this connection may hold, of either kind.
    """

    def __init__(self, bounds: RequestBounds, limits: Limits) -> None:
        self._bounds = bounds
        self._limits = limits
        self._in_flight = self._bytes = self._query_bytes = 0
        self.polls = self.waiting_query_bytes = 0
        self.query_bytes_max = bounds.queries.bytes_max // QUERIES_SHARE
        self._paused = self._is_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether the client waits for nothing."""
        return not (self._in_flight or self.polls)

    @property
    def may_be_dropped(self) -> bool:
        """Whether there are requests that need no answer if the client has gone."""
        return bool(self.polls or self._query_bytes)

    def count(self, connection: Connection, frame: Frame, change: int) -> None:
        """Count a request that came or was answered; read no more while there are too many."""
        message = frame.message
        if isinstance(message, QueryRequest):
            self._count_query(message, len(frame.attachment) + QUERY_BYTES, change)
        if isinstance(message, WAITING) and message.wait_ms > 0:
            if not self._is_closed:
                self.polls += change
                self._bounds.polls += change
            return
        shares = self._bounds.shares
        if isinstance(message, AppendRequest):
            # bounded by the bytes that may wait for a majority, and by shares of these
            (shares.add if change > 0 else shares.remove)(self, len(frame.attachment))
        else:
            self._bytes += change * self._bytes_of(frame)
        self._in_flight += change
        most = self._limits.requests_in_flight_max
        # a client that waits for its answers has little in flight; of 300 pipelines each has less
        is_beyond = shares.is_beyond(self) and not connection.is_closed_loop
        is_beyond = is_beyond or self._query_bytes > self.query_bytes_max
        if not self._paused:
            if self._in_flight >= most or self._bytes >= IN_FLIGHT_BYTES_MAX or is_beyond:
                self._paused = True
                connection.pause_reading()
        elif not self._in_flight or (
            self._in_flight < most // 2 and self._bytes < IN_FLIGHT_BYTES_MAX and not is_beyond
        ):
            self._paused = False
            connection.resume_reading()

    def _count_query(self, request: QueryRequest, size: int, change: int) -> None:
        """Count a query's memory: in all of one kind, and of this connection."""
        if self._is_closed:
            return
        bounds = self._bounds
        memory = bounds.waiting_queries if request.wait_ms > 0 else bounds.queries
        (memory.hold if change > 0 else memory.release)(size)
        if request.wait_ms > 0:
            self.waiting_query_bytes += change * size
        else:
            self._query_bytes += change * size

    def _bytes_of(self, frame: Frame) -> int:
        """Return how much a request that is no append may have the node hold until its answer."""
        message = frame.message
        if isinstance(message, FetchRequest):
            return max(0, min(message.bytes_max, self._limits.block_bytes_max))
        return len(frame.attachment)

    def close(self) -> None:
        """Give back what is held: those that are dropped are never answered."""
        self._is_closed = True
        self._bounds.shares.forget(self)
        self._bounds.polls -= self.polls
        self._bounds.queries.release(self._query_bytes)
        self._bounds.waiting_queries.release(self.waiting_query_bytes)
