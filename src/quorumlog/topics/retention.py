"""Which of the oldest records of partitions are given up, by age and by bytes.

A pure function of the partitions as of the committed index, of where their batches are, and of the
group's time. Whole batches are given up, so a batch is kept until all its records may go.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from quorumlog.topics.batch_index import BatchIndex
from quorumlog.topics.partition_table import Partition


class RetentionRule(msgspec.Struct, frozen=True):
    """How long the records of a partition are kept, and how many bytes of them; None: no bound.

    `retention_ms` counts from when they were appended, by the group's time. Batches are given up
    while those after them have `retention_bytes` or more.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it lets go of anything."""
        return self.retention_ms is not None or self.retention_bytes is not None


OldUntil: TypeAlias = Callable[[int], int]
"""Index of the last entry that is known to be older than some milliseconds; -1: none is."""


class _Known(msgspec.Struct, frozen=True):
    """What is known of a partition as long as its log start stays.

    `first_index`: entry of the batch at the log start, None while there is none. `given_up_bytes`:
    of all batches before it.
    """

    log_start: int
    first_index: int | None
    given_up_bytes: int


class PartitionSpace:
    """What the partitions of one log take, and what of it may go.

    It remembers for each partition what was counted for its log start, so that asking again is
    cheap. All methods but `known_bytes` run on the event loop's thread.
    """

    def __init__(self, batches: BatchIndex) -> None:
        self._batches = batches
        self._known: dict[int, _Known] = {}

    def forget(self) -> None:
        """Count again, since the log or its tables were replaced."""
        self._known.clear()

    def keep_only(self, channels: set[int]) -> None:
        """Forget what is known of all other partitions."""
        for channel in self._known.keys() - channels:
            del self._known[channel]

    def _of(self, channel: int, partition: Partition) -> _Known:
        known = self._known.get(channel)
        if known is None or known.log_start != partition.log_start or known.first_index is None:
            begin, end = partition.log_start, partition.next_offset
            first_index, size_bytes = self._batches.extent_of(channel, begin, end)
            given_up = partition.appended_bytes - size_bytes
            known = self._known[channel] = _Known(begin, first_index, given_up)
        return known

    def readable_bytes(self, channel: int, partition: Partition) -> int:
        """Return the bytes of the batches that may be read of a partition."""
        if partition.log_start >= partition.next_offset:
            return 0
        return partition.appended_bytes - self._of(channel, partition).given_up_bytes

    def known_bytes(self, channel: int, partition: Partition) -> int | None:
        """Return `readable_bytes` on any thread; None: not counted since the log start moved."""
        if partition.log_start >= partition.next_offset:
            return 0
        if partition.log_start == 0:
            return partition.appended_bytes
        known = self._known.get(channel)
        if known is None or known.log_start != partition.log_start or known.first_index is None:
            return None
        return partition.appended_bytes - known.given_up_bytes

    def start_by(
        self, channel: int, partition: Partition, rule: RetentionRule, old_until: OldUntil
    ) -> int:
        """Return where a partition is to start by its rule; its log start if nothing may go."""
        start = begin = partition.log_start
        if begin >= partition.next_offset:
            return begin
        known = self._of(channel, partition)
        if rule.retention_ms is not None and known.first_index is not None:
            last_old = old_until(rule.retention_ms)
            if known.first_index <= last_old:
                found = self._batches.offset_after(channel, begin, last_old)
                start = partition.next_offset if found is None else found
        if rule.retention_bytes is not None:
            excess = partition.appended_bytes - known.given_up_bytes - rule.retention_bytes
            if excess > 0:
                found = self._batches.offset_at_bytes(channel, begin, excess)
                start = max(start, partition.next_offset if found is None else found)
        return min(start, partition.next_offset)
