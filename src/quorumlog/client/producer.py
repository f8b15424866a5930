"""The producer: many entries to one group, in order, in blocks, with bounded memory."""

import asyncio
import logging
import operator
import random
import secrets
import struct
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, TypedDict

from isal.isal_zlib import crc32
from msgspec import UNSET, UnsetType

from quorumlog.client import options
from quorumlog.client.buffers import as_bodies, as_bytes
from quorumlog.client.client import Client
from quorumlog.client.connection import ServerConnection
from quorumlog.client.delivery import (
    AttemptRecord,
    Delivery,
    OutgoingBlock,
    ProducerStats,
    SentBlock,
    doubtful,
    not_delivered,
    require_flushed,
    undelivered_of,
    with_undelivered,
)
from quorumlog.client.options import whole_number
from quorumlog.client.process import MakingProcess
from quorumlog.client.retry import Backoff
from quorumlog.log_events import describe_error
from quorumlog.model.block import HEADER, HEADER_SIZE, Buffer
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LeaderPendingFullError,
    Outcome,
    RequestError,
    Undelivered,
    UnexpectedArgumentError,
)
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.sessions.entries import (
    ID_SIZE,
    SESSION_ENTRY_SIZE,
    TRANSACTIONAL_ENTRY_SIZE,
    AcceptedAttempt,
    SessionEntry,
    TransactionPart,
    crc_of,
)
from quorumlog.sessions.producer_table import BLOCKS_REMEMBERED

logger = logging.getLogger(__name__)

_NORMAL = int(Magic.NORMAL)
_STREAM = 1
BATCH_BYTES = 256 * 1024
"""A block of this size leaves at once, if it can."""
BATCH_BYTES_MAX = 1024 * 1024
"""A block that cannot leave yet may grow to this: larger blocks cost less an entry."""
BUFFER_BYTES_MAX = 1 << 40
IN_FLIGHT_BLOCKS_MAX = 1_024
EXPIRY_CHECK_S = 0.25
"""How often blocks are checked for their delivery time-out while nothing else happens."""


class _Ended(Exception):  # noqa: N818  (never leaves this module: a session is over)
    """The session with this leader is over; what is unresolved goes to the next one."""


class ProducerOptions(TypedDict, total=False):
    """What a `Producer` may be told besides where to append; see there."""

    batch_bytes: int | None
    linger_ms: float
    buffer_bytes: int
    in_flight_blocks: int
    request_timeout_ms: float
    delivery_timeout_ms: float
    retry_unknown: bool
    channel: int
    idempotent: bool
    producer_id: int | None
    epoch: int
    part: TransactionPart | None


