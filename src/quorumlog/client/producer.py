"""The producer: many entries to one group, in order, in blocks, with bounded memory.

`Producer` takes entries, its `Accumulator` puts them into blocks, and its `Sender` sends these.
"""

import logging
import operator
from collections import deque
from collections.abc import Coroutine, Iterable
from itertools import repeat
from types import TracebackType
from typing import Any

from msgspec import UNSET, UnsetType

from quorumlog.client.accumulator import Accumulator, check_channel
from quorumlog.client.buffers import as_bodies, as_bytes
from quorumlog.client.client import Client
from quorumlog.client.contexts import Servers
from quorumlog.client.delivery import (
    AttemptRecord,
    Delivery,
    ProducerStats,
    SentBlock,
    not_delivered,
    require_flushed,
)
from quorumlog.client.process import MakingProcess
from quorumlog.client.producer_options import checked_settings
from quorumlog.client.results import Level
from quorumlog.client.sender import Sender
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.errors import (
    ConfigError,
    LeaderPendingFullError,
    RequestError,
    Undelivered,
    UnexpectedArgumentError,
)
from quorumlog.model.wording import counted
from quorumlog.sessions.entries import AcceptedAttempt, TransactionPart

logger = logging.getLogger(__name__)


class Producer:
    """Appends many entries to one group, in blocks; entries are appended in the order of `send`.

    A block is sent when it is large enough or its first entry has waited long enough, and several
    are under way at a time. Refused blocks, and with `retry_unknown` those of unknown outcome, are
    sent again. The outcome of a block is unknown too if its leader says nothing for
    `request_timeout_ms`. After an error that cannot be retried all unresolved and later entries
    fail: the error says in its text and in `error.undelivered` how many entries, and which, were
    not appended or have an unknown outcome.

    Bodies are copied, and wrong ones refused, as by a `Client`; what is refused changes nothing. A
    producer cannot be used in a forked child. Use it as `async with Producer(...) as producer`.

    Args:
        client: a `Client`, which stays open, or the addresses of servers as a `Client` takes them.
        group: name of the group, if addresses were given (default: "default").
        batch_bytes: a block of this many bytes is sent at once, and grows no further. By default it
            is sent at 256 KiB, and grows up to 1 MiB while `in_flight_blocks` are in flight.
        linger_ms: a smaller block is sent when its first entry has waited this long, in
            milliseconds.
        buffer_bytes: bound on the bytes of all entries that are not acknowledged; `send` waits.
        in_flight_blocks: at most this many blocks are under way at a time; at most 16 if
            `idempotent`.
        request_timeout_ms: how long a leader may take to answer, in milliseconds.
        delivery_timeout_ms: after this many milliseconds an entry that is not acknowledged ends
            the producer.
        retry_unknown: whether blocks of unknown outcome are sent again; else the first one ends the
            producer.
        channel: the channel of entries that are not given another one.
        idempotent: whether blocks are numbered, so that the group stores each once. Without that,
            a block of unknown outcome that is sent again may be appended twice (`stats` counts
            them).
        producer_id: an id of your own (default: a random one). With a higher `epoch` than any
            before it takes over from producers of that id, which `ProducerFencedError` ends then.
        epoch: see `producer_id`.
        part: what `Transactions.part` returned: the entries belong to that transaction.
        level: what must be proved of a block before it counts as acknowledged (see `Level`); at
            least "replication" if `idempotent`.

    Attributes:
        stats: totals since the producer was made (`ProducerStats`).

    Raises:
        ConfigError: an option has a wrong type or value.
    """

    def __init__(  # noqa: PLR0913  (one argument an option)
        self,
        client: Client | Servers,
        group: str | UnsetType = UNSET,
        *,
        batch_bytes: int | None = None,
        linger_ms: float = 5,
        buffer_bytes: int = 32 * 1024 * 1024,
        in_flight_blocks: int = 8,
        request_timeout_ms: float = 5_000,
        delivery_timeout_ms: float = 30_000,
        retry_unknown: bool = True,
        channel: int = 0,
        idempotent: bool = True,
        producer_id: int | None = None,
        epoch: int = 0,
        part: TransactionPart | None = None,
        level: Level = "replication",
    ) -> None:
        self._owns_client = not isinstance(client, Client)
        self._client = _client_of(client, group)
        settings = checked_settings(
            self._client.limits,
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            buffer_bytes=buffer_bytes,
            in_flight_blocks=in_flight_blocks,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_unknown=retry_unknown,
            channel=channel,
            idempotent=idempotent,
            producer_id=producer_id,
            epoch=epoch,
            part=part,
            level=level,
        )
        self._settings = settings
        self._channel = settings.channel
        self._buffer_bytes = settings.buffer_bytes
        self._process = MakingProcess("producer")
        self._is_closed = False
        self.stats = ProducerStats()
        self._attempt = None if part is None else AttemptRecord(part)
        sent: deque[SentBlock] = deque()
        self._accumulator = Accumulator(
            settings, self.stats, self._attempt, sent, refuse=self._check, start=self._start
        )
        self._sender = Sender(
            self._client._requester.metadata,
            settings,
            self._accumulator,
            self.stats,
            self._attempt,
            sent,
        )

    def _start(self) -> None:
        self._sender.start()

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_reported = kind is None or self._is_closed or self._sender.error is not None
        await self.close(flush=kind is None)
        lost = self.undelivered()
        if kind is not None and not is_reported and lost.count:
            logger.warning("a producer was closed because of %s: %s", kind.__name__, lost)

    # -- taking entries ---------------------------------------------------------------------

    def send(self, body: Buffer) -> Coroutine[Any, Any, Delivery]:
        """Take one entry; waits only while the buffer is full.

        Raises `UnexpectedArgumentError` for a body that is none or above the limit, or the error
        that ended the producer.
        """
        return self._send(body if type(body) is bytes else as_bytes("body", body))

    async def _send(self, body: bytes) -> Delivery:
        self._process.check()
        if self._accumulator.buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
            await self._wait_for_space(HEADER_SIZE + len(body))
        return self._accumulator.add(body, self._channel)

    def send_nowait(self, body: Buffer) -> Delivery:
        """Take one entry. Raises `LeaderPendingFullError` when the buffer is full, or as `send`."""
        self._process.check()
        raw = body if type(body) is bytes else as_bytes("body", body)
        if self._accumulator.buffered + HEADER_SIZE + len(raw) > self._buffer_bytes:
            self._check(raw)
            raise LeaderPendingFullError(
                f"the producer's buffer of {self._buffer_bytes} bytes is full; await send instead"
            )
        return self._accumulator.add(raw, self._channel)

    def send_batch(
        self, bodies: Iterable[Buffer], channels: Iterable[int] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Take many entries, waiting whenever the buffer is full; `flush` raises errors.

        `channels`: one for each body; without it the producer's channel is used. If one body of a
        list is refused, none is taken; of an iterator, those before it are. Raises as `send`.
        """
        if hasattr(bodies, "__len__"):
            bodies, channels = self._checked_batch(bodies, channels)
        each = repeat(self._channel) if channels is None else channels
        return self._send_each(bodies, each, strict=channels is not None)

    async def _send_each(
        self, bodies: Iterable[Buffer], channels: Iterable[int], *, strict: bool
    ) -> None:
        self._process.check()
        for given, channel in zip(bodies, channels, strict=strict):
            body = given if type(given) is bytes else as_bytes("body", given)
            if type(channel) is bool:
                check_channel(channel)
            if self._accumulator.buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
                await self._wait_for_space(HEADER_SIZE + len(body))
            self._accumulator.add(body, channel)

    async def _wait_for_space(self, size: int) -> None:
        while self._accumulator.lacks_space(size):
            self._sender.raise_error()
            await self._accumulator.wait_for_release()

    def _check(self, body: bytes) -> None:
        """Raise what `send` would raise for a body, without taking it."""
        self._process.check()
        self._sender.raise_error()
        if self._is_closed:
            raise not_delivered("the producer is closed")
        largest = self._settings.entry_bytes_max - HEADER_SIZE
        if len(body) > largest:
            raise UnexpectedArgumentError(
                f"a body has {len(body)} bytes; the largest that can be appended has {largest}"
            )

    def _checked_batch(
        self, bodies: Iterable[Buffer], channels: Iterable[int] | None
    ) -> tuple[list[bytes], list[int] | None]:
        """Return copies of what `send_batch` is given. Raises as that, with nothing taken."""
        given = as_bodies("body", bodies, "send")
        self._check(max(given, key=len, default=b""))
        if channels is None:
            return given, None
        try:
            numbers = list(map(_index, channels))
        except TypeError as error:
            raise UnexpectedArgumentError(f"channels are whole numbers: {error}") from None
        if len(numbers) != len(given):
            raise UnexpectedArgumentError(
                f"{counted(len(numbers), 'channel')} for {counted(len(given), 'body', 'bodies')}"
            )
        for extreme in (min(numbers, default=0), max(numbers, default=0)):
            check_channel(extreme)
        return given, numbers

    async def flush(self) -> None:
        """Wait until everything taken so far is acknowledged. Raises the error that ended it."""
        self._process.check()
        await self._sender.flush()

    async def close(self, *, flush: bool = True) -> None:
        """Flush (unless `flush` is False) and end. Raises the error that ended the producer.

        Entries that were not delivered by then fail, as does every later `send`. In a forked child
        it does nothing, since the parent delivers the entries; there flushing is an error.
        """
        if flush:
            self._process.check()
        if self._is_closed or not self._process.is_this:
            return
        self._is_closed = self._accumulator.is_ended = self._sender.is_closing = True
        try:
            if flush:
                await self.flush()
        finally:
            await self._sender.stop()
            if self._sender.error is None:
                self._sender.fail(not_delivered("the producer is closed"))
            if self._owns_client:
                await self._client.close()

    def attempt(self) -> AcceptedAttempt | None:
        """Return what was appended of a part of a transaction; None: nothing was sent.

        Raises `UnexpectedArgumentError` before all of it is acknowledged: call `flush` first.
        """
        require_flushed(self.undelivered())
        return None if self._attempt is None else self._attempt.accepted(self._settings.producer_id)

    def undelivered(self, queued: int = 0) -> Undelivered:
        """Return which entries were taken and are not known to be in the log.

        `queued` more entries are counted too: those that the caller keeps, to be taken next.
        """
        return self._sender.undelivered(queued)

    def failure(self, queued: int = 0) -> RequestError | None:
        """Return the error that ended the producer, or None (`queued`: see `undelivered`)."""
        return self._sender.failure(queued)


def _client_of(client: Client | Servers, group: str | UnsetType) -> Client:
    """Return the client that a producer was given, or a new one."""
    if not isinstance(client, Client):
        return Client(client, "default" if isinstance(group, UnsetType) else group)
    if group is not UNSET and group != client.group:
        raise ConfigError(
            f"the client given is of group {client.group!r}, not {group!r}; give a client of that "
            "group, or servers"
        )
    return client


def _index(channel: Any) -> int:
    """Return a whole number of any type. Raises `TypeError` for others, True and False too."""
    if isinstance(channel, bool):
        raise TypeError(f"not {channel}")
    return operator.index(channel)
