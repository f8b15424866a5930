"""Transactions of Kafka's producers in the partitions of one log, as every replica derives them.

A transaction begins in a partition with its first transactional batch and ends there with a marker.
Until then it is ongoing, and consumers with `read_committed` see nothing from its first record on:
the *last stable offset* is that of the first record of the oldest ongoing transaction. They are
told which transactions were aborted, so that they pass over those records.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from quorumlog.model.record_sum import RecordSum

ONGOING_MAX: Final = 10_000
"""Pairs of partition and producer with an ongoing transaction, in one log."""
ABORTED_MAX: Final = 100_000
"""Aborted transactions of all partitions of a log that may still be read. No transaction begins
above it: consumers would take its records for committed."""
NOTHING_ONGOING: Final = -1
Key: TypeAlias = tuple[int, int]
"""Channel and producer id."""


class AbortedTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction of a producer in a partition, from its first record to its marker.

    `stable_offset`: the last stable offset after it. Transactions that end later begin there or
    later.
    """

    last_offset: int
    producer_id: int
    first_offset: int
    stable_offset: int


class PartitionTransactions:
    """Ongoing and aborted transactions by channel."""

    def __init__(
        self,
        ongoing: Iterable[tuple[int, int, int]] = (),
        aborted: Iterable[tuple[int, AbortedTransaction]] = (),
    ) -> None:
        self._ongoing: dict[Key, int] = {}
        self._by_channel: dict[int, dict[int, int]] = {}
        """By channel: producer id → first offset, the oldest transaction first."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        """By channel, in the order of their markers."""
        self._aborted_of: dict[tuple[int, int], AbortedTransaction] = {}
        """The same by channel and offset of the marker."""
        self._ongoing_sum, self._aborted_sum = RecordSum(), RecordSum()
        for channel, producer_id, first_offset in ongoing:
            self.begun(channel, producer_id, first_offset)
        for channel, one in aborted:
            self._add_aborted(channel, one)

    @property
    def is_empty(self) -> bool:
        """Whether there are none, and digests are as if there never were."""
        return not self._ongoing and not self._aborted_of

    @property
    def has_ongoing(self) -> bool:
        """Whether any transaction is ongoing."""
        return bool(self._ongoing)

    @property
    def is_full(self) -> bool:
        """Whether no further transaction may begin anywhere in the log."""
        has_many = len(self._ongoing) + len(self._aborted_of) >= ABORTED_MAX
        return has_many or len(self._ongoing) >= ONGOING_MAX

    # -- derived ----------------------------------------------------------------------------

    def begun(self, channel: int, producer_id: int, offset: int) -> None:
        """A transactional batch was appended, the first record of which has this offset."""
        if (channel, producer_id) not in self._ongoing:
            self._ongoing[channel, producer_id] = offset
            self._by_channel.setdefault(channel, {})[producer_id] = offset
            self._ongoing_sum.changed((channel, producer_id))

    def ended(self, channel: int, producer_id: int, offset: int, *, commits: bool) -> None:
        """A marker was appended at an offset: it ends what its producer had, if it had anything."""
        first_offset = self._ongoing.get((channel, producer_id))
        if first_offset is None:
            return
        self._forget_ongoing(channel, producer_id)
        if not commits:
            stable = self.stable_offset(channel, offset + 1)
            self._add_aborted(
                channel, AbortedTransaction(offset, producer_id, first_offset, stable)
            )

    def _forget_ongoing(self, channel: int, producer_id: int) -> None:
        del self._ongoing[channel, producer_id]
        self._ongoing_sum.changed((channel, producer_id))
        left = self._by_channel[channel]
        del left[producer_id]
        if not left:
            del self._by_channel[channel]

    def _add_aborted(self, channel: int, one: AbortedTransaction) -> None:
        self._aborted.setdefault(channel, []).append(one)
        self._aborted_of[channel, one.last_offset] = one
        self._aborted_sum.changed((channel, one.last_offset))

    def log_start_moved(self, channel: int, log_start: int) -> None:
        """Records before `log_start` are not read any more: forget what ended there."""
        aborted = self._aborted.get(channel, [])
        count = bisect_left(aborted, log_start, key=lambda one: one.last_offset)
        for one in aborted[:count]:
            del self._aborted_of[channel, one.last_offset]
            self._aborted_sum.changed((channel, one.last_offset))
        if count == len(aborted):
            self._aborted.pop(channel, None)
        else:
            del aborted[:count]

    def closed(self, channel: int) -> None:
        """The partition on a channel is gone."""
        for producer_id in list(self._by_channel.get(channel, ())):
            self._forget_ongoing(channel, producer_id)
        for one in self._aborted.pop(channel, ()):
            del self._aborted_of[channel, one.last_offset]
            self._aborted_sum.changed((channel, one.last_offset))

    # -- asked ------------------------------------------------------------------------------

    def first_offset(self, channel: int, producer_id: int) -> int:
        """Return where the ongoing transaction of a producer began; -1: it has none here."""
        return self._ongoing.get((channel, producer_id), NOTHING_ONGOING)

    def ongoing(self) -> list[Key]:
        """Return channel and producer id of all that are ongoing."""
        return list(self._ongoing)

    def stable_offset(self, channel: int, end: int) -> int:
        """Return the last stable offset of a partition whose records end before `end`."""
        ongoing = self._by_channel.get(channel)
        return next(iter(ongoing.values())) if ongoing else end

    def aborted_within(self, channel: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions with records in a range.

        The range is from `start` to before `end`; in the order of first offsets.
        """
        aborted = self.aborted_transactions(channel, start, end)
        return [(one.producer_id, one.first_offset) for one in aborted]

    def aborted_transactions(self, channel: int, start: int, end: int) -> list[AbortedTransaction]:
        """Return aborted transactions with records in a range, as `aborted_within` does."""
        aborted, found = self._aborted.get(channel), list[AbortedTransaction]()
        if not aborted:
            return found
        first = bisect_left(aborted, start, key=lambda one: one.last_offset)
        for one in islice(aborted, first, None):
            if one.first_offset < end:
                found.append(one)
            if one.stable_offset >= end:
                break
        found.sort(key=lambda one: one.first_offset)
        return found

    # -- kept -------------------------------------------------------------------------------

    def copy(self) -> "PartitionTransactions":
        """Return an independent copy."""
        copied = PartitionTransactions()
        copied._ongoing, copied._aborted_of = dict(self._ongoing), dict(self._aborted_of)
        copied._by_channel = {channel: dict(one) for channel, one in self._by_channel.items()}
        copied._aborted = {channel: list(some) for channel, some in self._aborted.items()}
        return copied

    def fields(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, AbortedTransaction]]]:
        """Return what is saved of them."""
        ongoing = [(*key, offset) for key, offset in self._ongoing.items()]
        return ongoing, [(key[0], one) for key, one in self._aborted_of.items()]

    def digest(self) -> bytes:
        """Return a digest of all; empty if there are none."""
        if self.is_empty:
            return b""
        return self._ongoing_sum.of(self._ongoing) + self._aborted_sum.of(self._aborted_of)
