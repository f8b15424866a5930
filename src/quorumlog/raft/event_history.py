"""Recent events of a replica, in sentences, for people who must understand a failure."""

from collections import deque
from collections.abc import Callable

HISTORY_LINES_MAX = 256
"""Older lines are dropped."""


class EventHistory:
    """The last events and transitions of one replica, with a bound on their number.

    An event that repeats takes one line, or a candidate without a majority would drive out what
    had happened to it.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=HISTORY_LINES_MAX)
        self._repeats = 1
        self._first_ms = 0
        self.last_alarm = ""
        """The last alarm of those that are raised once, however often their cause repeats."""
        self.on_event: Callable[[str], None] | None = None
        """Told of each event, also of one that repeats."""

    def record(self, now_ms: int, text: str) -> None:
        """Add a line; `now_ms` is the clock that the core is given."""
        if self.on_event is not None:
            self.on_event(text)
        if self._lines and self._lines[-1][1] == text:
            self._repeats += 1
            self._lines[-1] = (now_ms, text)
            return
        self._seal()
        self._repeats, self._first_ms = 1, now_ms
        self._lines.append((now_ms, text))

    def _seal(self) -> None:
        if self._repeats > 1:
            self._lines[-1] = self._counted()

    def _counted(self) -> tuple[int, str]:
        at_ms, text = self._lines[-1]
        if self._repeats == 1:
            return at_ms, text
        seconds = (at_ms - self._first_ms) / 1_000
        return at_ms, f"{text} ({self._repeats} times in {seconds:.1f} s)"

    def lines(self) -> list[tuple[int, str]]:
        """Return (time in milliseconds, text), oldest first; of repeated events the last time."""
        return [*list(self._lines)[:-1], self._counted()] if self._lines else []
