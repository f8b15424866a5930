"""How many groups of a node campaign at a time.

When all groups of a node look for leaders at once (at its start, or when another node dies) and
there are many, no vote comes back within the time-out, and all begin again for ever.
"""

from dataclasses import dataclass

CAMPAIGNS_MAX = 32
"""Groups of one node that may wait for votes at a time; others try again a little later."""
FAILED_MAX = CAMPAIGNS_MAX // 2
"""No more places than these are for groups that had one and did not win."""
AGAIN_MAX = 2
"""How often a group that has not won may try again while others wait: votes may only be late."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Taken until a time; `refusals` counts those before it, `again` repeated requests since."""

    until_ms: int
    refusals: int
    again: int = 0


class ElectionThrottle:
    """Decides which groups of a node may campaign. A place is left when the campaign is over, or
    lost after a time-out.

    Whoever asks again and again did not win, and may never (a group whose other members are down):
    it leaves its place if anybody was refused meanwhile, and half of the places to the others.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._failed: set[str] = set()
        self._refusals = 0

    def admits(self, group: str, now_ms: int, timeout_ms: int) -> bool:
        """Whether a group may begin to campaign now; if so it has its place."""
        places, until_ms = self._places, now_ms + timeout_ms
        known = places.get(group)
        if known is None:
            if not self._has_room(group, now_ms):
                self._refusals += 1
                return False
            places[group] = _Place(until_ms, self._refusals)
        elif known.refusals == self._refusals:
            places[group] = _Place(until_ms, self._refusals)
        elif known.again < AGAIN_MAX:
            places[group] = _Place(until_ms, known.refusals, known.again + 1)
        else:
            del places[group]
            self._failed.add(group)
            return False
        return True

    def _has_room(self, group: str, now_ms: int) -> bool:
        places = self._places
        most = FAILED_MAX if group in self._failed else CAMPAIGNS_MAX
        if len(places) >= most:
            for late in [name for name, place in places.items() if place.until_ms <= now_ms]:
                del places[late]
        return len(places) < most

    def over(self, group: str) -> None:
        """A group does not campaign any more."""
        self._places.pop(group, None)
        self._failed.discard(group)
