"""Retention of partitions: their leader moves log start offsets, by rules and on request.

The offsets move by entries of the log, so that all replicas agree on them, and each replica removes
the data files in which no partition offers anything (`retention`). How old a batch is, is counted
by the group's time; marks of it follow the batches while a rule asks for their age.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec

from quorumlog.model.block import parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.group_time import Aging, GroupTime
from quorumlog.node.replica.partition_reads import PartitionReads
from quorumlog.node.replica.proposals import Propose
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.log.retention import MARKS_PER_PERIOD, PAUSE_MS_MAX
from quorumlog.topics.entries import STARTS_MAX, LogStartsMoved
from quorumlog.topics.partition_table import Partition
from quorumlog.topics.retention import PartitionSpace, RetentionRule

PARTITIONS_PER_TURN: Final = 500
"""Partitions that are checked in one turn of the event loop."""
DELAYS_A_PAUSE: Final = 6
"""Batches get their mark after this share of the pause between marks: ten minutes of an hour."""
HIGH_WATERMARK: Final = -1
"""Instead of an offset: everything that may be read now."""


class DeletedRecords(msgspec.Struct, frozen=True):
    """The answer to a deletion: where the partition starts now, -1 if there is none."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    log_start: int = -1


Answer: TypeAlias = Callable[[DeletedRecords], None]
Confirm: TypeAlias = Callable[[Callable[[bool], None]], None]
"""Calls a function, with whether the newest rules are set."""


def _confirmed(done: Callable[[bool], None]) -> None:
    done(True)


class _Content(NamedTuple):
    """What partitions and their rules are found in: while it is the same, so are they.

    `version` is that of the rules.
    """

    before_begin_index: int
    end_index: int
    as_of: int
    replacements: int
    version: int


class _Looked(NamedTuple):
    """At what a check looks. `old`: up to which index entries are older than each period."""

    content: _Content
    old: tuple[int, ...]


