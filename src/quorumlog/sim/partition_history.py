"""What the committed log says of partitions, derived again by the simplest rules there are."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from quorumlog.records.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch in the committed log; `number` is its own (`SentBatch`)."""

    index: int
    base_offset: int
    count: int
    number: int
    size: int


@dataclass(slots=True)
class PartitionPast:
    """One partition through time: its batches in order, and its log starts as (index, offset)."""

    opened_at: int
    batches: list[StoredBatch] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=lambda: [(-1, 0)])
    closed_at: int | None = None
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By producer id: its epoch, and the sequence that comes next."""
    ongoing: dict[int, int] = field(default_factory=dict)
    """By producer id: where its ongoing transaction began."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Aborted transactions in the order of their markers: producer id, first and last offset."""
    marks: list[tuple[int, int, int]] = field(default_factory=lambda: [(-1, -1, 0)])
    """After the entry at an index: where the oldest ongoing transaction began, -1 if there is none,
    and how many were aborted."""

    def is_open(self, index: int) -> bool:
        """Whether it is there after the entry at an index."""
        return self.opened_at <= index and (self.closed_at is None or index < self.closed_at)

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        last = self.batches[-1] if self.batches else None
        return 0 if last is None else last.base_offset + last.count

    def end(self, index: int) -> int:
        """Return the offset after the last record up to an index."""
        place = bisect_right(self.batches, index, key=lambda batch: batch.index)
        last = self.batches[place - 1] if place else None
        return 0 if last is None else last.base_offset + last.count

    def start(self, index: int) -> int:
        """Return the log start offset after the entry at an index."""
        place = bisect_right(self.starts, index, key=lambda pair: pair[0])
        return self.starts[place - 1][1]

    def stable(self, index: int) -> int:
        """Return the last stable offset after the entry at an index."""
        oldest = self._mark(index)[1]
        return max(self.start(index), self.end(index) if oldest < 0 else oldest)

    def aborted_within(self, begin: int, end: int, index: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions that have records in a range.

        Of those that had ended with the entry at an index.
        """
        known = self.aborted[: self._mark(index)[2]]
        found = [(one, first) for one, first, last in known if last >= begin and first < end]
        return sorted(found, key=lambda pair: pair[1])

    def _mark(self, index: int) -> tuple[int, int, int]:
        return self.marks[bisect_right(self.marks, index, key=lambda mark: mark[0]) - 1]

    def take_transaction(self, index: int, header: BatchHeader, *, commits: bool | None) -> None:
        """A transactional batch is at an index, or (`commits`) a marker."""
        producer_id, offset = header.producer_id, header.base_offset
        if commits is None:
            self.ongoing.setdefault(producer_id, offset)
        else:
            first = self.ongoing.pop(producer_id, None)
            if first is not None and not commits:
                self.aborted.append((producer_id, first, offset))
        oldest = min(self.ongoing.values(), default=-1)
        self.marks.append((index, oldest, len(self.aborted)))

    def size_between(self, offset: int, index: int) -> int:
        """Return the bytes of all batches from an offset on that come before an entry."""
        place = bisect_left(self.batches, offset, key=lambda batch: batch.base_offset)
        return sum(batch.size for batch in self.batches[place:] if batch.index < index)

    def batch_at(self, base_offset: int) -> StoredBatch | None:
        """Return the batch that begins at an offset, if one does."""
        place = bisect_left(self.batches, base_offset, key=lambda batch: batch.base_offset)
        found = self.batches[place] if place < len(self.batches) else None
        return found if found is not None and found.base_offset == base_offset else None


class PartitionHistory:
    """All partitions that there ever were, by channel, as of the entry at `index`."""

    def __init__(self) -> None:
        self.index = -1
        self.past: dict[int, PartitionPast] = {}
        self.stored: dict[int, tuple[int, StoredBatch]] = {}
        """By number of the batch: its channel, and where it was stored first."""
        self.copies: dict[int, int] = {}

    def opened(self, index: int, channel: int) -> None:
        """An entry opens a partition; on a channel that was used before it says nothing."""
        if channel > max(self.past, default=-1):
            self.past[channel] = PartitionPast(index)

    def closed(self, index: int, channel: int) -> None:
        """An entry closes a partition, if it is there."""
        past = self.past.get(channel)
        if past is not None and past.closed_at is None:
            past.closed_at = index

    def starts_moved(self, index: int, channel: int, offset: int) -> None:
        """An entry moves a log start, which only rises, up to the end."""
        past = self.past.get(channel)
        if past is None or past.closed_at is not None:
            return
        if past.starts[-1][1] < offset <= past.next_offset:
            past.starts.append((index, offset))

    def appended(
        self, index: int, channel: int, header: BatchHeader, *, commits: bool | None
    ) -> str:
        """An entry of a channel is a batch; return what is wrong with it, "" if nothing is.

        `commits`: what the marker says that it is.
        """
        past = self.past.get(channel)
        if past is None or past.closed_at is not None:
            return "no partition is open there"
        if header.base_offset != past.next_offset:
            return f"its offset is {header.base_offset}, not {past.next_offset}"
        wrong = "" if header.is_control else _sequence_fault(past, header)
        if header.is_transactional:
            past.take_transaction(index, header, commits=commits)
        number, size = header.first_timestamp, header.size_bytes
        batch = StoredBatch(index, header.base_offset, header.count, number, size)
        past.batches.append(batch)
        self.stored.setdefault(batch.number, (channel, batch))
        self.copies[batch.number] = self.copies.get(batch.number, 0) + 1
        return wrong


def _sequence_fault(past: PartitionPast, header: BatchHeader) -> str:
    """Note the sequence of an idempotent batch; return why it does not go on, "" if it does."""
    if header.producer_id < 0:
        return ""
    epoch, expected = past.sequences.get(header.producer_id, (-1, 0))
    if header.producer_epoch > epoch:
        epoch, expected = header.producer_epoch, 0
    past.sequences[header.producer_id] = epoch, expected + header.count
    if header.producer_epoch < epoch:
        return f"its epoch {header.producer_epoch} had ended with epoch {epoch}"
    if header.base_sequence != expected:
        return f"its sequence is {header.base_sequence}, not {expected}"
    return ""
