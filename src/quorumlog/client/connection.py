"""One connection of a client: requests out, answers paired by correlation id."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.block import Buffer
from quorumlog.model.config import parse_address
from quorumlog.model.errors import (
    LeaderPendingFullError,
    NetworkError,
    Outcome,
    RemoteProtocolError,
)
from quorumlog.model.limits import Limits
from quorumlog.model.message import Hello, MetadataRequest, Request, Response
from quorumlog.transport.connection import Connection, TransportCounters
from quorumlog.wire.frame import Frame

SILENCE_S = 1.0
"""After so long without a word while a request waits, the server is asked whether it is there."""
GONE_S = 4.0
"""After so long it counts as gone: a process that is frozen keeps its connections."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with the bytes attached to it."""

    response: Response
    attachment: memoryview


class ServerConnection:
    """An open connection to one server. When it ends, unanswered requests fail as unknown.

    It ends, too, when no byte comes or goes for `GONE_S` while a request waits; `group` is asked
    about to see that.
    """

    def __init__(self, address: str, cluster: str, limits: Limits, *, group: str) -> None:
        self.address = address
        self._group = group
        self._hello = Hello(cluster=cluster, node_id="", role="client")
        self._limits = limits
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Connection | None = None
        self._moved = (0, 0)
        self._moved_at = self._look_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.node_id = ""

    async def open(self, timeout_s: float) -> None:
        """Connect and shake hands. Raises `NetworkError`."""
        host, port = parse_address(self.address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, self._connection = await loop.create_connection(self._make, host, port)
                await self._ready
        except (OSError, TimeoutError) as error:
            self.close()
            reason = "no answer in time" if isinstance(error, TimeoutError) else error
            raise NetworkError(f"cannot connect to {self.address}: {reason}") from error
        except BaseException:
            self.close()
            raise

    def _make(self) -> Connection:
        return Connection(
            self._hello, self._greet, self._limits, TransportCounters(), on_lost=self._lost
        )

    def _greet(self, hello: Hello) -> "ServerConnection":
        if self._hello.cluster and hello.cluster != self._hello.cluster:
            raise RemoteProtocolError(
                f"{self.address} is of cluster {hello.cluster!r}, not {self._hello.cluster!r}"
            )
        self.node_id = hello.node_id
        return self

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._connection is not None and self._connection.is_open

    @property
    def unanswered(self) -> int:
        """Requests that somebody still waits for."""
        return len(self._waiting)

    def request(
        self, message: Request, attachments: Sequence[Buffer] = ()
    ) -> "asyncio.Future[Answer]":
        """Send a request; the future resolves with the answer or fails with `NetworkError`.

        Raises `NetworkError` when the connection has ended, `LeaderPendingFullError` when too much
        is unsent.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            raise _not_sent(self.address)
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        if self._watch is None:
            self._moved_at = loop.time()
            self._look_later()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting[number] = future
        # also when the caller gives up: its place must not be kept until the connection ends
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        if not connection.send(message, correlation_id=number, attachments=attachments):
            self._waiting.pop(number, None)
            if not connection.is_open:
                raise _not_sent(self.address)
            raise LeaderPendingFullError(f"{self.address} does not take bytes fast enough")
        return future

    def _look(self) -> None:
        """See whether the server is there, as long as anybody waits for it."""
        loop, connection, self._watch = asyncio.get_running_loop(), self._connection, None
        if connection is None or not connection.is_open or not self._waiting:
            return
        moved, now = (connection.bytes_in, connection.outbox_bytes), loop.time()
        # what came while this process did not run may not have been read yet
        self._moved_at += now - self._look_at
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        silent_s = now - self._moved_at
        if silent_s >= GONE_S:
            reason = f"has not said anything for {silent_s:.1f} s"
            connection.abort(reason)
            self._fail(reason)
            return
        if silent_s >= SILENCE_S:
            connection.send(MetadataRequest(group=self._group), correlation_id=next(self._numbers))
        self._look_later()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + SILENCE_S
        self._watch = loop.call_at(self._look_at, self._look)

    # -- what the connection says -----------------------------------------------------------

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        if not self._ready.done():
            self._ready.set_result(None)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        future = self._waiting.pop(frame.correlation_id, None)
        if future is not None and not future.done() and isinstance(frame.message, Response):
            future.set_result(Answer(frame.message, frame.attachment))

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self._fail(reason)

    def _lost(self, connection: Connection) -> None:
        if not self._ready.done():
            text = f"{self.address}: {connection.reason or 'closed during the handshake'}"
            self._ready.set_exception(NetworkError(text))
        self._fail("connection lost")

    def _fail(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    NetworkError(f"{self.address}: {reason}; the request may have been executed")
                )

    def close(self) -> None:
        """End the connection."""
        if self._watch is not None:
            self._watch.cancel()
        if self._connection is not None:
            self._connection.close("the client is done")
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        else:
            self._ready.cancel()


def _not_sent(address: str) -> NetworkError:
    error = NetworkError(f"the connection to {address} has ended; nothing was sent")
    error.outcome = Outcome.DID_NOT_HAPPEN
    return error
