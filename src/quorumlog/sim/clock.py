"""A machine's clocks: they drift, the calendar jumps, and a suspended machine's stand still."""

from collections.abc import Callable

EPOCH_MS = 1_700_000_000_000
"""What the calendar's clock of a machine shows when the simulation starts."""
HOUR_MS = 3_600_000


class Clock:
    """Local time of one machine, derived from the time of the simulation.

    The monotonic clock runs at `rate` and never goes back; the calendar's clock is it plus `skew`.
    """

    def __init__(self, simulation_us: Callable[[], int]) -> None:
        self._simulation_us = simulation_us
        self._base_simulation_us = simulation_us()
        self._base_us = 0
        self.rate = 1.0
        self.went_on_ms = 0
        """When the process was last resumed after a pause."""
        self._stopped_us: int | None = None
        self.skew_ms = 0

    @property
    def now_us(self) -> int:
        """Microseconds of the monotonic clock."""
        if self._stopped_us is not None:
            return self._stopped_us
        return self._base_us + int((self._simulation_us() - self._base_simulation_us) * self.rate)

    @property
    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self.now_us // 1_000

    @property
    def wall_ms(self) -> int:
        """Milliseconds of the calendar's clock."""
        return EPOCH_MS + self.now_ms + self.skew_ms

    @property
    def hour_of_day(self) -> int:
        """Hour of the calendar's clock."""
        return self.wall_ms // HOUR_MS % 24

    def run_at(self, rate: float) -> None:
        """Go on from the present time at another rate."""
        self._base_us, self._base_simulation_us = self.now_us, self._simulation_us()
        self.rate = rate

    def stop(self) -> None:
        """Stand still, as in a suspended machine, until `go_on` is called."""
        self._stopped_us = self.now_us

    def go_on(self) -> None:
        """Go on from where it stands, if it does; the process is resumed, or a new one starts."""
        if self._stopped_us is not None:
            self._base_us, self._base_simulation_us = self._stopped_us, self._simulation_us()
            self._stopped_us = None
        self.went_on_ms = self.now_ms

    def simulation_delay_us(self, local_us: int) -> int:
        """Return how long the simulation takes until a local time."""
        return max(0, int((local_us - self.now_us) / self.rate) + 1)
