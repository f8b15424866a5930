"""What happened to a replica lately, in sentences: for people who must understand a failure."""

from collections import deque

HISTORY_LINES_MAX = 256
"""Older lines are dropped."""


class EventHistory:
    """The last events and transitions of one replica, with a bound on their number."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=HISTORY_LINES_MAX)

    def record(self, now_ms: int, text: str) -> None:
        """Add a line; `now_ms` is the clock that the core is given."""
        self._lines.append((now_ms, text))

    def lines(self) -> list[tuple[int, str]]:
        """Return (time in milliseconds, text), oldest first."""
        return list(self._lines)
