"""Removing entries from the start of a replica's log: old ones, and those that snapshots cover."""

import logging
from collections.abc import Sequence

from quorumlog.log_events import log_event
from quorumlog.model.errors import StorageError
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.tables import Tables
from quorumlog.raft.events import LogCompacted
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.interface import Segment
from quorumlog.storage.log.retention import (
    RetentionInputs,
    last_to_remove,
    last_unneeded,
    mark_pause_ms,
)

logger = logging.getLogger(__name__)


class Retention:
    """The part of a replica that removes entries; its methods run on the event loop's thread."""

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        tables: Tables,
        space: DiskSpace,
        group_time: GroupTime,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._machine = machine
        self._tables = tables
        self._space = space
        self._steady_ms = mark_pause_ms(context.config)
        self.group_time = group_time

    def remove_until(self, index: int) -> None:
        """Remove entries up to an index that are committed, durable, applied and in a snapshot.

        A plain log has no snapshots and needs none.
        """
        context, core, machine = self._context, self._context.core, self._machine
        last = min(
            index if machine.machine is None else min(index, machine.newest_index),
            core.committed_index,
            core.durable_index,
            machine.applied_index,
            self._tables.known_until,
        )
        is_stopped = context.health_text or context.is_broken
        if last > context.log.before_begin_index and not is_stopped:
            self._remove(last)

    def _remove(self, last_index: int) -> None:
        context, log = self._context, self._context.log
        self._environment.disk.submit(self, None, log.reset(last_index))
        self._tables.removed(log.before_begin_index)
        context.step(LogCompacted(log.before_begin_index, log.before_begin_term))

    def clean(self) -> None:
        """Remove entries by age and size, or what no partition offers any more.

        Where there is a machine, snapshots set the limit.
        """
        context = self._context
        if context.health_text or context.is_broken or self._machine.machine is not None:
            return
        self.group_time.check()
        self._remove_old()

    def watch_clock(self) -> None:
        """Report a wall clock that was set to operators, and pause cleaning by age for a while."""
        environment = self._environment
        step_ms = environment.clocks.check(environment.now_ms(), environment.wall_ms())
        if step_ms:
            self._context.raise_alarm(
                f"the wall clock was set {'forward' if step_ms > 0 else 'back'} by "
                f"{abs(step_ms) / 1_000:.0f} s, or this machine was suspended: look after its time "
                "synchronisation. No entry is older for that; cleaning by age rests until the "
                f"clock has gone evenly for {self._steady_ms // 1_000} s"
            )

    @property
    def text(self) -> str:
        """Why nothing is removed by age at present; empty if removal goes on."""
        clocks = self._environment.clocks
        pause_ms = clocks.mistrusted_ms(self._environment.now_ms(), self._steady_ms)
        if not pause_ms:
            return ""
        return (
            f"cleaning by age rests for another {-(-pause_ms // 1_000)} s: the wall clock was set "
            f"by {clocks.step_ms / 1_000:+.0f} s"
        )

    def _remove_old(self) -> None:
        context = self._context
        segments = context.log.segments()
        is_of_partitions = context.config.kind == "partitions"
        last_needless = self._last_unoffered() if is_of_partitions and segments else None
        applied_index = min(context.core.committed_index, self._tables.known_until)
        inputs = RetentionInputs(
            self.group_time.age_ms,
            self._environment.hour_of_day(),
            clock_is_steady=not self.text,
            applied_index=applied_index if last_needless is None else last_needless,
            peers_have=context.core.retention_floor,
        )
        size_bytes = context.log.size_bytes
        if is_of_partitions:
            last = last_unneeded(segments, size_bytes, context.config, inputs)
        else:
            last = last_to_remove(segments, size_bytes, context.config, self._space.disk, inputs)
        log_event(
            logger,
            logging.DEBUG,
            "looked for old entries",
            group=context.config.group,
            bytes=size_bytes,
            files=len(segments),
            applied_index=inputs.applied_index,
            peers_have=inputs.peers_have,
            removes_until=last,
            text=self.text,
        )
        if last is not None and last > context.log.before_begin_index:
            self._remove_segments(last, segments)

    def _last_unoffered(self) -> int:
        """Return the last committed index before everything that partitions offer."""
        tables, context = self._tables, self._context
        before = context.log.before_begin_index
        if tables.is_incomplete or not tables.is_trusted:
            return before
        starts = {
            channel: partition.log_start
            for channel, partition in tables.partitions.partitions.items()
            if partition.log_start < partition.next_offset
        }
        first = tables.batches.first_needed(starts, before + 1)
        last = min(context.core.committed_index, tables.as_of)
        return last if first is None else min(first - 1, last)

    def _remove_segments(self, last: int, segments: Sequence[Segment]) -> None:
        removed = [segment for segment in segments if segment.last_index <= last]
        size = sum(segment.size_bytes for segment in removed)
        self._context.counters.segments_removed += len(removed)
        self._context.counters.bytes_removed += size
        log_event(
            logger,
            logging.INFO,
            "old entries removed",
            group=self._context.config.group,
            first_index_kept=last + 1,
            files=len(removed),
            bytes=size,
        )
        self._remove(last)

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`: nothing waits for a removal."""

    def writes_completed(self) -> None:
        """See `WriteOwner`."""

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: the failure is reported to the replica as well."""
