"""The producer: many entries to one group, in order, in blocks, with bounded memory."""

import asyncio
import itertools
import random
import struct
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from isal.isal_zlib import crc32

from quorumlog.client.client import Client
from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.retry import Backoff
from quorumlog.client.values import Appended, position_at
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.codes import Magic, ResponseCode
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LeaderPendingFullError,
    NetworkError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.message import AppendRequest, AppendResponse

_HEADER = struct.Struct(">iiqqqIIIi")
_NORMAL = int(Magic.NORMAL)
_STREAM = 1
CONNECT_TIMEOUT_S = 1.5
EXPIRY_CHECK_S = 0.25
"""How often blocks are checked for their delivery time-out while nothing else happens."""


@dataclass(slots=True)
class ProducerStats:
    """Totals since the producer was made."""

    entries_sent: int = 0
    bytes_sent: int = 0
    entries_acknowledged: int = 0
    bytes_acknowledged: int = 0
    blocks_acknowledged: int = 0
    blocks_resent_after_refusal: int = 0
    blocks_resent_after_unknown: int = 0
    entries_resent_after_unknown: int = 0
    """Entries that may be in the log twice."""


class _Block:
    """Entries that travel together, and one future for all of them."""

    __slots__ = ("deadline", "future", "number", "parts", "size", "sizes", "tries")

    def __init__(self, number: int, deadline: float) -> None:
        self.number = number
        self.deadline = deadline
        self.parts: list[Buffer] = []
        self.sizes: list[int] = []
        self.size = 0
        self.tries = 0
        self.future: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(_seen)


def _seen(future: "asyncio.Future[AppendResponse]") -> None:
    """Errors also surface on flush and the next send, so one nobody awaits is not lost."""
    if not future.cancelled():
        future.exception()


class Delivery:
    """Resolves, when awaited, with where the entry went, or raises why it did not."""

    __slots__ = ("_block", "_ordinal")

    def __init__(self, block: _Block, ordinal: int) -> None:
        self._block = block
        self._ordinal = ordinal

    def __await__(self) -> Generator[Any, None, Appended]:
        response = yield from asyncio.shield(self._block.future).__await__()
        position = position_at(response, self._block.sizes, self._ordinal)
        return Appended(response.first_index + self._ordinal, response.term, position)

    def done(self) -> bool:
        """Whether awaiting it will return at once."""
        return self._block.future.done()


@dataclass(slots=True)
class _Sent:
    block: _Block
    sequence: int
    answer: "asyncio.Future[Answer]"


class _Ended(Exception):  # noqa: N818  (never leaves this module: a session is over)
    """The session with this leader is over; what is unresolved goes to the next one."""


