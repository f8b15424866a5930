"""Keeps the work of a node's other threads to a quarter of the time; its loop has the rest."""

import threading
from collections.abc import Callable
from typing import Final

REST: Final = 3
"""After some work none begins for this many times what it took."""
REST_MAX_S: Final = 1.0
"""But for no longer than this, in seconds."""


class Pace:
    """Says when work may begin, after what has been done; for several threads.

    `now` is in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._until = now()

    @property
    def rest_s(self) -> float:
        """In how many seconds work may begin; 0: it may now."""
        return max(0.0, self._until - self._now())

    def add(self, seconds: float) -> None:
        """Count work that has taken so long."""
        with self._lock:
            now = self._now()
            self._until = min(max(self._until, now) + REST * seconds, now + REST_MAX_S)
