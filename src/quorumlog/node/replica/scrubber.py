"""Reads the log now and then, so that damage is found before a reader meets it.

A pass starts with the process and every `scrubIntervalHours`, and reads `scrubBytesPerSecond`.
"""

import logging
from collections.abc import Callable

from quorumlog.log_events import log_event
from quorumlog.model.errors import CorruptionError, RequestError, StorageError
from quorumlog.node.replica.context import ReplicaContext

logger = logging.getLogger(__name__)

STEP_BYTES = 512 * 1024
"""Read and checked at a time; the rate decides how often."""
EMPTY_RETRY_MS = 1_000
"""Pause before a log that has no committed entry on its disk is checked again."""


class Scrubber:
    """The part of a replica that checks its log on a thread of the executor.

    `found` is called with damage; all methods run on the event loop's thread. `index` is the last
    entry that was checked in this pass, -1 between passes; `damage_found` counts damaged entries.
    """

    def __init__(self, context: ReplicaContext, found: Callable[[CorruptionError], None]) -> None:
        self._context = context
        self._environment = context.environment
        self._found = found
        now_ms = context.environment.now_ms()
        self._timer = context.timers.new(self._scrub, is_for_writes=True)
        if context.config.scrub_bytes_per_second:
            self._timer.set(now_ms)
        self._pass_started_ms = now_ms
        self._pass_end = -1
        self.index = -1
        self.passes = 0
        self.last_pass_ms = 0
        self.damage_found = 0

    def _scrub(self, now_ms: int) -> None:
        """Check the next part of the log; a pass ends at the committed index."""
        context = self._context
        if self.index >= self._pass_end and not self._begin_pass(now_ms):
            return
        first = max(self.index, context.log.before_begin_index) + 1
        last = self._pass_end
        if first > last:
            self._end_pass(now_ms)
            return
        pause_ms = max(1, STEP_BYTES * 1_000 // self._context.config.scrub_bytes_per_second)
        log = context.log

        def check() -> int:
            return log.verify(first, last, STEP_BYTES)

        def done(checked: int) -> None:
            self.index = checked
            self._timer.set(self._environment.now_ms() + pause_ms)
            if checked >= last:
                self._end_pass(self._environment.now_ms())

        def failed(error: Exception) -> None:
            self._timer.set(self._environment.now_ms() + pause_ms)
            if isinstance(error, CorruptionError) and error.index is not None:
                self.damage_found += 1
                self.index = error.index
                self._found(error)
            elif not isinstance(error, StorageError | RequestError):
                text = "scrub failed"
                group = self._context.config.group
                log_event(logger, logging.ERROR, text, exc_info=error, group=group)

        self._environment.executor.run(check, done, failed)

    def _begin_pass(self, now_ms: int) -> bool:
        """Start again at the first entry; False while there is none."""
        # an entry that a majority has may not be on this disk yet
        core = self._context.core
        committed = min(core.committed_index, core.durable_index)
        self._pass_started_ms = now_ms
        if committed <= self._context.log.before_begin_index:
            self._timer.set(now_ms + EMPTY_RETRY_MS)
            return False
        self.index, self._pass_end = self._context.log.before_begin_index, committed
        return True

    def _end_pass(self, now_ms: int) -> None:
        self.passes += 1
        self.last_pass_ms = self._environment.wall_ms()
        self.index = self._pass_end = -1
        interval_ms = int(self._context.config.scrub_interval_hours * 3_600_000)
        self._timer.set(max(now_ms + 1, self._pass_started_ms + interval_ms))
