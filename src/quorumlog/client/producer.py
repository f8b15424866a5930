"""The producer: many entries to one group, in order, in blocks, with bounded memory."""

import asyncio
import random
import secrets
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from types import TracebackType

from isal.isal_zlib import crc32

from quorumlog.client.client import Client
from quorumlog.client.connection import ServerConnection
from quorumlog.client.delivery import (
    AttemptRecord,
    Delivery,
    OutgoingBlock,
    ProducerStats,
    SentBlock,
    not_delivered,
)
from quorumlog.client.retry import Backoff
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.codes import Magic
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LeaderPendingFullError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
)
from quorumlog.model.log_lines import described
from quorumlog.model.message import AppendRequest, AppendResponse
from quorumlog.model.session import BLOCKS_REMEMBERED
from quorumlog.model.system_entry import (
    SESSION_ENTRY_SIZE,
    TRANSACTIONAL_ENTRY_SIZE,
    AcceptedAttempt,
    SessionEntry,
    TransactionPart,
    crc_of,
)

_HEADER = struct.Struct(">iiqqqIIIi")
_NORMAL = int(Magic.NORMAL)
_STREAM = 1
EXPIRY_CHECK_S = 0.25
"""How often blocks are checked for their delivery time-out while nothing else happens."""


class _Ended(Exception):  # noqa: N818  (never leaves this module: a session is over)
    """The session with this leader is over; what is unresolved goes to the next one."""


