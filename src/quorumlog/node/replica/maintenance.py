"""What a replica's log needs now and then: checkpoints, preallocated files, and retention."""

import logging
import zlib

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.errors import StorageError
from quorumlog.node.checkpoint_pace import BYTES_MAX
from quorumlog.node.replica.batch_sealer import BatchSealer
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.retention import Retention
from quorumlog.storage.files.space import DiskState
from quorumlog.storage.files.write_plans import WritePlan

logger = logging.getLogger(__name__)

IDLE_PAUSES_MAX = 32
"""The pause between checks of a disk, in cleanIntervals, grows to this while nothing happens."""


class Maintenance:
    """The part of a replica that schedules the maintenance of its log, and writes checkpoints.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        space: DiskSpace,
        retention: Retention,
        sealer: BatchSealer,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self.space = space
        self.retention = retention
        self._sealer = sealer
        now_ms = context.environment.now_ms()
        self._checkpoint_timer = context.timers.new(self._checkpoint_due, is_for_writes=True)
        self._set_checkpoint_timer(now_ms)  # opening wrote the first
        self._clean_timer = context.timers.new(self._clean_due, is_for_writes=True)
        self._clean_timer.set(now_ms)
        self._cleaned_ms = now_ms
        self._has_turn = False
        """Whether the timer is set to the time that the node gave this group to clean."""
        self._pauses = 1
        # so that a thousand groups do not check at the same moment
        self._share = (zlib.crc32(self._context.config.group.encode()) % 100) / 100
        self._seen: tuple[object, ...] = ()
        self._checkpointing = False
        self._checkpointed_ms = now_ms
        self._checkpointed_size = context.log.size_bytes

    # -- time -------------------------------------------------------------------------------

    def _checkpoint_due(self, now_ms: int) -> None:
        if self._checkpointing or self.checkpoint():
            self._set_checkpoint_timer(now_ms)

    def _set_checkpoint_timer(self, now_ms: int) -> None:
        pace, config = self._environment.checkpoints, self._context.config
        pause_ms = pace.pause_ms(config.group, now_ms, config.check_point_interval)
        self._checkpoint_timer.set(now_ms + pause_ms)

    def _clean_due(self, now_ms: int) -> None:
        if not self._has_turn:
            at_ms = self._environment.cleanings.take(now_ms)
            if at_ms > now_ms:
                self._has_turn = True
                self._clean_timer.set(at_ms)
                return
        self._has_turn = False
        self._cleaned_ms = now_ms
        self._clean_timer.set(now_ms + self._clean_pause_ms())
        self.space.prepare_files()
        self.space.check(self._space_checked)
        self._sealer.check()

    def _space_checked(self) -> None:
        self.retention.watch_clock()
        self.retention.clean()

    def changed(self) -> None:
        """Entries were written or committed: clean and write checkpoints at the usual pace."""
        config = self._context.config
        if self._checkpoint_timer.due_ms == NEVER_MS:
            self._set_checkpoint_timer(self._environment.now_ms())
        elif self._context.log.size_bytes - self._checkpointed_size > BYTES_MAX:
            self._checkpoint_timer.set_earlier(self._checkpointed_ms + config.check_point_interval)
        if self._pauses > 1:
            self._pauses = 1
            if self._has_turn:
                return
            self._clean_timer.set_earlier(self._cleaned_ms + config.clean_interval)

    def _clean_pause_ms(self) -> int:
        """Return the pause before the next cleaning; it grows while nothing has changed."""
        core, log = self._context.core, self._context.log
        seen = (log.end_index, log.before_begin_index, core.committed_index, core.retention_floor)
        is_same = seen == self._seen and self.space.disk == DiskState()
        self._seen = seen
        self._pauses = min(self._pauses * 2, IDLE_PAUSES_MAX) if is_same else 1
        pause_ms = self._pauses * self._context.config.clean_interval
        return pause_ms if self._pauses == 1 else int(pause_ms * (1 - self._share / 2))

    # -- checkpoints ------------------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Write a checkpoint, unless one is under way; it bounds what the next start has to read.

        Returns False if there was nothing new.
        """
        if self._context.health_text or self._checkpointing:
            return False
        plan = self._context.log.checkpoint()
        if plan is not None:
            self._checkpointing = True
            self._checkpointed_ms = self._environment.now_ms()
            self._checkpointed_size = self._context.log.size_bytes
            self._environment.disk.submit(self, None, plan)
        return plan is not None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._checkpointing

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`: the checkpoint is durable."""
        self._checkpointing = False
        context, core = self._context, self._context.core
        log_event(
            logger,
            logging.DEBUG,
            "checkpoint written",
            group=context.config.group,
            end_index=context.log.end_index,
            durable_index=core.durable_index,
            committed_index=core.committed_index,
        )

    def writes_completed(self) -> None:
        """See `WriteOwner`."""

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: the failure is reported to the replica as well."""
