"""When the parts of a replica are due: each part sets its own timers, and is not polled.

The time at which a part has something to do is kept in one place, its timer. All timers of a
replica share the one that the node has for it, which calls `PartTimers.tick` at the earliest time.
"""

from collections.abc import Callable

from quorumlog.model.bounds import NEVER_MS


class PartTimer:
    """One time at which one part is called; `due_ms` is `NEVER_MS` while it is not to be.

    `tick` gets the present time; it may be called late.
    """

    __slots__ = ("_wake_at", "due_ms", "is_for_writes", "tick")

    def __init__(
        self, wake_at: Callable[[int], None], tick: Callable[[int], None], *, is_for_writes: bool
    ) -> None:
        self._wake_at = wake_at
        self.tick = tick
        self.is_for_writes = is_for_writes
        self.due_ms = NEVER_MS

    def set(self, due_ms: int) -> None:
        """Call `tick` at this time, and at no other that was asked for before."""
        self.due_ms = due_ms
        if due_ms != NEVER_MS:
            self._wake_at(due_ms)

    def set_earlier(self, due_ms: int) -> None:
        """Call `tick` at this time, unless it is called earlier anyway."""
        if due_ms < self.due_ms:
            self.set(due_ms)

    def clear(self) -> None:
        """Do not call `tick`."""
        self.due_ms = NEVER_MS


class PartTimers:
    """The timers of one replica's parts. All methods run on the event loop's thread."""

    def __init__(self, now_ms: Callable[[], int], wake_at: Callable[[int], None]) -> None:
        self._now_ms = now_ms
        self._wake_at = wake_at
        self._timers: list[PartTimer] = []
        self._has_failed = False

    def new(self, tick: Callable[[int], None], *, is_for_writes: bool = False) -> PartTimer:
        """Return a timer; one that is `is_for_writes` stops once a write has failed."""
        timer = PartTimer(self._wake_at, tick, is_for_writes=is_for_writes)
        self._timers.append(timer)
        return timer

    def stop_writes(self) -> None:
        """A write has failed: call no part any more that would write."""
        self._has_failed = True
        self._timers = [timer for timer in self._timers if not timer.is_for_writes]

    def next_due_ms(self) -> int:
        """Return when `tick` has something to do."""
        return min([timer.due_ms for timer in self._timers], default=NEVER_MS)

    def tick(self) -> None:
        """Call the parts that are due, then have the node call again for the next one."""
        now_ms = self._now_ms()
        for timer in self._timers:
            if timer.due_ms <= now_ms and not (timer.is_for_writes and self._has_failed):
                timer.due_ms = NEVER_MS
                timer.tick(now_ms)
        due_ms = self.next_due_ms()
        if due_ms != NEVER_MS:
            self._wake_at(due_ms)
