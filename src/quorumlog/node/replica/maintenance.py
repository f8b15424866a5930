"""What a replica's log needs now and then: checkpoints, files made ahead, room, and retention."""

import logging
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.errors import (
    LeaderPendingFullError,
    NoSpaceError,
    OutOfDescriptorsError,
    StorageError,
)
from quorumlog.model.limits import Limits
from quorumlog.node.environment import Environment
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.raft.events import LogCompacted
from quorumlog.storage.files.space import DiskState
from quorumlog.storage.files.write_plans import Preparable, WritePlan
from quorumlog.storage.log.retention import RetentionInputs, last_to_remove, mark_pause_ms

if TYPE_CHECKING:
    from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

IDLE_PAUSES_MAX = 32
"""The pause between looks at a disk, in cleanIntervals, grows to this while nothing happens."""


class Maintenance:
    """Of one replica; called on its thread. `look` judges the group's disks, on any thread."""

    def __init__(
        self,
        replica: "Replica",
        look: Callable[[], DiskState],
        environment: Environment,
        limits: Limits,
    ) -> None:
        self._replica = replica
        self._look = look
        self._environment = environment
        self._limits = limits
        self._config = replica.config
        now_ms = environment.now_ms()
        self._next_checkpoint_ms = now_ms + self._config.check_point_interval
        self._next_look_ms = self._looked_ms = now_ms
        self._pauses = 1
        # so that a thousand groups do not look in the same moment
        self._share = (zlib.crc32(self._config.group.encode()) % 100) / 100
        self._seen: tuple[object, ...] = ()
        self._checkpointing = False
        self._looking = False
        self._settle_ms = mark_pause_ms(self._config)
        self._making: set[str] = set()
        self.group_time = GroupTime(replica, environment)
        self.disk = DiskState()

    # -- time -------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = NEVER_MS
            if self._checkpointing or self.checkpoint():
                self._next_checkpoint_ms = now_ms + self._config.check_point_interval
        if now_ms >= self._next_look_ms:
            self._looked_ms = now_ms
            self._next_look_ms = now_ms + self._look_pause_ms()
            self.prepare_files()
            if not self._looking:
                self._looking = True
                self._environment.executor.run(self._look, self._looked, self._look_failed)

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        return min(self._next_checkpoint_ms, self._next_look_ms)

    def changed(self) -> None:
        """Entries were written or committed: what rested goes on at its usual pace."""
        config = self._config
        checkpoint_ms = self._environment.now_ms() + config.check_point_interval
        self._next_checkpoint_ms = min(self._next_checkpoint_ms, checkpoint_ms)
        self._pauses = 1
        self._next_look_ms = min(self._next_look_ms, self._looked_ms + config.clean_interval)

    def _look_pause_ms(self) -> int:
        """Return the pause to the next look: longer and longer while all looks show the same."""
        core, log = self._replica.core, self._replica.log
        seen = (log.end_index, log.before_begin_index, core.committed_index, core.retention_floor)
        is_same = seen == self._seen and self.disk == DiskState()
        self._seen = seen
        self._pauses = min(self._pauses * 2, IDLE_PAUSES_MAX) if is_same else 1
        pause_ms = self._pauses * self._config.clean_interval
        return pause_ms if self._pauses == 1 else int(pause_ms * (1 - self._share / 2))

    # -- checkpoints ------------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Bound what the next opening has to read; at most one is under way.

        False if there was nothing new.
        """
        if self._replica.health_text or self._checkpointing:
            return False
        plan = self._replica.log.checkpoint()
        if plan is not None:
            self._checkpointing = True
            self._environment.disk.submit(self, None, plan)
        return plan is not None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._checkpointing

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`: checkpoints and removals are submitted here."""
        self._checkpointing = False

    def writes_completed(self) -> None:
        """See `WriteOwner`."""

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: the replica is told as well."""

    # -- room -------------------------------------------------------------------------------

    def full_text(self, size_bytes: int, *, is_mark: bool = False) -> str:
        """Say why so many bytes cannot be appended now; empty if they can.

        A time mark may go wherever a file that is made has room for it.
        """
        if is_mark and self._replica.log.room().size_bytes >= size_bytes:
            return ""
        if self.disk.full_text or not self.disk.is_tight:
            return self.disk.full_text
        room = self._replica.log.room()
        wanted = 2 * max(size_bytes, self._limits.push_bytes_max)
        if room.size_bytes >= wanted and room.entries >= self._limits.block_entries_max:
            return ""
        return "the disk has no room for another data file"

    def prepare_files(self) -> None:
        """Have the files made that appends will need soon, beside the appends."""
        if self._replica.health_text:
            return
        for file in self._replica.log.upcoming():
            if file.path not in self._making:
                self._making.add(file.path)
                self._make(file)

    def _make(self, file: Preparable) -> None:
        def done(_: None) -> None:
            self._making.discard(file.path)

        def failed(error: Exception) -> None:
            self._making.discard(file.path)
            if isinstance(error, NoSpaceError):
                # nothing was promised: appends are refused before they need the file
                self.disk = DiskState(
                    str(error), deletes_old=True, deletes_any=False, is_tight=True
                )
            elif isinstance(error, OutOfDescriptorsError):
                log_event(  # nothing was promised
                    logger,
                    logging.WARNING,
                    "file is made later",
                    file=str(file.path),
                    reason=str(error),
                )
            elif isinstance(error, StorageError):
                self._replica.write_failed(error)
                self._environment.broken(str(error))
            elif not isinstance(error, LeaderPendingFullError):
                # else the threads are busy: the next look or write asks again
                text = "making a file ahead failed"
                log_event(logger, logging.ERROR, text, exc_info=error, file=str(file.path))

        self._environment.executor.run(file.prepare, done, failed)

    def _looked(self, disk: DiskState) -> None:
        self._looking = False
        if disk.full_text != self.disk.full_text:
            text = disk.full_text or "there is room again"
            level = logging.ERROR if disk.full_text else logging.INFO
            log_event(logger, level, "disk", group=self._config.group, text=text)
        self.disk = disk
        self.prepare_files()
        self._watch_clock()
        self._clean()

    def _look_failed(self, error: Exception) -> None:
        self._looking = False
        if isinstance(error, LeaderPendingFullError):
            return  # the threads are busy; there is a next look
        log_event(logger, logging.WARNING, "cannot see how full the disk is", text=str(error))

    # -- retention --------------------------------------------------------------------------

    def remove_until(self, index: int) -> None:
        """Remove what is committed, durable, applied, in a machine's snapshot: up to an index."""
        replica, core = self._replica, self._replica.core
        applier = replica.applier
        last = min(
            index if applier.machine is None else min(index, applier.snapshotter.newest_index),
            core.committed_index,
            core.durable_index,
            replica.applied_index,
            replica.sessions.known_until,
        )
        if last > replica.log.before_begin_index and not (replica.health_text or replica.broken):
            self._move_begin(last)

    def _move_begin(self, before_begin_index: int) -> None:
        replica, log = self._replica, self._replica.log
        self._environment.disk.submit(self, None, log.reset(before_begin_index))
        replica.sessions.removed(log.before_begin_index)
        replica.tell(LogCompacted(log.before_begin_index, log.before_begin_term))

    def _clean(self) -> None:
        replica = self._replica
        if replica.health_text or replica.broken or replica.applier.machine is not None:
            return  # what a machine needs goes with its snapshots
        self.group_time.look()
        self._remove_old()

    def _watch_clock(self) -> None:
        """Tell people of a wall clock that was set, and clean nothing by age for a while."""
        environment = self._environment
        step_ms = environment.clocks.look(environment.now_ms(), environment.wall_ms())
        if step_ms:
            self._replica.raise_alarm(
                f"the wall clock was set {'forward' if step_ms > 0 else 'back'} by "
                f"{abs(step_ms) / 1_000:.0f} s, or this machine was suspended: look after its time "
                "synchronisation. No entry is older for that; cleaning by age rests until the "
                f"clock has gone evenly for {self._settle_ms // 1_000} s"
            )

    @property
    def retention_text(self) -> str:
        """Why nothing is removed by age at present; empty if it may be."""
        clocks = self._environment.clocks
        rests_ms = clocks.rests_ms(self._environment.now_ms(), self._settle_ms)
        if not rests_ms:
            return ""
        return (
            f"cleaning by age rests for another {-(-rests_ms // 1_000)} s: the wall clock was set "
            f"by {clocks.step_ms / 1_000:+.0f} s"
        )

    def _remove_old(self) -> None:
        replica = self._replica
        segments = replica.log.segments()
        moment = RetentionInputs(
            self.group_time.age_ms,
            self._environment.hour_of_day(),
            clock_is_steady=not self.retention_text,
            applied_index=min(replica.core.committed_index, replica.sessions.known_until),
            peers_have=replica.core.retention_floor,
        )
        size_bytes = replica.log.size_bytes
        last = last_to_remove(segments, size_bytes, self._config, self.disk, moment)
        if last is None or last <= replica.log.before_begin_index:
            return
        removed = [segment for segment in segments if segment.last_index <= last]
        size = sum(segment.size_bytes for segment in removed)
        replica.counters.segments_removed += len(removed)
        replica.counters.bytes_removed += size
        log_event(
            logger,
            logging.INFO,
            "old entries removed",
            group=self._config.group,
            first_index_kept=last + 1,
            files=len(removed),
            bytes=size,
        )
        self._move_begin(last)
