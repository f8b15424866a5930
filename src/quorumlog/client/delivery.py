"""Blocks of a producer, what a caller holds of them, and the totals."""

import asyncio
import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from quorumlog.client.connection import Answer
from quorumlog.client.results import Appended, position_at
from quorumlog.log_events import describe_error
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    NetworkError,
    Outcome,
    RequestError,
    Undelivered,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.messages.client import AppendResponse
from quorumlog.sessions.entries import (
    AcceptedAttempt,
    TransactionPart,
    continued_crc,
    crc_of,
)


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
    """Entries that are in the log once all the same, unless the producer is not idempotent."""


class OutgoingBlock:
    """Entries that travel together, and one future for all of them.

    `offsets` are those of the entries within the block, `lead` entries go before them (a session
    entry, or none). `is_in_doubt`: it may be in the log already although no answer said so.
    `is_committed`: an answer said that it is, and that not all voters are known to have it.
    `is_due`: it has waited long enough, and is sent as soon as there is a slot.
    """

    __slots__ = (
        *("crcs", "deadline", "first_sequence", "future", "is_committed", "is_due", "is_in_doubt"),
        *("lead", "offsets", "parts", "size"),
    )

    def __init__(self, deadline: float, lead: int = 0) -> None:
        self.deadline = deadline
        self.lead = lead
        self.crcs: list[int] = []
        self.first_sequence = 0
        self.parts: list[Buffer] = []
        self.offsets: list[int] = []
        self.size = 0
        self.is_due = False
        self.is_in_doubt = False
        self.is_committed = False
        self.future: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(_seen)

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.offsets)


def _seen(future: "asyncio.Future[AppendResponse]") -> None:
    """Errors also surface on flush and the next send, so one nobody awaits is not lost."""
    if not future.cancelled():
        future.exception()


class Delivery:
    """Resolves, when awaited, with where the entry went, or raises why it did not."""

    __slots__ = ("_block", "_ordinal")

    def __init__(self, block: OutgoingBlock, ordinal: int) -> None:
        self._block = block
        self._ordinal = ordinal

    def __await__(self) -> Generator[Any, None, Appended]:
        response = yield from asyncio.shield(self._block.future).__await__()
        block = self._block
        position = position_at(response, block.offsets, self._ordinal, lead=block.lead)
        index = response.first_index + block.lead + self._ordinal
        return Appended(index, response.term, position, response.level.word)

    def done(self) -> bool:
        """Whether awaiting it will return at once."""
        return self._block.future.done()


@dataclass(slots=True)
class SentBlock:
    """A block under way on one connection, since `sent_at` of the loop's clock (seconds)."""

    block: OutgoingBlock
    sequence: int
    sent_at: float
    answer: "asyncio.Future[Answer]"

    def error(self) -> RequestError | None:
        """Return what the answer says went wrong, or None. The answer must have come."""
        if self.answer.cancelled():
            return NetworkError("the connection ended before the answer came")
        failed = self.answer.exception()
        if isinstance(failed, RequestError):
            return failed
        if failed is not None:
            return NetworkError(f"no answer: {describe_error(failed)}")
        response = self.answer.result().response
        if response.code != ResponseCode.SUCCESS:
            return error_for(response.code, response.text, response.leader_id)
        if not isinstance(response, AppendResponse) or not response.positions:
            return NetworkError(f"{type(response).__name__} is no answer to an append")
        return None


class AttemptRecord:
    """What a producer has appended of a part of a transaction."""

    def __init__(self, part: TransactionPart) -> None:
        self._partition = part.partition
        self._count = self._crc = 0
        self._first_index: int | None = None
        self._last_index = -1

    def sealed(self, block: OutgoingBlock) -> None:
        """A block is complete; blocks come in their order."""
        self._count += block.count
        self._crc = continued_crc(self._crc, crc_of(block.crcs))

    def acknowledged(self, response: AppendResponse) -> None:
        """A block was acknowledged."""
        if self._first_index is None or response.first_index < self._first_index:
            self._first_index = response.first_index
        self._last_index = max(self._last_index, response.last_index)

    def accepted(self, producer_id: int) -> AcceptedAttempt | None:
        """Return the attempt as the end of the transaction names it; None: there is nothing."""
        if self._first_index is None:
            return None
        return AcceptedAttempt(
            self._partition,
            producer_id,
            self._first_index,
            self._last_index,
            self._count,
            self._crc,
        )


def doubtful(sent: Sequence[SentBlock]) -> list[bool]:
    """Return for each block in flight on one connection whether it may be in the log.

    A server stores no block that comes after one that it has refused.
    """
    found = []
    is_refused = False
    for each in sent:
        error = each.error() if each.answer.done() else None
        if each.answer.done():
            is_unknown = error is None or error.outcome is not Outcome.DID_NOT_HAPPEN
            is_refused = is_refused or not is_unknown
        else:
            is_unknown = not is_refused
        found.append(is_unknown or each.block.is_in_doubt)
    return found


def undelivered_of(
    blocks: Sequence[tuple[OutgoingBlock, bool]], next_number: int, queued: int
) -> Undelivered:
    """Return the entries not known to be in the log: blocks in order, and whether each may be.
    `queued` more entries, from next_number on, follow these; the producer has not taken them yet.
    """
    blocks = [one for one in blocks if not one[0].is_committed]
    count = sum(block.count for block, _ in blocks)
    unknown = sum(block.count for block, is_unknown in blocks if is_unknown)
    if not blocks:
        return Undelivered(queued, 0, next_number, next_number + queued - 1)
    return Undelivered(
        count + queued, unknown, blocks[0][0].first_sequence, next_number + queued - 1
    )


def with_undelivered(error: RequestError, lost: Undelivered) -> RequestError:
    """Return an error of the same kind that also says which entries were not delivered.

    Each caller gets its own: an error that is raised twice shows the traceback of both.
    """
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    if lost.count:
        own.args = (f"{error}; {lost}",)
        own.undelivered = lost
        own.outcome = Outcome.UNKNOWN if lost.unknown else Outcome.DID_NOT_HAPPEN
    return own


def require_flushed(lost: Undelivered) -> None:
    """Raise `UnexpectedArgumentError` unless all that a producer took is acknowledged."""
    if lost.count:
        raise UnexpectedArgumentError(f"call flush() before attempt(): {lost}")


def not_delivered(text: str) -> RequestError:
    """Return the error of entries that were never sent."""
    error = RequestError(text)
    error.outcome = Outcome.DID_NOT_HAPPEN
    return error
