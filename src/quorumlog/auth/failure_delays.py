"""How long the answer to a refused login is held back, so that passwords cannot be tried fast."""

from typing import Final

FIRST_S: Final = 0.5
LAST_S: Final = 8.0
"""The first delay, which doubles with each refusal, and the longest, in seconds."""
FORGOTTEN_S: Final = 600.0
"""Refusals are forgotten this long after the last one, in seconds."""
ENTRIES_MAX: Final = 10_000
"""Pairs of address and name that are known; beyond, the one of the oldest refusal is forgotten."""


class FailureDelays:
    """Refused logins by address and name. No name is locked out: anybody could do that to others.

    Times are seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, float]] = {}
        """The delay of the last refusal, and when it was; the oldest first."""

    def failed(self, address: str, name: str, now: float) -> float:
        """Note a refusal; return how long to hold its answer back, in seconds."""
        delay, at = self._known.pop((address, name), (0.0, now))
        if now - at >= FORGOTTEN_S:
            delay = 0.0
        delay = min(LAST_S, 2 * delay) or FIRST_S
        self._known[address, name] = (delay, now)
        if len(self._known) > ENTRIES_MAX:
            del self._known[next(iter(self._known))]
        return delay

    def __len__(self) -> int:
        return len(self._known)
