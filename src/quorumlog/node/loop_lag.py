"""How late the event loop is: anything that runs on it too long delays everything else."""

import asyncio
import time
from collections import deque

MEASURE_S = 0.25
"""How often the lag of the loop is measured."""
STALL_S = 0.1
"""A lag of this length counts as a stall of the loop."""
KEPT_S = 60.0
"""The longest lag within this time is reported."""


class LoopLag:
    """Asks the loop to call it back, and sees how late it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._recent: deque[tuple[float, float]] = deque(maxlen=int(KEPT_S / MEASURE_S))
        self._timer: asyncio.TimerHandle | None = None
        self.stalls = 0
        """Times it stood still since the start."""

    @property
    def recent_max_s(self) -> float:
        """The longest lag of the last minute, in seconds."""
        since = time.monotonic() - KEPT_S
        return max((lag for at, lag in list(self._recent) if at >= since), default=0.0)

    def start(self) -> None:
        """Start to measure."""
        due = time.monotonic() + MEASURE_S
        self._timer = self._loop.call_later(MEASURE_S, self._measure, due)

    def _measure(self, due: float) -> None:
        now = time.monotonic()
        lag = max(0.0, now - due)
        self._recent.append((now, lag))
        self.stalls += lag >= STALL_S
        self.start()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
