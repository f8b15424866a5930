"""The limit on bytes a second that a lagging peer is sent (spec 30 section 7)."""

from collections.abc import Callable


class RateLimiter:
    """Counts bytes by the second of the clock that is passed in.

    `bytes_per_second` returns how many may be sent, as it is configured now.
    """

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        self._max = bytes_per_second
        self._second = -1
        self._sum = 0

    def sample(self, size_bytes: int, now_ms: int) -> None:
        """Record that size_bytes are sent now."""
        self._enter(now_ms)
        self._sum += size_bytes

    def is_used_up(self, now_ms: int) -> bool:
        """Whether the bytes of this second have been sent."""
        self._enter(now_ms)
        return self._sum >= self._max()

    def left_ms(self, now_ms: int) -> int:
        """Return how long the present second still lasts."""
        return 1_000 - now_ms % 1_000

    def _enter(self, now_ms: int) -> None:
        if now_ms // 1_000 != self._second:
            self._second, self._sum = now_ms // 1_000, 0
