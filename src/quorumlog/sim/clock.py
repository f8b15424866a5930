"""A machine's clocks: they drift, the calendar jumps, and a suspended machine's stand still."""

from collections.abc import Callable


class Clock:
    """Local time of one machine, derived from the world's.

    The monotonic clock runs at `rate` and never goes back; the calendar's clock is it plus `skew`.
    """

    def __init__(self, world_us: Callable[[], int]) -> None:
        self._world_us = world_us
        self._base_world_us = world_us()
        self._base_us = 0
        self.rate = 1.0
        self.skew_ms = 0

    @property
    def now_us(self) -> int:
        """Microseconds of the monotonic clock."""
        return self._base_us + int((self._world_us() - self._base_world_us) * self.rate)

    @property
    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self.now_us // 1_000

    @property
    def wall_ms(self) -> int:
        """Milliseconds of the calendar's clock."""
        return max(0, self.now_ms + self.skew_ms)

    def run_at(self, rate: float) -> None:
        """Go on from the present time at another rate."""
        self._base_us, self._base_world_us = self.now_us, self._world_us()
        self.rate = rate

    def stand_still(self, duration_us: int) -> None:
        """Lose so much of the world's time, as a suspended machine does."""
        self._base_us -= int(duration_us * self.rate)

    def world_delay_us(self, local_us: int) -> int:
        """Return how long it takes in the world's time until a local time."""
        return max(0, int((local_us - self.now_us) / self.rate) + 1)
