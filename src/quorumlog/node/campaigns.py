"""How many groups of a node campaign at a time.

When all groups of a node look for leaders at once (at its start, or when another node dies) and
there are many, no vote comes back within the time-out, and all begin again for ever.
"""

from dataclasses import dataclass

CAMPAIGNS_MAX = 32
"""Groups of one node that may wait for votes at a time; others try again a little later."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Taken until then; so many groups had been refused before."""

    until_ms: int
    refusals: int


class Campaigns:
    """Of one node. A place is left when the campaign is over, or lost after a time-out.

    Whoever asks again did not win, and may never (a group whose other members are down): it leaves
    its place if anybody was refused meanwhile.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._refusals = 0

    def admits(self, group: str, now_ms: int, timeout_ms: int) -> bool:
        """Whether a group may begin to campaign now; if so it has its place."""
        places = self._places
        known = places.get(group)
        if known is not None and known.refusals < self._refusals:
            del places[group]
            return False
        if known is None and len(places) >= CAMPAIGNS_MAX:
            for late in [name for name, place in places.items() if place.until_ms <= now_ms]:
                del places[late]
            if len(places) >= CAMPAIGNS_MAX:
                self._refusals += 1
                return False
        places[group] = _Place(now_ms + timeout_ms, self._refusals)
        return True

    def over(self, group: str) -> None:
        """A group does not campaign any more."""
        self._places.pop(group, None)
