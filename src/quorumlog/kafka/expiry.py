"""Since when something must be unused so that a coordinator may forget it.

When it was used last is known by the wall clocks of this coordinator and of earlier ones, which may
be wrong. So a coordinator also waits until it has coordinated for a while itself, by a clock that
never goes back, and its wall clock has gone evenly: who still uses something has used it by then.
"""

from collections.abc import Callable
from typing import Final

GRACE_MS: Final = 3_600_000
"""How long a coordinator forgets nothing, or for as long as things are kept if that is shorter."""
STEP_MS: Final = 60_000
"""The wall clock may gain or lose this much against the other clock between two looks."""


class ExpiryClock:
    """The clocks of a coordinator that forgets what is not used.

    Times are in milliseconds: `now_ms` of a clock that never goes back, `wall_ms` in Unix time.
    """

    def __init__(self, now_ms: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._begun_ms = self._offset_ms = 0
        self.begin()

    def begin(self) -> None:
        """The node begins to coordinate."""
        self._begun_ms = self._now_ms()
        self._offset_ms = self._wall_ms() - self._begun_ms

    def limit_ms(self, kept_ms: int) -> int | None:
        """Return the Unix time before which things were used last that are kept for `kept_ms`.

        None: nothing may be forgotten yet. The wait begins again once the wall clock was set.
        """
        now_ms, wall_ms = self._now_ms(), self._wall_ms()
        offset_ms = wall_ms - now_ms
        if abs(offset_ms - self._offset_ms) > STEP_MS:
            self._begun_ms = now_ms
        self._offset_ms = offset_ms
        if now_ms - self._begun_ms < min(kept_ms, GRACE_MS):
            return None
        return wall_ms - kept_ms
