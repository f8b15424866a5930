"""Whether the calendar's clock of this machine can be believed: it must not leap.

Its hour decides when old files are removed. How old they are is no matter of this clock
(`group_time`), so a leap deletes nothing; it shows that something is wrong with the machine, and
cleaning by age rests until the clock has gone evenly for a while.
"""

STEP_MS = 60_000
"""Between two looks the calendar's clock may differ from the monotonic one by so much more or less:
looks are seconds to minutes apart, and clocks drift by less than a thousandth."""


class ClockWatch:
    """What one node notices of its clocks; times are milliseconds."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        self._stepped_ms = 0
        self.step_ms = 0
        """By how much the clock was set last; 0: never."""
        self.steps = 0

    def look(self, now_ms: int, wall_ms: int) -> int:
        """Compare both clocks; return by how much the wall clock was set since the last look.

        0 if it was not: whoever looks first after a step is told of it.
        """
        offset_ms = wall_ms - now_ms
        before_ms, self._offset_ms = self._offset_ms, offset_ms
        step_ms = 0 if before_ms is None else offset_ms - before_ms
        if abs(step_ms) <= STEP_MS:
            return 0
        self._stepped_ms, self.step_ms = now_ms, step_ms
        self.steps += 1
        return step_ms

    def rests_ms(self, now_ms: int, settle_ms: int) -> int:
        """Return how long it is still to be mistrusted, `settle_ms` from the last step on."""
        return max(0, self._stepped_ms + settle_ms - now_ms) if self.steps else 0
