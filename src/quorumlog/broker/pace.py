"""When a broker looks at what its replicas lead, and at what is due."""

from collections.abc import Callable
from typing import Final, Protocol

LOOK_MS: Final = 25
"""Pause between two looks while something goes on."""
QUIET_LOOK_MS: Final = 250
"""Pause while nothing does: so late a broker notices at most what nobody tells it, such as that a
follower lags."""
LATELY_MS: Final = 1_000
"""Something goes on for this long after a change."""


class PaceTimer(Protocol):
    """A timer of the node (`node.timers.Timer`). `tick` is called at the deadline."""

    tick: Callable[[], None]

    def wake_at(self, deadline_ms: int) -> None:
        """Call `tick` at the deadline, or at an earlier one already asked for."""
        ...

    def end(self) -> None:
        """Call `tick` no more."""
        ...


class Pace:
    """Decides when a broker looks next. `now_ms` reads a monotonic clock.

    A look costs as much whether it finds something or not, and most of the time there is nothing.
    """

    def __init__(self, timer: PaceTimer, now_ms: Callable[[], int]) -> None:
        self._timer = timer
        self._now_ms = now_ms
        self._looked_ms = -LOOK_MS
        self._changed_ms = now_ms()

    def start(self, look: Callable[[], None]) -> None:
        """Call `look` now, and whenever it is due."""
        self._timer.tick = look
        look()

    def end(self) -> None:
        """Call it no more."""
        self._timer.end()

    def looks(self) -> None:
        """A look begins."""
        self._looked_ms = now_ms = self._now_ms()
        is_quiet = now_ms - self._changed_ms >= LATELY_MS
        self._timer.wake_at(now_ms + (QUIET_LOOK_MS if is_quiet else LOOK_MS))

    def soon(self) -> None:
        """Something is under way: look again after `LOOK_MS`."""
        self._timer.wake_at(self._now_ms() + LOOK_MS)

    def changed(self) -> None:
        """Something has changed: look at once, unless the last look was just now."""
        self._changed_ms = now_ms = self._now_ms()
        self._timer.wake_at(max(now_ms, self._looked_ms + LOOK_MS))