class Producer:
    """Appends to one group with batching; entries are stored in the order of `send`.

    A block leaves when it has `batch_bytes` or its first entry has waited `linger_ms`; up to
    `in_flight_blocks` are unanswered at a time; `buffer_bytes` bounds what is held in memory.
    Without `batch_bytes` a block leaves with `BATCH_BYTES`, but grows up to `BATCH_BYTES_MAX` while
    as many are unanswered as may be.
    Refused blocks and (with `retry_unknown`) those of unknown fate are sent again until
    `delivery_timeout_ms`. Being `idempotent`, a producer numbers its blocks and has them stored
    once, however often they are sent; without it those of unknown fate, counted in `stats`, may be
    stored twice. The fate of a block is unknown too when its leader says nothing for
    `request_timeout_ms`. After an error that cannot be retried all unresolved and later ones fail.
    A `producer_id` of the caller's, with an `epoch` higher than any before, takes over from
    producers of that id: what those send from then on is refused (`ProducerFencedError`). With a
    `part` the entries belong to a transaction (see `Transactions`).

    Bodies are copied, and wrong ones refused, as by a `Client`; what is refused changes nothing.
    The error that ended a producer says in its text and in `error.undelivered` how many entries,
    and which, were not stored or have an unknown outcome. A forked child cannot use a producer.
    Raises `ConfigError` for an option of a wrong type or value.
    """

    def __init__(  # noqa: PLR0913  (named options of a public door)
        self,
        client: Client | str | Sequence[str],
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
    ) -> None:
        self._owns_client = not isinstance(client, Client)
        self._client = _client_of(client, group)
        limits = self._client.limits
        self._set_batches(batch_bytes, buffer_bytes, linger_ms)
        self._in_flight_max = whole_number(
            "in_flight_blocks", in_flight_blocks, 1, IN_FLIGHT_BLOCKS_MAX
        )
        self._is_idempotent = options.flag("idempotent", idempotent)
        if idempotent and in_flight_blocks > BLOCKS_REMEMBERED:
            raise ConfigError(
                f"in_flight_blocks {in_flight_blocks} is above {BLOCKS_REMEMBERED}, the blocks "
                "that a group remembers of an idempotent producer"
            )
        if not idempotent:
            _check_plain(producer_id, epoch, part)
        if producer_id is None:
            producer_id = secrets.randbits(63)
        self._producer_id = whole_number("producer_id", producer_id, 0, (1 << 64) - 1)
        self._epoch = whole_number("epoch", epoch, 0, (1 << 32) - 1)
        self._part = None if part is None else checked_part(part)
        lead_bytes = SESSION_ENTRY_SIZE if part is None else TRANSACTIONAL_ENTRY_SIZE
        self._lead_bytes = lead_bytes if idempotent else 0
        self._attempt = None if part is None else AttemptRecord(part)
        self._sequence = 0
        self._entry_bytes_max = limits.entry_bytes_max
        self._last_ordinal = limits.block_entries_max - 2  # of a block that has a session entry
        milliseconds = options.milliseconds
        self._request_timeout_s = (
            milliseconds("request_timeout_ms", request_timeout_ms, least=1) / 1000
        )
        self._timeout_s = milliseconds("delivery_timeout_ms", delivery_timeout_ms, least=1) / 1000
        self._retry_unknown = options.flag("retry_unknown", retry_unknown)
        self._channel = whole_number("channel", channel, 0, SYSTEM_CHANNEL - 1)
        self._process = MakingProcess("producer")
        self._open: OutgoingBlock | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._waiting: deque[OutgoingBlock] = deque()
        self._sent: deque[SentBlock] = deque()
        self._buffered = 0
        self._space = asyncio.Event()
        self._wake = asyncio.Event()
        self._error: RequestError | None = None
        self._lost = Undelivered(0, 0, 0, -1)
        self._is_ended = False  # nothing is taken any more: it has failed, or was closed
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._generator = random.Random()  # noqa: S311  (spreads retries; nothing secret)
        self.stats = ProducerStats()

    def _set_batches(self, batch_bytes: int | None, buffer_bytes: int, linger_ms: float) -> None:
        most = self._client.limits.block_bytes_max - TRANSACTIONAL_ENTRY_SIZE
        if batch_bytes is None:
            batch_bytes, grown_bytes = min(BATCH_BYTES, most), min(BATCH_BYTES_MAX, most)
        else:
            grown_bytes = whole_number("batch_bytes", batch_bytes, 1, most)
        whole_number("buffer_bytes", buffer_bytes, 1, BUFFER_BYTES_MAX)
        if buffer_bytes < batch_bytes:
            raise ConfigError(
                f"buffer_bytes {buffer_bytes} must be at least batch_bytes, {batch_bytes}"
            )
        self._batch_bytes, self._grown_bytes = batch_bytes, grown_bytes
        self._buffer_bytes = buffer_bytes
        self._linger_s = options.milliseconds("linger_ms", linger_ms) / 1000

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_told = kind is None or self._is_closed or self._error is not None
        await self.close(flush=kind is None)
        if kind is not None and not is_told and self._lost.count:
            logger.warning("a producer was left because of %s: %s", kind.__name__, self._lost)

    # -- taking entries ---------------------------------------------------------------------

    def send(self, body: Buffer) -> Coroutine[Any, Any, Delivery]:
        """Take one entry; waits only while the buffer is full.

        Raises `UnexpectedArgumentError` for a body that is none or above the limit, or the error
        that ended the producer.
        """
        return self._send(body if type(body) is bytes else as_bytes("body", body))

    async def _send(self, body: bytes) -> Delivery:
        self._process.check()
        if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
            await self._wait_for_space(HEADER_SIZE + len(body))
        return self._add(body, self._channel)

    def send_nowait(self, body: Buffer) -> Delivery:
        """Take one entry. Raises `LeaderPendingFullError` when the buffer is full, or as `send`."""
        self._process.check()
        raw = body if type(body) is bytes else as_bytes("body", body)
        if self._buffered + HEADER_SIZE + len(raw) > self._buffer_bytes:
            self._check(raw)
            raise LeaderPendingFullError(
                f"the producer's buffer of {self._buffer_bytes} bytes is full; await send instead"
            )
        return self._add(raw, self._channel)

    def send_batch(
        self, bodies: Iterable[Buffer], channels: Iterable[int] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Take many entries, waiting whenever the buffer is full; `flush` tells of errors.

        `channels`: one for each body; without, they go to the producer's. If one of a list cannot
        be taken, none is; of an iterator, those before it are. Raises as `send`.
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
                _check_channel(channel)
            if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
                await self._wait_for_space(HEADER_SIZE + len(body))
            self._add(body, channel)

    async def _wait_for_space(self, size: int) -> None:
        while self._buffered and self._buffered + size > self._buffer_bytes:
            self._raise_error()
            self._space.clear()
            if self._open is not None:
                self._open.is_due = True
                self._is_block_ready()
            await self._space.wait()

    def _check(self, body: bytes) -> None:
        """Raise what `send` would raise for a body, without taking it."""
        self._process.check()
        self._raise_error()
        if self._is_closed:
            raise not_delivered("the producer is closed")
        if HEADER_SIZE + len(body) > self._entry_bytes_max:
            raise UnexpectedArgumentError(
                f"a body of {len(body)} bytes is above {self._entry_bytes_max - HEADER_SIZE}"
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
            raise UnexpectedArgumentError(f"{len(numbers)} channels for {len(given)} bodies")
        for extreme in (min(numbers, default=0), max(numbers, default=0)):
            _check_channel(extreme)
        return given, numbers

    def _add(self, body: bytes, channel: int) -> Delivery:
        length = len(body)
        size = HEADER_SIZE + length
        if self._is_ended or size > self._entry_bytes_max:
            self._check(body)
        crc = crc32(body)
        try:
            header = HEADER.pack(_NORMAL, size, 0, 0, 0, channel, 0, crc, length)
        except struct.error:
            _check_channel(channel)
            raise
        if channel == SYSTEM_CHANNEL:
            _check_channel(channel)
        # nothing can be wrong with the entry from here on: what is refused changes nothing
        block = self._open
        if block is None or (
            block.size + size > self._batch_bytes and self._leaves_with(block.size + size - 1)
        ):
            block = self._next_block()
        block.parts += (header, body)
        block.crcs.append(crc)
        offsets = block.offsets
        ordinal = len(offsets)
        offsets.append(self._lead_bytes + block.size)
        block.size += size
        self._buffered += size
        if ordinal >= self._last_ordinal or (
            block.size >= self._batch_bytes and self._leaves_with(block.size)
        ):
            self._seal()
        return Delivery(block, ordinal)

    def _leaves_with(self, size: int) -> bool:
        """Whether a block of the least size to leave, or more, grows no further than this."""
        return size >= self._grown_bytes or self._has_slot()

    def _has_slot(self) -> bool:
        """Whether the next block could be sent at once."""
        return not self._waiting and len(self._sent) < self._in_flight_max

    def _next_block(self) -> OutgoingBlock:
        loop = asyncio.get_running_loop()
        self._seal()
        deadline = loop.time() + self._timeout_s
        block = self._open = OutgoingBlock(deadline, int(self._is_idempotent))
        self._linger = loop.call_later(self._linger_s, self._linger_over)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quorumlog producer")
            self._task.add_done_callback(self._run_ended)
        return block

    def _linger_over(self) -> None:
        self._linger = None
        if self._open is not None:
            self._open.is_due = True
            self._is_block_ready()

    def _is_block_ready(self) -> bool:
        """Whether a block waits to be sent; an open one does so once it is due and can leave."""
        block = self._open
        if (
            block is not None
            and (block.is_due or block.size >= self._batch_bytes)
            and self._has_slot()
        ):
            self._seal()
        return bool(self._waiting)

    def _seal(self) -> None:
        """Let the open block go."""
        block, self._open = self._open, None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if block is not None:
            self.stats.entries_sent += block.count
            self.stats.bytes_sent += block.size
            block.first_sequence = self._sequence
            self._sequence += block.count
            if self._attempt is not None:
                self._attempt.sealed(block)
            self._waiting.append(block)
            self._wake.set()

    async def flush(self) -> None:
        """Wait until everything taken so far is acknowledged. Raises the error that ended it."""
        self._process.check()
        self._seal()
        unresolved = [sent.block.future for sent in self._sent]
        unresolved += [block.future for block in self._waiting]
        if unresolved:
            await asyncio.wait(unresolved)
        self._raise_error()

    async def close(self, *, flush: bool = True) -> None:
        """Flush (unless told not to) and end. Raises the error that ended the producer.

        What was not delivered by then fails, as does every later `send`. In a forked child nothing
        is done, which is an error if it should flush: what was sent is for the parent to deliver.
        """
        if flush:
            self._process.check()
        if self._is_closed or not self._process.is_this:
            return
        self._is_closed = self._is_ended = True
        try:
            if flush:
                await self.flush()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            if self._error is None:
                self._fail(not_delivered("the producer is closed"))
            if self._owns_client:
                await self._client.close()

    def attempt(self) -> AcceptedAttempt | None:
        """Return what was stored of a part of a transaction; None: nothing was sent.

        Raises `UnexpectedArgumentError` before all that was sent is stored: call `flush` first.
        """
        require_flushed(self.undelivered())
        return None if self._attempt is None else self._attempt.accepted(self._producer_id)

    def undelivered(self, queued: int = 0) -> Undelivered:
        """Return what was taken and is not known to be stored.

        `queued`: entries that the caller keeps, to be taken next.
        """
        if self._error is not None:
            lost = self._lost
            if not queued:
                return lost
            first = lost.first if lost.count else self._sequence
            return Undelivered(
                lost.count + queued, lost.unknown, first, self._sequence + queued - 1
            )
        blocks, begun = self._unresolved(), 0
        if self._open is not None:  # it gets its number when it leaves
            begun = self._open.count
        return undelivered_of(blocks, self._sequence, begun + queued)

    def _unresolved(self) -> list[tuple[OutgoingBlock, bool]]:
        """Return the blocks that are not acknowledged, in order, and whether each may be stored."""
        under_way = list(self._sent)
        found = zip(under_way, doubtful(under_way), strict=True)
        blocks = [(sent.block, is_unknown) for sent, is_unknown in found]
        return blocks + [(block, block.is_in_doubt) for block in list(self._waiting)]

    def failure(self, queued: int = 0) -> RequestError | None:
        """Return the error that ended it, with what was not delivered (see `undelivered`)."""
        if self._error is None:
            return None
        return with_undelivered(self._error, self.undelivered(queued))

    def _raise_error(self) -> None:
        failure = self.failure()
        if failure is not None:
            raise failure

    # -- sending ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """One session with a leader after the other, until the producer is closed or fails."""
        backoff = Backoff(self._generator)
        while self._error is None:
            while not self._sent and not self._is_block_ready():
                self._wake.clear()
                await self._wake.wait()
            connection: ServerConnection | None = None
            acknowledged = self.stats.blocks_acknowledged
            try:
                leader = await self._client._requester.metadata.leader()
                connection = await self._client._requester.metadata.open(leader.address)
                await self._session(connection)
            except _Ended:
                pass
            except RequestError as error:
                if not error.retriable:
                    self._fail(error)
            finally:
                self._requeue_unacked()
                if connection is not None:
                    connection.close()
            if self.stats.blocks_acknowledged > acknowledged:
                backoff = Backoff(self._generator)
            self._expire()
            await asyncio.sleep(backoff.next_pause_s())

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        """Nothing is sent any more: unless that was asked for, nobody may wait for it."""
        if self._is_closed:
            return
        if task.cancelled():
            self._fail(RequestError("the producer's event loop ended before it was closed"))
            if self._lost.count:
                logger.error("a producer was not closed before its loop ended: %s", self._lost)
        elif (error := task.exception()) is not None:
            failure = RequestError(f"the producer failed: {describe_error(error)}")
            failure.__cause__ = error
            self._fail(failure)

    async def _session(self, connection: ServerConnection) -> None:
        """Send blocks to one leader until something ends it."""
        sequence = 0
        backoff = Backoff(self._generator)
        while True:
            is_taking = True  # until the connection has more unsent than it may
            while is_taking and self._can_send_more():
                is_taking = self._transmit(connection, sequence)
                sequence += is_taking
            while self._sent and self._sent[0].answer.done():
                if self._resolve_first(connection):
                    backoff = Backoff(self._generator)
                    continue
                error = self._sent[0].error()
                sequence = await self._resend_rejected()
                if error is not None and error.refresh_leader:
                    raise _Ended
                await asyncio.sleep(backoff.next_pause_s())
            if self._error is not None or self._expire() or self._is_silent(connection):
                raise _Ended
            room = is_taking and self._can_send_more()
            ready = self._sent and self._sent[0].answer.done()
            if not room and not ready:
                await self._pause()

    def _can_send_more(self) -> bool:
        return len(self._sent) < self._in_flight_max and self._is_block_ready()

    async def _pause(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(EXPIRY_CHECK_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _transmit(self, connection: ServerConnection, sequence: int) -> bool:
        """Send the block that waits longest; return False if the connection takes no more now."""
        block = self._waiting[0]
        if len(block.parts) > 1:
            block.parts = [b"".join([*self._session_entry(block), *block.parts])]
        request = AppendRequest(
            group=self._client.group,
            count=block.lead + block.count,
            stream=_STREAM,
            sequence=sequence,
        )
        try:
            answer = connection.request(request, block.parts)
        except LeaderPendingFullError:
            return False
        except RequestError as error:
            raise _Ended from error
        self._waiting.popleft()
        answer.add_done_callback(lambda _: self._wake.set())
        now = asyncio.get_running_loop().time()
        self._sent.append(SentBlock(block, sequence, now, answer))
        return True

    def _session_entry(self, block: OutgoingBlock) -> list[bytes]:
        if not block.lead:
            return []
        entry = SessionEntry(
            self._producer_id,
            self._epoch,
            block.first_sequence,
            block.count,
            crc_of(block.crcs),
            part=self._part,
        )
        return [entry.encode()]

    def _is_silent(self, connection: ServerConnection) -> bool:
        """Whether the leader has not answered for too long; then somebody else is asked for it."""
        now = asyncio.get_running_loop().time()
        if not self._sent or now - self._sent[0].sent_at < self._request_timeout_s:
            return False
        self._client._requester.metadata.forget_leader(connection.address)
        return True

    def _resolve_first(self, connection: ServerConnection) -> bool:
        """Take the oldest answer; return whether the session can simply go on."""
        sent = self._sent[0]
        error = sent.error()
        if error is None:
            self._sent.popleft()
            self._acknowledged(sent)
            return True
        if error.refresh_leader:
            self._client._requester.metadata.redirect(error.leader_id, away_from=connection.address)
        unknown = error.outcome is Outcome.UNKNOWN
        if not error.retriable or (unknown and not self._retry_unknown):
            self._fail(error)
            raise _Ended
        if unknown:
            raise _Ended
        return False

    async def _resend_rejected(self) -> int:
        """The oldest block was refused (and so those behind it): send them again, in order.

        Returns the sequence the server expects next.
        """
        expected = self._sent[0].sequence
        answers = [sent.answer for sent in self._sent]
        _, missing = await asyncio.wait(answers, timeout=self._request_timeout_s)
        errors = [] if missing else [sent.error() for sent in self._sent]
        if missing or any(error and error.outcome is Outcome.UNKNOWN for error in errors):
            raise _Ended
        self._requeue_unacked()
        return expected

    def _requeue_unacked(self) -> None:
        """Queue everything unresolved again, in order; what was acknowledged meanwhile is done.

        Without `retry_unknown` a block of unknown fate ends the producer instead.
        """
        again: list[OutgoingBlock] = []
        unknown: RequestError | None = None
        for sent in self._sent:
            if not sent.answer.done():
                sent.answer.cancel()
            error = sent.error()
            if error is None:
                self._acknowledged(sent)
                continue
            again.append(sent.block)
            if error.outcome is Outcome.UNKNOWN:
                unknown = unknown or error
                sent.block.is_in_doubt = True
                self.stats.blocks_resent_after_unknown += 1
                self.stats.entries_resent_after_unknown += sent.block.count
            else:
                self.stats.blocks_resent_after_refusal += 1
        self._sent.clear()
        self._waiting.extendleft(reversed(again))
        if unknown is not None and not self._retry_unknown and self._error is None:
            self._fail(unknown)

    def _acknowledged(self, sent: SentBlock) -> None:
        response = sent.answer.result().response
        if isinstance(response, AppendResponse):  # `SentBlock.error` has made sure
            block = sent.block
            self.stats.entries_acknowledged += block.count
            self.stats.bytes_acknowledged += block.size
            self.stats.blocks_acknowledged += 1
            if self._attempt is not None:
                self._attempt.stored(response)
            self._release(block)
            block.future.set_result(response)

    def _release(self, block: OutgoingBlock) -> None:
        block.parts = []
        self._buffered -= block.size
        self._space.set()

    def _expire(self) -> bool:
        """Fail if the oldest block was not delivered in time; return whether it did."""
        oldest = self._sent[0].block if self._sent else self._waiting[0] if self._waiting else None
        if oldest is None or asyncio.get_running_loop().time() < oldest.deadline:
            return False
        self._fail(
            DeadlineExceededError(
                f"not delivered to {self._client.group} within {self._timeout_s:g} s"
            )
        )
        return True

    def _fail(self, error: RequestError) -> None:
        """Order cannot be kept beyond a lost block: everything unresolved fails with it."""
        if self._error is not None:
            return
        self._seal()
        unresolved = self._unresolved()
        self._lost = undelivered_of(unresolved, self._sequence, 0)
        self._error = error
        self._is_ended = True
        for block, is_unknown in unresolved:
            self._release(block)
            own = with_undelivered(error, self._lost)
            own.outcome = Outcome.UNKNOWN if is_unknown else Outcome.DID_NOT_HAPPEN
            block.future.set_exception(own)
        for sent in self._sent:
            sent.answer.cancel()
        self._sent.clear()
        self._waiting.clear()
        self._space.set()


def _client_of(client: Client | str | Sequence[str], group: str | UnsetType) -> Client:
    """Return the client that a producer was given, or a new one."""
    if not isinstance(client, Client):
        return Client(client, "default" if isinstance(group, UnsetType) else group)
    if group is not UNSET and group != client.group:
        raise ConfigError(
            f"the client given is of group {client.group!r}, not {group!r}; give a client of that "
            "group, or servers"
        )
    return client


def _check_plain(producer_id: object, epoch: object, part: object) -> None:
    """Raise `ConfigError` if a producer that is not idempotent is given what only those have."""
    if part is not None:
        raise ConfigError("a part of a transaction is written by an idempotent producer")
    if producer_id is not None or epoch != 0:
        raise ConfigError(
            "producer_id and epoch are those of an idempotent producer; with idempotent=False "
            "nothing bears them"
        )


def _index(channel: Any) -> int:
    """Return a whole number of any type. Raises `TypeError` for others, True and False too."""
    if isinstance(channel, bool):
        raise TypeError(f"not {channel}")
    return operator.index(channel)


def _check_channel(channel: int) -> None:
    whole_number("channel", channel, 0, SYSTEM_CHANNEL - 1, kind=UnexpectedArgumentError)


def checked_part(part: TransactionPart) -> TransactionPart:
    """Return a part of a transaction. Raises `ConfigError` for one that cannot be."""
    if not isinstance(part, TransactionPart):
        raise ConfigError(f"part is a TransactionPart, not {part!r}")
    if not isinstance(part.transactional_id, bytes) or len(part.transactional_id) != ID_SIZE:
        raise ConfigError(f"a transactional id has {ID_SIZE} bytes, not {part.transactional_id!r}")
    whole_number("epoch", part.epoch, 0, (1 << 32) - 1)
    whole_number("batch_id", part.batch_id, 0, (1 << 64) - 1)
    whole_number("partition", part.partition, 0, (1 << 32) - 1)
    return part
