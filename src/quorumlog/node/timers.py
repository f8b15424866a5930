"""When the replicas of a node are ticked: one timer of the event loop serves all of them.

Everything that is due in the same millisecond happens in the same turn of the loop, so that the
messages of many groups can travel together.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable

from quorumlog.log_events import log_event

logger = logging.getLogger(__name__)

LONGEST_SLEEP_MS = 3_600_000
"""The timer fires at least this often, even if nothing is ever due."""
TICKS_MAX = 256
"""Replicas ticked in one turn of the loop; sockets are polled before the next ones."""
LATE_MS = 50
"""A timer that is late by this much, since the process was stopped or busy, lets sockets be read
first: the silence on which it would act may be over."""
READ_FIRST_S = 0.001
"""Least delay of a timer: due at once, it could run before sockets are polled again."""
STALE_MAX = 1_024
"""Replaced deadlines that may still be in the heap, beyond one for each timer."""


class Timer:
    """One deadline: `tick` is called at the time asked for; an earlier one replaces it."""

    __slots__ = ("_queue", "deadline_ms", "tick")

    def __init__(self, queue: "TimerQueue") -> None:
        self._queue = queue
        self.deadline_ms: int | None = None
        self.tick: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Call `tick` no more."""
        self.tick, self.deadline_ms = lambda: None, None
        self._queue.forget()

    def wake_at(self, deadline_ms: int) -> None:
        """Call `tick` at the deadline, or at an earlier one already asked for."""
        if self.deadline_ms is None or deadline_ms < self.deadline_ms:
            self.deadline_ms = deadline_ms
            self._queue.add(self, deadline_ms)


class TimerQueue:
    """All timers of one node; its methods run on the event loop's thread.

    `failed` is called with what a `tick` raised: a node must not go on without a timer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._failed = failed
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0
        self._timers = 0
        self._handle: asyncio.Handle | None = None
        self._fires_ms = self._due_ms = 0
        self._stopped = False

    def new(self) -> Timer:
        """Return the timer of another replica."""
        self._timers += 1
        return Timer(self)

    def forget(self) -> None:
        """One timer less; called by `Timer`."""
        self._timers -= 1

    def add(self, timer: Timer, deadline_ms: int) -> None:
        """Schedule a timer; called by `Timer`."""
        self._number += 1
        heapq.heappush(self._heap, (deadline_ms, self._number, timer))
        if len(self._heap) > self._timers + STALE_MAX:
            self._heap = [item for item in self._heap if item[2].deadline_ms == item[0]]
            heapq.heapify(self._heap)
        self._schedule()

    def _schedule(self) -> None:
        if not self._heap or self._stopped:
            return
        deadline_ms = self._heap[0][0]
        if self._handle is not None:
            if self._fires_ms <= deadline_ms:
                return
            self._handle.cancel()
        now_ms = self._now_ms()
        self._fires_ms, self._due_ms = deadline_ms, max(deadline_ms, now_ms)
        delay = min(self._due_ms - now_ms, LONGEST_SLEEP_MS) / 1000
        self._handle = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        """Call the timers that are due; if late, poll sockets first (uvloop runs timers first)."""
        if self._now_ms() - self._due_ms >= LATE_MS:
            self._handle = self._loop.call_later(READ_FIRST_S, self._wake_due)
        else:
            self._wake_due()

    def _wake_due(self) -> None:
        self._handle = None
        now_ms = self._now_ms()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < TICKS_MAX:
            deadline_ms, _, timer = heapq.heappop(self._heap)
            if timer.deadline_ms == deadline_ms:
                timer.deadline_ms = None
                due.append(timer)
        for timer in due:
            try:
                timer.tick()
            except Exception as error:  # it may not have scheduled its timer again
                log_event(logger, logging.ERROR, "a timer failed", exc_info=error)
                self._failed(error)
        self._schedule()

    def stop(self) -> None:
        """Call no timer any more."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
