"""Transactions: entries that count only once the end of their batch names who wrote them.

A transactional id is one writer that outlives restarts, such as a streaming query. Each run of it
starts with an `InitTransactions` and has a higher epoch than earlier runs, which are fenced. The
run writes batches in rising order. Several tasks write parts of a batch, and one part may be tried
more than once: each attempt appends blocks under a producer id of its own. An `EndTransaction`
names the attempts that are accepted. All others of that batch, and of earlier batches, are
rejected, and readers leave them out. A batch that has ended cannot end again, so a batch that is
written again after a failure is in the log once, however it is divided.

Every replica derives the same table from the entries of the log (`table_set`). The idea and the
names are Kafka's (KIP-98), with one difference. Kafka commits whatever a producer wrote in a
transaction. A batch system runs a task again when it is slow or seems lost, and both attempts may
write. So the end must name the attempts that count (decision 0016), with the number and a CRC of
their entries: an attempt of which a part was lost, or to which a late task added, cannot be
accepted.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Final

import msgspec

from quorumlog.model.block import Block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.record_sum import DIGEST_SIZE, RecordSum
from quorumlog.sessions.entries import (
    AcceptedAttempt,
    EndTransaction,
    InitTransactions,
    SessionEntry,
    SystemEntry,
    TransactionPart,
    continued_crc,
    is_transactional,
)

TRANSACTIONAL_IDS_MAX: Final = 10_000
"""Number of ids that a group remembers; the one idle longest is forgotten first."""
RUNS_REMEMBERED: Final = 16
"""Number of earlier runs of an id that are remembered as fenced."""
RANGES_MAX: Final = 100_000
"""Number of ranges of open and rejected entries at which blocks of transactions are refused."""
TIMEOUT_MS_MAX: Final = 15 * 60 * 1_000
"""Longest time-out that a run may ask for (Kafka's transaction.max.timeout.ms)."""

Range = tuple[int, int]
"""First and last index."""


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt has appended of its part of a batch up to now."""

    epoch: int
    batch_id: int
    partition: int
    ranges: tuple[Range, ...]
    count: int
    crc: int

    def accepted_as(self, producer_id: int) -> AcceptedAttempt:
        """Return what an `EndTransaction` must name to accept this attempt."""
        first, last = self.ranges[0][0], self.ranges[-1][1]
        return AcceptedAttempt(self.partition, producer_id, first, last, self.count, self.crc)


class TransactionalProducer(msgspec.Struct, frozen=True, array_like=True):
    """One transactional id: its present run, the last batch that ended, and the open attempts.

    `attempts` are by producer id. `end_index` is the index at which the last batch ended.
    """

    epoch: int
    run_id: bytes
    timeout_ms: int
    past_runs: tuple[bytes, ...] = ()
    last_batch: int = -1
    end_index: int = -1
    attempts: dict[int, Attempt] = {}


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """What becomes of an entry: refused with a code, or (`end_index` ≥ 0) its batch ended there."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    end_index: int = -1


_TAKEN: Final = TransactionCheck()


@dataclass(slots=True)
class TransactionTable:
    """All transactional ids, in the order of their last writes, and the rejected ranges, sorted.

    See `DerivedTable`.
    """

    name: ClassVar[str] = "transactions.1"
    reads_users: ClassVar[bool] = False
    producers: dict[bytes, TransactionalProducer] = field(default_factory=dict)
    rejected: list[Range] = field(default_factory=list)
    complete_from: int = 0
    """The entries that were rejected before this index are not known any more."""
    open_ids: set[bytes] = field(init=False)
    """The ids with blocks of a batch that has not ended."""
    range_count: int = field(init=False)
    _sum: RecordSum = field(default_factory=RecordSum, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Derive the remaining fields."""
        known = self.producers.items()
        self.open_ids = {known_id for known_id, producer in known if producer.attempts}
        attempts = [one for found in self.producers.values() for one in found.attempts.values()]
        self.range_count = len(self.rejected) + sum(len(one.ranges) for one in attempts)

    def copy(self) -> "TransactionTable":
        """Return an independent copy."""
        return TransactionTable(dict(self.producers), list(self.rejected), self.complete_from)

    # -- for readers --------------------------------------------------------------------------

    def stable_index(self, committed_index: int) -> int:
        """Return the last index before which every transaction has ended (Kafka's LSO)."""
        first = [
            attempt.ranges[0][0]
            for known_id in self.open_ids
            for attempt in self.producers[known_id].attempts.values()
        ]
        return min([committed_index, *(index - 1 for index in first)])

    def rejected_within(self, first: int, last: int, most: int) -> list[Range]:
        """Return the first `most` ranges of rejected entries that touch first … last, joined."""
        found: list[Range] = []
        number = max(0, bisect_left(self.rejected, (first, 0)) - 1)
        while number < len(self.rejected) and self.rejected[number][0] <= last:
            start, end = self.rejected[number]
            number += 1
            if end < first:
                continue
            if found and start == found[-1][1] + 1:
                found[-1] = (found[-1][0], end)
            elif len(found) < most:
                found.append((start, end))
            else:
                break
        return found

    # -- applying -----------------------------------------------------------------------------

    def found_in(
        self, block: Block, first_index: int, entries: Sequence[tuple[int, SystemEntry]]
    ) -> Sequence[tuple[int, SystemEntry]]:
        """See `DerivedTable`."""
        return [(index, entry) for index, entry in entries if is_transactional(entry)]

    def apply(self, index: int, what: SystemEntry) -> None:
        """Take an entry of the log at an index."""
        if isinstance(what, InitTransactions):
            self._start_run(what)
        elif isinstance(what, EndTransaction):
            self._end(index, what)
        elif isinstance(what, SessionEntry) and what.part is not None:
            self._add(index, what, what.part)

    def _start_run(self, entry: InitTransactions) -> None:
        known = self.producers.get(entry.transactional_id)
        if known is None:
            made = TransactionalProducer(1, entry.run_id, entry.timeout_ms)
        elif entry.run_id == known.run_id:
            made = known
        elif entry.run_id in known.past_runs:
            return
        else:
            self._reject(known.attempts.values())
            past_runs = (*known.past_runs, known.run_id)[-RUNS_REMEMBERED:]
            made = TransactionalProducer(
                known.epoch + 1,
                entry.run_id,
                entry.timeout_ms,
                past_runs,
                known.last_batch,
                known.end_index,
            )
        self._put(entry.transactional_id, made)
        while len(self.producers) > TRANSACTIONAL_IDS_MAX:
            oldest = next(known_id for known_id in self.producers if known_id not in self.open_ids)
            del self.producers[oldest]
            self._sum.changed(oldest)

    def _add(self, index: int, entry: SessionEntry, part: TransactionPart) -> None:
        last = index + entry.count
        self.range_count += 1
        if self._refused(entry, part) is not None:
            insort(self.rejected, (index, last))  # no leader appends such a block
            return
        known = self.producers[part.transactional_id]
        before = known.attempts.get(entry.producer_id)
        ranges: tuple[Range, ...] = () if before is None else before.ranges
        if ranges and ranges[-1][1] + 1 == index:
            ranges = (*ranges[:-1], (ranges[-1][0], last))
            self.range_count -= 1
        else:
            ranges = (*ranges, (index, last))
        attempt = Attempt(
            part.epoch,
            part.batch_id,
            part.partition,
            ranges,
            entry.count + (0 if before is None else before.count),
            continued_crc(0 if before is None else before.crc, entry.crc),
        )
        attempts = {**known.attempts, entry.producer_id: attempt}
        self._put(part.transactional_id, msgspec.structs.replace(known, attempts=attempts))

    def _end(self, index: int, entry: EndTransaction) -> None:
        result = self.check(entry)
        if result.code is not ResponseCode.SUCCESS or result.end_index >= 0:
            return
        known = self.producers[entry.transactional_id]
        accepted = {one.producer_id for one in entry.accepted or ()}
        over = {
            producer_id: attempt
            for producer_id, attempt in known.attempts.items()
            if attempt.batch_id <= entry.batch_id
        }
        self._reject(
            attempt for producer_id, attempt in over.items() if producer_id not in accepted
        )
        self.range_count -= sum(len(over[producer_id].ranges) for producer_id in accepted)
        attempts = {key: value for key, value in known.attempts.items() if key not in over}
        known = msgspec.structs.replace(known, attempts=attempts)
        if entry.accepted is not None:
            known = msgspec.structs.replace(known, last_batch=entry.batch_id, end_index=index)
        self._put(entry.transactional_id, known)

    def _put(self, known_id: bytes, producer: TransactionalProducer) -> None:
        self.producers.pop(known_id, None)
        self.producers[known_id] = producer
        self._sum.changed(known_id)
        (self.open_ids.add if producer.attempts else self.open_ids.discard)(known_id)

    def _reject(self, attempts: Iterable[Attempt]) -> None:
        self.rejected = sorted(
            [*self.rejected, *(one for attempt in attempts for one in attempt.ranges)]
        )

    def removed(self, before_begin_index: int) -> None:
        """The log does not hold anything up to before_begin_index any more."""
        self.complete_from = max(self.complete_from, before_begin_index + 1)
        number = bisect_left(self.rejected, (before_begin_index + 1, 0))
        if number and self.rejected[number - 1][1] > before_begin_index:
            number -= 1
        if number:
            del self.rejected[:number]
            self.range_count -= number

    # -- keeping and comparing ----------------------------------------------------------------

    def fields(self) -> tuple[Any, ...]:
        """See `DerivedTable`."""
        return list(self.producers.items()), self.rejected, self.complete_from

    def digest(self, since: int) -> bytes | None:
        """See `DerivedTable`: all ids, and what was rejected of the entries after `since`."""
        if self.complete_from > since + 1:
            return None
        rejected = self.rejected[bisect_left(self.rejected, (since + 1, 0)) :]
        raw = self._sum.of(self.producers) + msgspec.msgpack.encode(rejected)
        return blake2b(raw, digest_size=DIGEST_SIZE).digest()

    # -- judging ------------------------------------------------------------------------------

    def check(self, entry: SystemEntry) -> TransactionCheck:
        """Return what becomes of an entry that comes after those that were applied."""
        if isinstance(entry, InitTransactions):
            return self._check_run(entry)
        if isinstance(entry, EndTransaction):
            return self._not_of_run(entry) or _check_end(
                entry, self.producers[entry.transactional_id]
            )
        part = entry.part if isinstance(entry, SessionEntry) else None
        if not isinstance(entry, SessionEntry) or part is None:
            return _TAKEN
        refused = self._refused(entry, part)
        if refused is None and self.range_count >= RANGES_MAX:
            text = (
                f"{self.range_count} ranges of open and rejected transactions are remembered; "
                "there is room again when some of them were removed with the oldest entries"
            )
            return TransactionCheck(ResponseCode.LEADER_PENDING_FULL, text)
        return refused or _TAKEN

    def _refused(self, entry: SessionEntry, part: TransactionPart) -> TransactionCheck | None:
        """Return why a block cannot be part of its transaction; None: it can.

        `apply` asks this too, so it must depend on nothing but the entries of the log.
        """
        refused = self._not_of_run(part)
        if refused is not None:
            return refused
        known, who = self.producers[part.transactional_id], _named(part.transactional_id)
        if part.batch_id <= known.last_batch:
            text = f"{who}: batch {part.batch_id} has ended; the last was {known.last_batch}"
            return TransactionCheck(ResponseCode.TRANSACTION_ENDED, text)
        attempt = known.attempts.get(entry.producer_id)
        if attempt is None and entry.first_sequence:
            text = f"{who}: batch {part.batch_id} was given up; write it again from the beginning"
            return TransactionCheck(ResponseCode.TRANSACTION_ABORTED, text)
        if attempt is not None and (attempt.batch_id, attempt.partition) != (
            part.batch_id,
            part.partition,
        ):
            text = f"producer {entry.producer_id} writes another part; take a new producer id"
            return TransactionCheck(ResponseCode.UNEXPECTED_ARGUMENT, text)
        return None

    def _not_of_run(self, entry: TransactionPart | EndTransaction) -> TransactionCheck | None:
        """Return why an entry is not of the present run of its id; None: it is."""
        known = self.producers.get(entry.transactional_id)
        who = _named(entry.transactional_id)
        if known is None or entry.epoch > known.epoch:
            text = f"{who} has no run {entry.epoch}; it was forgotten or never began"
            return TransactionCheck(ResponseCode.UNKNOWN_PRODUCER, text)
        if entry.epoch < known.epoch:
            text = f"{who}: run {entry.epoch} was succeeded by run {known.epoch}"
            return TransactionCheck(ResponseCode.PRODUCER_FENCED, text)
        return None

    def _check_run(self, entry: InitTransactions) -> TransactionCheck:
        who = _named(entry.transactional_id)
        if not 0 < entry.timeout_ms <= TIMEOUT_MS_MAX:
            text = f"{who}: a time-out of {entry.timeout_ms} ms is not in 1 to {TIMEOUT_MS_MAX}"
            return TransactionCheck(ResponseCode.UNEXPECTED_ARGUMENT, text)
        known = self.producers.get(entry.transactional_id)
        if known is not None and entry.run_id in known.past_runs:
            text = f"{who}: this run was succeeded by another, run {known.epoch}"
            return TransactionCheck(ResponseCode.PRODUCER_FENCED, text)
        if known is None and len(self.open_ids) >= TRANSACTIONAL_IDS_MAX:
            text = f"{len(self.open_ids)} transactional ids are writing; try again later"
            return TransactionCheck(ResponseCode.LEADER_PENDING_FULL, text)
        return _TAKEN


def _named(transactional_id: bytes) -> str:
    return f"transactional id {transactional_id.hex()}"


def _check_end(entry: EndTransaction, known: TransactionalProducer) -> TransactionCheck:
    who = _named(entry.transactional_id)
    if entry.batch_id <= known.last_batch:
        if entry.accepted is not None:
            return TransactionCheck(end_index=known.end_index)
        text = f"{who}: batch {entry.batch_id} has ended; the last was {known.last_batch}"
        return TransactionCheck(ResponseCode.TRANSACTION_ENDED, text)
    seen = set()
    for one in entry.accepted or ():
        attempt = known.attempts.get(one.producer_id)
        fits = attempt is not None and attempt.batch_id == entry.batch_id
        if attempt is None or not fits or attempt.accepted_as(one.producer_id) != one:
            text = (
                f"{who}: batch {entry.batch_id} cannot end with what partition {one.partition} "
                "wrote: it was given up meanwhile, or is not in the log as stated"
            )
            return TransactionCheck(ResponseCode.TRANSACTION_ABORTED, text)
        if one.partition in seen:
            text = f"{who}: two attempts at partition {one.partition} of batch {entry.batch_id}"
            return TransactionCheck(ResponseCode.UNEXPECTED_ARGUMENT, text)
        seen.add(one.partition)
    return _TAKEN
