"""How many groups of a node campaign at a time.

When all groups of a node look for leaders at once (at its start, or when another node dies) and
there are many, no vote comes back within the time-out, and all begin again for ever.
"""

CAMPAIGNS_MAX = 32
"""Groups of one node that may wait for votes at a time; others try again a little later."""


class Campaigns:
    """Of one node. A place is left when the campaign is over, or lost after a time-out."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def admits(self, group: str, now_ms: int, timeout_ms: int) -> bool:
        """Whether a group may begin to campaign now; if so it has its place."""
        places = self._until_ms
        if group not in places and len(places) >= CAMPAIGNS_MAX:
            for late in [name for name, until_ms in places.items() if until_ms <= now_ms]:
                del places[late]
            if len(places) >= CAMPAIGNS_MAX:
                return False
        places[group] = now_ms + timeout_ms
        return True

    def over(self, group: str) -> None:
        """A group does not campaign any more."""
        self._until_ms.pop(group, None)
