"""Sends the blocks of a producer to the leader: in order, several under way at a time."""

import asyncio
import logging
import random
from collections import deque

from quorumlog.client.accumulator import Accumulator
from quorumlog.client.connection import ServerConnection
from quorumlog.client.delivery import (
    AttemptRecord,
    OutgoingBlock,
    ProducerStats,
    SentBlock,
    doubtful,
    undelivered_of,
    with_undelivered,
)
from quorumlog.client.metadata import Metadata
from quorumlog.client.producer_options import ProducerSettings
from quorumlog.client.retry import Backoff
from quorumlog.log_events import describe_error
from quorumlog.model.errors import (
    AllAckTimeoutError,
    DeadlineExceededError,
    LeaderPendingFullError,
    Outcome,
    RequestError,
    Undelivered,
)
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.sessions.entries import SessionEntry, crc_of

logger = logging.getLogger(__name__)

_STREAM = 1
EXPIRY_CHECK_S = 0.25
"""How often blocks are checked for their delivery timeout while nothing else happens."""


class SessionClosed(Exception):  # noqa: N818  (caught in this module)
    """The session with this leader is over; unresolved blocks go to the next one."""


class Sender:
    """Sends what its `Accumulator` holds, in one session with a leader after the other.

    A session is one connection, on which the leader appends blocks in the order of their sequence
    numbers. After an error that cannot be retried everything unresolved fails.
    """

    def __init__(
        self,
        metadata: Metadata,
        settings: ProducerSettings,
        accumulator: Accumulator,
        stats: ProducerStats,
        attempt: AttemptRecord | None,
        sent: deque[SentBlock],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._accumulator = accumulator
        self._stats = stats
        self._attempt = attempt
        self._sent = sent
        self._generator = random.Random()  # noqa: S311  (spreads retries; nothing secret)
        self._task: asyncio.Task[None] | None = None
        self._lost = Undelivered(0, 0, 0, -1)
        self.error: RequestError | None = None
        self.is_closing = False

    def start(self) -> None:
        """Start the task that sends, unless it runs."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="quorumlog producer")
            self._task.add_done_callback(self._run_ended)

    async def stop(self) -> None:
        """End the task that sends; nothing is sent any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def flush(self) -> None:
        """Wait until all blocks are acknowledged. Raises the error that ended the producer."""
        self._accumulator.seal()
        unresolved = [sent.block.future for sent in self._sent]
        unresolved += [block.future for block in self._accumulator.waiting]
        if unresolved:
            await asyncio.wait(unresolved)
        self.raise_error()

    def undelivered(self, queued: int = 0) -> Undelivered:
        """See `Producer.undelivered`."""
        if self.error is not None:
            lost = self._lost
            if not queued:
                return lost
            following = self._accumulator.next_sequence
            first = lost.first if lost.count else following
            return Undelivered(lost.count + queued, lost.unknown, first, following + queued - 1)
        blocks, unsealed = self._unresolved(), 0
        if self._accumulator.open_block is not None:  # it gets its number when it is sealed
            unsealed = self._accumulator.open_block.count
        return undelivered_of(blocks, self._accumulator.next_sequence, unsealed + queued)

    def _unresolved(self) -> list[tuple[OutgoingBlock, bool]]:
        """Return the blocks not acknowledged, in order, and whether each may be in the log."""
        under_way = list(self._sent)
        found = zip(under_way, doubtful(under_way), strict=True)
        blocks = [(sent.block, is_unknown) for sent, is_unknown in found]
        return blocks + [(block, block.is_in_doubt) for block in list(self._accumulator.waiting)]

    def failure(self, queued: int = 0) -> RequestError | None:
        """Return the error that ended it, with what was not delivered (see `undelivered`)."""
        if self.error is None:
            return None
        return with_undelivered(self.error, self.undelivered(queued))

    def raise_error(self) -> None:
        """Raise the error that ended the producer, if one did."""
        failure = self.failure()
        if failure is not None:
            raise failure

    # -- sessions ---------------------------------------------------------------------------

    async def _run(self) -> None:
        """Hold one session with a leader after the other, until the producer is closed or fails."""
        backoff = Backoff(self._generator)
        while self.error is None:
            while not self._sent and not self._accumulator.is_block_ready():
                self._accumulator.wake.clear()
                await self._accumulator.wake.wait()
            connection: ServerConnection | None = None
            acknowledged = self._stats.blocks_acknowledged
            try:
                leader = await self._metadata.leader()
                connection = await self._metadata.open(leader.address)
                await self._session(connection)
            except SessionClosed:
                pass
            except RequestError as error:
                if not error.retriable:
                    self.fail(error)
            finally:
                self._requeue_unacked()
                if connection is not None:
                    connection.close()
            if self._stats.blocks_acknowledged > acknowledged:
                backoff = Backoff(self._generator)
            self._expire()
            await asyncio.sleep(backoff.next_pause_s())

    def _run_ended(self, task: "asyncio.Task[None]") -> None:
        """Fail all unresolved blocks when the task ends, unless the producer is being closed."""
        if self.is_closing:
            return
        if task.cancelled():
            self.fail(RequestError("the producer's event loop ended before it was closed"))
            if self._lost.count:
                logger.error("a producer was not closed before its loop ended: %s", self._lost)
        elif (error := task.exception()) is not None:
            failure = RequestError(f"the producer failed: {describe_error(error)}")
            failure.__cause__ = error
            self.fail(failure)

    async def _session(self, connection: ServerConnection) -> None:
        """Send blocks to one leader until something ends it."""
        sequence = 0
        backoff = Backoff(self._generator)
        while True:
            accepts_more = True  # until the connection has more unsent than it may
            while accepts_more and self._can_send_more() and not self._throttled_s(connection):
                accepts_more = self._transmit(connection, sequence)
                sequence += accepts_more
            while self._sent and self._sent[0].answer.done():
                if self._resolve_first(connection):
                    backoff = Backoff(self._generator)
                    continue
                error = self._sent[0].error()
                sequence = await self._resend_rejected()
                if error is not None and error.refresh_leader:
                    raise SessionClosed
                await asyncio.sleep(backoff.next_pause_s())
            if self.error is not None or self._expire() or self._is_silent(connection):
                raise SessionClosed
            room, throttled_s = (
                accepts_more and self._can_send_more(),
                self._throttled_s(connection),
            )
            ready = self._sent and self._sent[0].answer.done()
            if (not room or throttled_s) and not ready:
                await self._pause(min(throttled_s or EXPIRY_CHECK_S, EXPIRY_CHECK_S))

    def _can_send_more(self) -> bool:
        has_slot = len(self._sent) < self._settings.in_flight_blocks
        return has_slot and self._accumulator.is_block_ready()

    @staticmethod
    def _throttled_s(connection: ServerConnection) -> float:
        """Return how long the leader has told this client to wait, in seconds."""
        return max(0.0, connection.throttled_until - asyncio.get_running_loop().time())

    async def _pause(self, most_s: float) -> None:
        self._accumulator.wake.clear()
        try:
            async with asyncio.timeout(most_s):
                await self._accumulator.wake.wait()
        except TimeoutError:
            return

    def _transmit(self, connection: ServerConnection, sequence: int) -> bool:
        """Send the block that has waited longest; return False if the connection takes none now."""
        block = self._accumulator.waiting[0]
        if len(block.parts) > 1:
            block.parts = [b"".join([*self._session_entry(block), *block.parts])]
        request = AppendRequest(
            group=self._metadata.group,
            count=block.lead + block.count,
            stream=_STREAM,
            sequence=sequence,
            level=self._settings.level,
        )
        try:
            answer = connection.request(request, block.parts)
        except LeaderPendingFullError:
            return False
        except RequestError as error:
            raise SessionClosed from error
        self._accumulator.waiting.popleft()
        answer.add_done_callback(lambda _: self._accumulator.wake.set())
        now = asyncio.get_running_loop().time()
        self._sent.append(SentBlock(block, sequence, now, answer))
        return True

    def _session_entry(self, block: OutgoingBlock) -> list[bytes]:
        if not block.lead:
            return []
        entry = SessionEntry(
            self._settings.producer_id,
            self._settings.epoch,
            block.first_sequence,
            block.count,
            crc_of(block.crcs),
            part=self._settings.part,
        )
        return [entry.encode()]

    def _is_silent(self, connection: ServerConnection) -> bool:
        """Whether the leader has not answered for too long and must be found again."""
        now = asyncio.get_running_loop().time()
        if not self._sent:
            return False
        since = max(self._sent[0].sent_at, connection.throttled_until)
        if now - since < self._settings.request_timeout_s:
            return False
        self._metadata.forget_leader(connection.address)
        return True

    def _resolve_first(self, connection: ServerConnection) -> bool:
        """Handle the oldest answer; return False if blocks must be sent again in this session."""
        sent = self._sent[0]
        error = sent.error()
        if error is None:
            self._sent.popleft()
            self._acknowledged(sent)
            return True
        if error.refresh_leader:
            self._metadata.redirect(error.leader_id, away_from=connection.address)
        if error.outcome is Outcome.HAPPENED:
            sent.block.is_committed = True
        if isinstance(error, AllAckTimeoutError) and self._settings.is_idempotent:
            raise SessionClosed  # sent again it is not appended again, and waits for all voters
        unknown = error.outcome is Outcome.UNKNOWN
        if not error.retriable or (unknown and not self._settings.retry_unknown):
            self.fail(error)
            raise SessionClosed
        if unknown:
            raise SessionClosed
        return False

    async def _resend_rejected(self) -> int:
        """Send all blocks again, in order: the oldest was refused, and with it those after it.

        Returns the sequence number that the server expects next.
        """
        expected = self._sent[0].sequence
        answers = [sent.answer for sent in self._sent]
        _, missing = await asyncio.wait(answers, timeout=self._settings.request_timeout_s)
        errors = [] if missing else [sent.error() for sent in self._sent]
        if missing or any(error and error.outcome is Outcome.UNKNOWN for error in errors):
            raise SessionClosed
        self._requeue_unacked()
        return expected

    def _requeue_unacked(self) -> None:
        """Queue all unresolved blocks again, in order, but resolve those acknowledged by now.

        Without `retry_unknown` a block of unknown outcome ends the producer instead.
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
            if error.outcome is Outcome.HAPPENED:
                sent.block.is_committed = True
            if error.outcome is not Outcome.DID_NOT_HAPPEN:
                unknown = unknown or error
                sent.block.is_in_doubt = True
                self._stats.blocks_resent_after_unknown += 1
                self._stats.entries_resent_after_unknown += sent.block.count
            else:
                self._stats.blocks_resent_after_refusal += 1
        self._sent.clear()
        self._accumulator.waiting.extendleft(reversed(again))
        if unknown is not None and not self._settings.retry_unknown and self.error is None:
            self.fail(unknown)

    def _acknowledged(self, sent: SentBlock) -> None:
        response = sent.answer.result().response
        if isinstance(response, AppendResponse):  # `SentBlock.error` has checked it
            block = sent.block
            self._stats.entries_acknowledged += block.count
            self._stats.bytes_acknowledged += block.size
            self._stats.blocks_acknowledged += 1
            if self._attempt is not None:
                self._attempt.acknowledged(response)
            self._accumulator.release(block)
            block.future.set_result(response)

    def _expire(self) -> bool:
        """Fail if the oldest block was not delivered in time; return whether it did."""
        waiting = self._accumulator.waiting
        oldest = self._sent[0].block if self._sent else waiting[0] if waiting else None
        if oldest is None or asyncio.get_running_loop().time() < oldest.deadline:
            return False
        timeout_s = self._settings.delivery_timeout_s
        self.fail(
            DeadlineExceededError(f"not delivered to {self._metadata.group} within {timeout_s:g} s")
        )
        return True

    def fail(self, error: RequestError) -> None:
        """End the producer: everything unresolved fails.

        Blocks after one that is lost cannot be delivered any more, as that would break their order.
        """
        if self.error is not None:
            return
        self._accumulator.seal()
        unresolved = self._unresolved()
        self._lost = undelivered_of(unresolved, self._accumulator.next_sequence, 0)
        self.error = error
        self._accumulator.is_ended = True
        for block, is_unknown in unresolved:
            self._accumulator.release(block)
            own = with_undelivered(error, self._lost)
            if block.is_committed:
                own.outcome = Outcome.HAPPENED
            else:
                own.outcome = Outcome.UNKNOWN if is_unknown else Outcome.DID_NOT_HAPPEN
            block.future.set_exception(own)
        for sent in self._sent:
            sent.answer.cancel()
        self._sent.clear()
        self._accumulator.waiting.clear()
        self._accumulator.space.set()