class Producer:
    """Appends to one group with batching; entries are stored in the order of `send`.

    A block leaves when it has `batch_bytes` or its first entry has waited `linger_ms`; up to
    `in_flight_blocks` are unanswered at a time; `buffer_bytes` bounds what is held in memory.
    Refused blocks and (with `retry_unknown`) blocks of unknown fate are sent again until
    `delivery_timeout_ms`; the latter may be stored twice and are counted in `stats`. After an error
    that cannot be retried every unresolved and later entry fails with it.
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
        delivery_timeout_ms: int = 30_000,
        retry_unknown: bool = True,
        channel: int = 0,
    ) -> None:
        self._owns_client = not isinstance(client, Client)
        if isinstance(client, Client):
            self._client = client
        else:
            self._client = Client(client, group or "default")
        limits = self._client.limits
        if not 0 < batch_bytes <= limits.block_bytes_max or buffer_bytes < batch_bytes:
            raise ConfigError(
                f"batch_bytes {batch_bytes} must be between 1 and {limits.block_bytes_max}, and "
                f"buffer_bytes {buffer_bytes} at least as much"
            )
        self._limits = limits
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._buffer_bytes = buffer_bytes
        self._in_flight_max = in_flight_blocks
        self._timeout_s = delivery_timeout_ms / 1000
        self._retry_unknown = retry_unknown
        self._channel = channel
        self._numbers = itertools.count()
        self._open: _Block | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._waiting: deque[_Block] = deque()
        self._sent: deque[_Sent] = deque()
        self._buffered = 0
        self._space = asyncio.Event()
        self._wake = asyncio.Event()
        self._error: RequestError | None = None
        self._task: asyncio.Task[None] | None = None
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

    async def send_batch(self, bodies: Iterable[Buffer]) -> None:
        """Take many entries, waiting whenever the buffer is full; `flush` tells of errors."""
        for body in bodies:
            if self._buffered + HEADER_SIZE + len(body) > self._buffer_bytes:
                await self._wait_for_space(HEADER_SIZE + len(body))
            self._add(body)

    async def _wait_for_space(self, size: int) -> None:
        while self._buffered and self._buffered + size > self._buffer_bytes:
            self._raise_error()
            self._space.clear()
            self._seal()
            await self._space.wait()

    def _add(self, body: Buffer) -> Delivery:
        if self._error is not None:
            self._raise_error()
        length = len(body)
        size = HEADER_SIZE + length
        if size > self._limits.entry_bytes_max:
            raise UnexpectedArgumentError(
                f"a body of {length} bytes is above {self._limits.entry_bytes_max - HEADER_SIZE}"
            )
        block = self._open
        if block is None or block.size + size > self._batch_bytes:
            block = self._next_block()
        block.parts.append(
            _HEADER.pack(_NORMAL, size, 0, 0, 0, self._channel, 0, crc32(body), length)
        )
        block.parts.append(body)
        block.sizes.append(length)
        block.size += size
        self._buffered += size
        if block.size >= self._batch_bytes or len(block.sizes) >= self._limits.block_entries_max:
            self._seal()
        return Delivery(block, len(block.sizes) - 1)

    def _next_block(self) -> _Block:
        self._seal()
        loop = asyncio.get_running_loop()
        block = self._open = _Block(next(self._numbers), loop.time() + self._timeout_s)
        self._linger = loop.call_later(self._linger_s, self._seal)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quorumlog producer")
        return block

    def _seal(self) -> None:
        """Let the open block go."""
        block, self._open = self._open, None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if block is not None:
            self.stats.entries_sent += len(block.sizes)
            self.stats.bytes_sent += block.size
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
        """Flush (unless told not to) and end. Raises the error that ended the producer."""
        try:
            if flush:
                await self.flush()
        finally:
            if self._linger is not None:
                self._linger.cancel()
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            if self._owns_client:
                await self._client.close()

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
                connection = ServerConnection(leader.address, "", self._limits)
                await connection.open(CONNECT_TIMEOUT_S)
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

    async def _session(self, connection: ServerConnection) -> None:
        """Send blocks to one leader until something ends it."""
        sequence = 0
        backoff = Backoff(self._generator)
        while True:
            while self._waiting and len(self._sent) < self._in_flight_max:
                self._transmit(connection, self._waiting.popleft(), sequence)
                sequence += 1
            while self._sent and self._sent[0].answer.done():
                if self._resolve_first(connection):
                    backoff = Backoff(self._generator)
                    continue
                sequence = await self._after_refusal(connection)
                await asyncio.sleep(backoff.next_pause_s())
            if self._error is not None or self._expire():
                raise _Ended
            room = self._waiting and len(self._sent) < self._in_flight_max
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

    def _transmit(self, connection: ServerConnection, block: _Block, sequence: int) -> None:
        if len(block.parts) > 1:
            block.parts = [b"".join(block.parts)]
        block.tries += 1
        request = AppendRequest(
            group=self._client.group,
            count=len(block.sizes),
            stream=_STREAM,
            sequence=sequence,
        )
        try:
            answer = connection.request(request, block.parts)
        except RequestError as error:
            self._waiting.appendleft(block)
            raise _Ended from error
        answer.add_done_callback(lambda _: self._wake.set())
        self._sent.append(_Sent(block, sequence, answer))

    def _resolve_first(self, connection: ServerConnection) -> bool:
        """Take the oldest answer; return whether the session can simply go on."""
        sent = self._sent[0]
        error = _error_of(sent.answer)
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
        if unknown or error.refresh_leader:
            raise _Ended
        return False

    async def _after_refusal(self, connection: ServerConnection) -> int:
        """The oldest block was refused (and so those behind it): send them again, in order.

        Returns the sequence the server expects next.
        """
        expected = self._sent[0].sequence
        await asyncio.wait([sent.answer for sent in self._sent])
        for sent in self._sent:
            error = _error_of(sent.answer)
            if error is not None and error.outcome is Outcome.UNKNOWN:
                raise _Ended
        self._take_back()
        return expected

    def _take_back(self) -> None:
        """Queue everything unresolved again, in order; what was acknowledged meanwhile is done.

        Without `retry_unknown` a block of unknown fate ends the producer instead.
        """
        again: list[_Block] = []
        unknown: RequestError | None = None
        for sent in self._sent:
            if not sent.answer.done():
                sent.answer.cancel()
            error = _error_of(sent.answer)
            if error is None:
                self._acknowledged(sent)
                continue
            again.append(sent.block)
            if error.outcome is Outcome.UNKNOWN:
                unknown = unknown or error
                self.stats.blocks_resent_after_unknown += 1
                self.stats.entries_resent_after_unknown += len(sent.block.sizes)
            else:
                self.stats.blocks_resent_after_refusal += 1
        self._sent.clear()
        self._waiting.extendleft(reversed(again))
        if unknown is not None and not self._retry_unknown and self._error is None:
            self._fail(unknown)

    def _acknowledged(self, sent: _Sent) -> None:
        response = sent.answer.result().response
        if isinstance(response, AppendResponse):
            block = sent.block
            self.stats.entries_acknowledged += len(block.sizes)
            self.stats.bytes_acknowledged += block.size
            self.stats.blocks_acknowledged += 1
            self._release(block)
            block.future.set_result(response)

    def _release(self, block: _Block) -> None:
        block.parts = []
        self._buffered -= block.size
        self._space.set()

    def _expire(self) -> bool:
        """Fail if the oldest block was not delivered in time; return whether it did."""
        oldest = self._sent[0].block if self._sent else self._waiting[0] if self._waiting else None
        if oldest is None or asyncio.get_running_loop().time() < oldest.deadline:
            return False
        text = f"not delivered to {self._client.group} within {self._timeout_s:g} s"
        error = DeadlineExceededError(f"{text}; {'it may have happened' if oldest.tries else ''}")
        if not oldest.tries:
            error.outcome = Outcome.DID_NOT_HAPPEN
        self._fail(error)
        return True

    def _fail(self, error: RequestError) -> None:
        """Order cannot be kept beyond a lost block: everything unresolved fails with it."""
        self._error = error
        self._seal()
        for block in [*(sent.block for sent in self._sent), *self._waiting]:
            self._release(block)
            if not block.future.done():
                block.future.set_exception(error)
        for sent in self._sent:
            sent.answer.cancel()
        self._sent.clear()
        self._waiting.clear()
        self._space.set()


def _error_of(answer: "asyncio.Future[Answer]") -> RequestError | None:
    """Return what an answer says went wrong, or None."""
    if answer.cancelled():
        return NetworkError("the connection ended before the answer came")
    failed = answer.exception()
    if isinstance(failed, RequestError):
        return failed
    if failed is not None:
        return NetworkError(f"no answer: {failed!r}")
    response = answer.result().response
    if response.code == ResponseCode.SUCCESS:
        return None
    return error_for(response.code, response.text, response.leader_id)
