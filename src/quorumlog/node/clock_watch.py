"""Whether the wall clock of this machine can be trusted: it must not jump.

Its hour decides when old files are removed. Their age does not come from this clock
(`group_time`), so a jump deletes nothing. It shows that something is wrong with the machine, so
cleaning by age pauses until the clock has run evenly for a while.
"""

STEP_MS = 60_000
"""The wall clock may gain or lose this much against the monotonic clock between two checks: they
are seconds to minutes apart, and clocks drift by less than a thousandth."""


class ClockWatch:
    """What one node notices of its clocks; times are milliseconds."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        self._stepped_ms = 0
        self.step_ms = 0
        """By how much the clock was set last; 0: never."""
        self.steps = 0

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Compare both clocks; return by how much the wall clock was set since the last check.

        It returns 0 if the clock was not set; a step is reported to the first caller after it only.
        """
        offset_ms = wall_ms - now_ms
        before_ms, self._offset_ms = self._offset_ms, offset_ms
        step_ms = 0 if before_ms is None else offset_ms - before_ms
        if abs(step_ms) <= STEP_MS:
            return 0
        self._stepped_ms, self.step_ms = now_ms, step_ms
        self.steps += 1
        return step_ms

    def mistrusted_ms(self, now_ms: int, steady_ms: int) -> int:
        """Return for how long the clock is still mistrusted: `steady_ms` after its last step."""
        return max(0, self._stepped_ms + steady_ms - now_ms) if self.steps else 0