class Producer:
    """Appends to one group with batching; entries are stored in the order of `send`.

    A block leaves when it has `batch_bytes` or its first entry has waited `linger_ms`; up to
    `in_flight_blocks` are unanswered at a time; `buffer_bytes` bounds what is held in memory.
    Refused blocks and (with `retry_unknown`) those of unknown fate are sent again until
    `delivery_timeout_ms`. Being `idempotent`, a producer numbers its blocks and has them stored
    once, however often they are sent; without it those of unknown fate, counted in `stats`, may be
    stored twice. The fate of a block is unknown too when its leader says nothing for
    `request_timeout_ms`. After an error that cannot be retried all unresolved and later ones fail.
    A `producer_id` of the caller's, with an `epoch` higher than any before, takes over from
    producers of that id: what those send from then on is refused (`ProducerFencedError`). With a
    `part` the entries belong to a transaction (see `Transactions`).
    """

    def __init__(  # noqa: PLR0913  (named options of a public door)
        self,
        client: Client | str | Sequence[str],
        group: str | None = None,
        *,
        batch_bytes: int = 256 * 1024,
        linger_ms: float = 5,
        buffer_bytes: int = 32 * 1024 * 1024,
        in_flight_blocks: int = 8,
        request_timeout_ms: int = 5_000,
        delivery_timeout_ms: int = 30_000,
        retry_unknown: bool = True,
        channel: int = 0,
        idempotent: bool = True,
        producer_id: int | None = None,
        epoch: int = 0,
        part: TransactionPart | None = None,
    ) -> None:
        self._owns_client = not isinstance(client, Client)
        if isinstance(client, Client):
            self._client = client
        else:
            self._client = Client(client, group or "default")
        limits = self._client.limits
        batch_bytes_max = limits.block_bytes_max - TRANSACTIONAL_ENTRY_SIZE
        if not 0 < batch_bytes <= batch_bytes_max or buffer_bytes < batch_bytes:
            raise ConfigError(
                f"batch_bytes {batch_bytes} must be between 1 and {batch_bytes_max}, and "
                f"buffer_bytes {buffer_bytes} at least as much"
            )
        if idempotent and in_flight_blocks > BLOCKS_REMEMBERED:
            raise ConfigError(
                f"in_flight_blocks {in_flight_blocks} is above {BLOCKS_REMEMBERED}, the blocks "
                "that a group remembers of an idempotent producer"
            )
        if not 0 <= (producer_id or 0) < 1 << 64 or not 0 <= epoch < 1 << 32:
            raise ConfigError("producer_id must fit 64 bits and epoch 32, neither below 0")
        if part is not None and not idempotent:
            raise ConfigError("a part of a transaction is written by an idempotent producer")
        self._is_idempotent = idempotent
        self._part = part
        lead_bytes = SESSION_ENTRY_SIZE if part is None else TRANSACTIONAL_ENTRY_SIZE
        self._lead_bytes = lead_bytes if idempotent else 0
        self._attempt = None if part is None else AttemptRecord(part)
        self._producer_id = secrets.randbits(63) if producer_id is None else producer_id
        self._epoch = epoch
        self._sequence = 0
        self._entry_bytes_max = limits.entry_bytes_max
        self._last_ordinal = limits.block_entries_max - 2  # of a block that has a session entry
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._buffer_bytes = buffer_bytes
        self._in_flight_max = in_flight_blocks
        self._request_timeout_s = request_timeout_ms / 1000
        self._timeout_s = delivery_timeout_ms / 1000
        self._retry_unknown = retry_unknown
        self._channel = channel
        self._open: OutgoingBlock | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._waiting: deque[OutgoingBlock] = deque()
        self._sent: deque[SentBlock] = deque()
        self._buffered = 0
        self._space = asyncio.Event()
        self._wake = asyncio.Event()
        self._error: RequestError | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._generator = random.Random()  # noqa: S311  (spreads retries; nothing secret)
        self.stats = ProducerStats()

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    # -- taking entries ---------------------------------------------------------------------

    async def send(self, body: Buffer) -> Delivery:
        """Take one entry; waits only while the buffer is full.

        Raises `UnexpectedArgumentError` for a body above the limit, or the error that ended the
        producer.
        """
        if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
            await self._wait_for_space(HEADER_SIZE + len(body))
        return self._add(body)

    def send_nowait(self, body: Buffer) -> Delivery:
        """Take one entry. Raises `LeaderPendingFullError` when the buffer is full."""
        if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
            raise LeaderPendingFullError(
                f"the producer's buffer of {self._buffer_bytes} bytes is full; await send instead"
            )
        return self._add(body)

    async def send_batch(
        self, bodies: Iterable[Buffer], channels: Iterable[int] | None = None
    ) -> None:
        """Take many entries, waiting whenever the buffer is full; `flush` tells of errors.

        `channels`: one for each body; without, they go to the producer's.
        """
        each = repeat(None) if channels is None else channels
        for body, channel in zip(bodies, each, strict=channels is not None):
            if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
                await self._wait_for_space(HEADER_SIZE + len(body))
            self._add(body, channel)

    async def _wait_for_space(self, size: int) -> None:
        while self._buffered and self._buffered + size > self._buffer_bytes:
            self._raise_error()
            self._space.clear()
            self._seal()
            await self._space.wait()

    def check(self, body: Buffer) -> None:
        """Raise what `send` would raise for a body, without taking it."""
        if self._error is not None:
            raise self._error
        if HEADER_SIZE + len(body) > self._entry_bytes_max:
            raise UnexpectedArgumentError(
                f"a body of {len(body)} bytes is above {self._entry_bytes_max - HEADER_SIZE}"
            )

    def _add(self, body: Buffer, channel: int | None = None) -> Delivery:
        length = len(body)
        size = HEADER_SIZE + length
        if self._error is not None or size > self._entry_bytes_max:
            self.check(body)
        block = self._open
        if block is None or block.size + size > self._batch_bytes:
            block = self._next_block()
        crc = crc32(body)
        to = self._channel if channel is None else channel
        block.parts += (_HEADER.pack(_NORMAL, size, 0, 0, 0, to, 0, crc, length), body)
        block.crcs.append(crc)
        offsets = block.offsets
        ordinal = len(offsets)
        offsets.append(self._lead_bytes + block.size)
        block.size += size
        self._buffered += size
        if block.size >= self._batch_bytes or ordinal >= self._last_ordinal:
            self._seal()
        return Delivery(block, ordinal)

    def _next_block(self) -> OutgoingBlock:
        self._seal()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        block = self._open = OutgoingBlock(deadline, int(self._is_idempotent))
        self._linger = loop.call_later(self._linger_s, self._seal)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quorumlog producer")
            self._task.add_done_callback(self._run_ended)
        return block

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
        self._seal()
        unresolved = [sent.block.future for sent in self._sent]
        unresolved += [block.future for block in self._waiting]
        if unresolved:
            await asyncio.wait(unresolved)
        self._raise_error()

    async def close(self, *, flush: bool = True) -> None:
        """Flush (unless told not to) and end. Raises the error that ended the producer.

        What was not delivered by then fails, as does every later `send`.
        """
        if self._is_closed:
            return
        self._is_closed = True
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
        """Return what was stored of a part of a transaction, once all is flushed; None: nothing."""
        return None if self._attempt is None else self._attempt.accepted(self._producer_id)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- sending ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """One session with a leader after the other, until the producer is closed or fails."""
        backoff = Backoff(self._generator)
        while self._error is None:
            while not self._waiting and not self._sent:
                self._wake.clear()
                await self._wake.wait()
            connection: ServerConnection | None = None
            acknowledged = self.stats.blocks_acknowledged
            try:
                leader = await self._client.view.leader()
                connection = await self._client.view.open(leader.address)
                await self._session(connection)
            except _Ended:
                pass
            except RequestError as error:
                if not error.retriable:
                    self._fail(error)
            finally:
                self._take_back()
                if connection is not None:
                    connection.close()
            if self.stats.blocks_acknowledged > acknowledged:
                backoff = Backoff(self._generator)
            self._expire()
            await asyncio.sleep(backoff.next_pause_s())

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        """Nothing is sent any more: if that is our own mistake, nobody may wait for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = RequestError(f"the producer failed: {described(error)}")
            failure.__cause__ = error
            self._fail(failure)

    async def _session(self, connection: ServerConnection) -> None:
        """Send blocks to one leader until something ends it."""
        sequence = 0
        backoff = Backoff(self._generator)
        while True:
            is_taking = True  # until the connection has more unsent than it may
            while is_taking and self._waiting and len(self._sent) < self._in_flight_max:
                is_taking = self._transmit(connection, sequence)
                sequence += is_taking
            while self._sent and self._sent[0].answer.done():
                if self._resolve_first(connection):
                    backoff = Backoff(self._generator)
                    continue
                error = self._sent[0].error()
                sequence = await self._after_refusal()
                if error is not None and error.refresh_leader:
                    raise _Ended
                await asyncio.sleep(backoff.next_pause_s())
            if self._error is not None or self._expire() or self._is_silent(connection):
                raise _Ended
            room = is_taking and self._waiting and len(self._sent) < self._in_flight_max
            ready = self._sent and self._sent[0].answer.done()
            if not room and not ready:
                await self._pause()

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
        self._client.view.forget_leader(connection.address)
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
            self._client.view.redirect(error.leader_id, away_from=connection.address)
        unknown = error.outcome is Outcome.UNKNOWN
        if not error.retriable or (unknown and not self._retry_unknown):
            self._fail(error)
            raise _Ended
        if unknown:
            raise _Ended
        return False

    async def _after_refusal(self) -> int:
        """The oldest block was refused (and so those behind it): send them again, in order.

        Returns the sequence the server expects next.
        """
        expected = self._sent[0].sequence
        answers = [sent.answer for sent in self._sent]
        _, missing = await asyncio.wait(answers, timeout=self._request_timeout_s)
        errors = [] if missing else [sent.error() for sent in self._sent]
        if missing or any(error and error.outcome is Outcome.UNKNOWN for error in errors):
            raise _Ended
        self._take_back()
        return expected

    def _take_back(self) -> None:
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
        error = DeadlineExceededError(
            f"not delivered to {self._client.group} within {self._timeout_s:g} s"
        )
        if not self._sent:
            error.outcome = Outcome.DID_NOT_HAPPEN
        self._fail(error)
        return True

    def _fail(self, error: RequestError) -> None:
        """Order cannot be kept beyond a lost block: everything unresolved fails with it."""
        self._seal()
        unresolved = [*(sent.block for sent in self._sent), *self._waiting]
        if any(block.is_in_doubt for block in unresolved):
            error.outcome = Outcome.UNKNOWN
        self._error = error
        for block in unresolved:
            self._release(block)
            block.future.set_exception(error)
        for sent in self._sent:
            sent.answer.cancel()
        self._sent.clear()
        self._waiting.clear()
        self._space.set()