class PartitionRetention:
    """The part of a replica that moves log starts, and counts what partitions have.

    All methods but `known_bytes` run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        tables: Tables,
        reads: PartitionReads,
        propose: Propose,
        group_time: GroupTime,
    ) -> None:
        self._context = context
        self._tables = tables
        self._reads = reads
        self._propose = propose
        self._group_time = group_time
        self._rules: dict[int, RetentionRule] = {}
        self._rules_set = 0
        self._confirm: Confirm = _confirmed
        self._periods: tuple[int, ...] = ()
        self._counted_content: _Content | None = None
        self._aged: tuple[_Content, Aging | None] | None = None
        self._settled: _Looked | None = None
        """When nothing was to be given up; the same is not looked at again."""
        self._space = PartitionSpace(tables.batches)
        self._seen_replacements = tables.replacements
        self._is_moving = False
        self._timer = context.timers.new(self._due, is_for_writes=True)
        if context.config.kind == "partitions":
            group_time.aging = self._aging
            self._timer.set(context.environment.now_ms())

    def set_rules(self, rules: Mapping[int, RetentionRule], confirm: Confirm = _confirmed) -> None:
        """Retain each partition by its rule from now on, and all others as they are.

        Whichever replica leads moves log starts, so all may be given the same rules. `confirm` is
        asked before anything is given up: these rules may have been replaced elsewhere.
        """
        self._confirm = confirm
        self._rules = {channel: rule for channel, rule in rules.items() if rule.is_bound}
        self._rules_set += 1
        periods = {rule.retention_ms for rule in self._rules.values()}
        self._periods = tuple(one for one in periods if one is not None)

    def _content(self) -> _Content:
        log, tables = self._context.log, self._tables
        return _Content(
            log.before_begin_index,
            log.end_index,
            tables.as_of,
            tables.replacements,
            self._rules_set,
        )

    def readable_bytes(self, channel: int) -> int:
        """Return the bytes of the batches that may be read of a partition."""
        partition = self._reads.partition(channel)
        return 0 if partition is None else self._counted().readable_bytes(channel, partition)

    def known_bytes(self, channel: int) -> int | None:
        """Return `readable_bytes` on any thread; None: it was not counted yet."""
        partition = self._reads.partition(channel)
        return 0 if partition is None else self._space.known_bytes(channel, partition)

    def _count(self, channels: Iterator[int]) -> None:
        """Count what partitions have, for `known_bytes`; go on in another turn."""
        if self._context.is_broken:
            return
        counted = 0
        for channel in islice(channels, PARTITIONS_PER_TURN):
            counted += 1
            self.readable_bytes(channel)
        if counted == PARTITIONS_PER_TURN:
            self._context.environment.defer(partial(self._count, channels))
        else:
            self._space.keep_only(set(self._tables.partitions.partitions))

    def _counted(self) -> PartitionSpace:
        tables = self._tables
        is_short = self._context.log.end_index < tables.as_of  # batches are still to come
        if is_short or tables.replacements != self._seen_replacements:
            self._seen_replacements = tables.replacements
            self._space.forget()
        return self._space

    # -- on request ---------------------------------------------------------------------------

    def delete_records(self, channel: int, offset: int, answer: Answer) -> None:
        """Give up the records of a partition before an offset, or `HIGH_WATERMARK`.

        Answered once that is committed; at once if they were given up before.
        """
        refused, partition = self._reads.refusal(), self._reads.partition(channel)
        if refused is not None:
            answer(DeletedRecords(*refused))
        elif partition is None:
            text = f"there is no partition on channel {channel}"
            answer(DeletedRecords(ResponseCode.UNKNOWN_PARTITION, text))
        elif not HIGH_WATERMARK <= offset <= partition.next_offset:
            start, end = partition.log_start, partition.next_offset
            text = f"offset {offset} is outside {start} to {end}"
            answer(DeletedRecords(ResponseCode.INDEX_OUT_OF_RANGE, text, start))
        else:
            start = partition.next_offset if offset == HIGH_WATERMARK else offset
            if start <= partition.log_start:
                answer(DeletedRecords(log_start=partition.log_start))
            else:
                self._move([(channel, start)], partial(self._deleted, channel, answer))

    def _deleted(
        self, channel: int, answer: Answer, response: AppendResponse, _: Sequence[bytes]
    ) -> None:
        partition = self._reads.partition(channel)
        log_start = -1 if partition is None else partition.log_start
        answer(DeletedRecords(ResponseCode(response.code), response.text, log_start))

    def _move(
        self,
        starts: Sequence[tuple[int, int]],
        answer: Callable[[AppendResponse, Sequence[bytes]], None],
    ) -> None:
        entry = LogStartsMoved(tuple(starts))
        data = entry.encode()
        block = parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=len(data))
        self._propose(block, answer, entry)

    # -- by rules -----------------------------------------------------------------------------

    def _aging(self) -> Aging | None:
        """Return which batches grow old; see `GroupTime.aging`.

        The period of a partition counts only while it has records: a short one would otherwise
        demand marks until the batches of all others are old.
        """
        content = self._content()
        if self._aged is None or self._aged[0] != content:
            self._aged = content, self._find_aging()
        return self._aged[1]

    def _find_aging(self) -> Aging | None:
        partitions = self._tables.partitions.partitions
        periods = [
            rule.retention_ms
            for channel, rule in self._rules.items()
            if rule.retention_ms is not None
            and (partition := partitions.get(channel)) is not None
            and partition.log_start < partition.next_offset
        ]
        newest = self._tables.batches.newest_index
        if not periods or newest < 0:
            return None
        pause_ms = min(PAUSE_MS_MAX, min(periods) // MARKS_PER_PERIOD)
        return Aging(newest, max(periods), pause_ms, pause_ms // DELAYS_A_PAUSE)

    def _due(self, now_ms: int) -> None:
        self._timer.set(now_ms + self._context.config.clean_interval)
        content = self._content()
        if content != self._counted_content:
            self._counted_content = content
            self._count(iter(list(self._tables.partitions.partitions)))
        if self._may_move() and self._rules and not self._is_moving:
            self._group_time.check()
            looked = _Looked(content, tuple(map(self._group_time.old_until, self._periods)))
            if looked != self._settled:
                self._is_moving = True
                self._check(iter(list(self._rules.items())), [], looked)

    def _may_move(self) -> bool:
        """Whether this replica leads, and knows all batches that it counts."""
        context, tables, core = self._context, self._tables, self._context.core
        is_whole = tables.is_trusted and not tables.is_incomplete
        leads = core.role is Role.LEADER and core.is_ready
        return leads and is_whole and not context.is_broken

    def _check(
        self,
        rules: Iterator[tuple[int, RetentionRule]],
        moved: list[tuple[int, int]],
        looked: _Looked,
    ) -> None:
        """Check the next partitions, and go on in another turn."""
        if not self._may_move():
            self._is_moving = False
            return
        partitions, space = self._tables.partitions.partitions, self._counted()
        checked = 0
        for channel, rule in islice(rules, PARTITIONS_PER_TURN):
            checked += 1
            partition = partitions.get(channel)
            if partition is not None and len(moved) < STARTS_MAX:
                start = self._start_of(space, channel, partition, rule)
                if start > partition.log_start:
                    moved.append((channel, start))
        if checked == PARTITIONS_PER_TURN:
            self._context.environment.defer(partial(self._check, rules, moved, looked))
        elif moved:
            self._confirm(partial(self._move_if_confirmed, self._rules_set, moved))
        else:
            self._is_moving = False
            self._settled = looked
            space.keep_only(set(partitions))

    def _move_if_confirmed(
        self, version: int, moved: Sequence[tuple[int, int]], are_newest: bool
    ) -> None:
        if are_newest and version == self._rules_set and self._may_move():
            self._move(moved, self._moved)
        else:
            self._is_moving = False  # the next check decides by the rules of then

    def _start_of(
        self, space: PartitionSpace, channel: int, partition: Partition, rule: RetentionRule
    ) -> int:
        return space.start_by(channel, partition, rule, self._group_time.old_until)

    def _moved(self, response: AppendResponse, _: Sequence[bytes]) -> None:
        """An entry was answered; if it was refused, the next check tries again."""
        self._is_moving = False
