"""The clock, event queue and random source of a simulation, all decided by one seed."""

import heapq
import itertools
from collections.abc import Callable
from random import Random

from quorumlog.sim.finding import Finding

EVENTS_A_MILLISECOND_MAX = 20_000
"""More of them mean an endless loop: time would never go on."""


class SimulationClock:
    """A queue of events in the order of their times; of equal times, in the order of planning."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  (a simulation; nothing secret)
        self.now_us = 0
        self.events = 0
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> int:
        """Milliseconds since the start."""
        return self.now_us // 1_000

    def after_us(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action, with a delay in microseconds."""
        heapq.heappush(self._queue, (self.now_us + delay_us, next(self._numbers), action))

    def after_ms(self, delay_ms: float, action: Callable[[], object]) -> None:
        """Plan an action, with a delay in milliseconds."""
        self.after_us(int(delay_ms * 1_000), action)

    def run_until(self, end_ms: int, check: Callable[[], None]) -> None:
        """Let everything happen up to a time; `check` is called after each event.

        Raises `Finding` when time does not go on.
        """
        since_ms, events_before = self.now_ms, self.events
        while self._queue and self._queue[0][0] <= end_ms * 1_000:
            self.now_us, _, action = heapq.heappop(self._queue)
            self.events += 1
            if self.now_ms != since_ms:
                since_ms, events_before = self.now_ms, self.events
            elif self.events - events_before > EVENTS_A_MILLISECOND_MAX:
                raise Finding("progress", f"something happens again and again at {since_ms} ms")
            action()
            check()
        self.now_us = max(self.now_us, end_ms * 1_000)
