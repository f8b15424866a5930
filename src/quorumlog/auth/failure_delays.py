"""How long answers to logins are held back after a refusal: passwords cannot be tried fast."""

from typing import Final, NamedTuple

from quorumlog.auth.hosts import host_of

FIRST_S: Final = 0.5
LAST_S: Final = 8.0
"""The first delay, which doubles with each refusal, and the longest, in seconds."""
FORGOTTEN_S: Final = 600.0
"""Refusals are forgotten this long after the last one, in seconds."""
ENTRIES_MAX: Final = 10_000
"""Pairs of address and name that are known; beyond, the one of the oldest refusal is forgotten."""


class _Refused(NamedTuple):
    """The last refusal: its delay, when it was, and until when answers are held back."""

    delay: float
    at: float
    until: float


_NEVER: Final = _Refused(0.0, 0.0, 0.0)


class FailureDelays:
    """Refused logins by host and name. No name is locked out: anybody could do that to others.

    After a refusal each answer is held back, also that of a login that is let in: if only refusals
    were late, whoever had no answer at once would know, and could try the next password. Times are
    seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Refused] = {}
        """The oldest first."""

    def failed(self, address: str, name: str, now: float) -> float:
        """Note a refusal of what came at `now`; return how long to hold its answer back."""
        key = host_of(address), name
        last = self._known.pop(key, _NEVER)
        delay = 0.0 if now - last.at >= FORGOTTEN_S else last.delay
        delay = min(LAST_S, 2 * delay) or FIRST_S
        until = max(last.until, now + delay)
        self._known[key] = _Refused(delay, now, until)
        if len(self._known) > ENTRIES_MAX:
            del self._known[next(iter(self._known))]
        return until - now

    def until(self, address: str, name: str) -> float:
        """Return until when answers to this name at this address are held back."""
        return self._known.get((host_of(address), name), _NEVER).until

    def __len__(self) -> int:
        return len(self._known)
