"""How many groups of a node campaign at a time.

If all groups of a node campaigned at once (at its start, or when another node dies) and there are
many, no vote would come back within the time-out, and all of them would start over for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass

CAMPAIGNS_MAX = 16
"""Groups of one node that may campaign at a time; others wait for one of them."""
FAILED_MAX = CAMPAIGNS_MAX // 2
"""A group that had a slot and did not win gets another only while fewer than this are taken."""
WAITS_MAX = 8
"""Time-outs after which a group that waits asks again, at most."""
RETRIES_MAX = 2
"""How often a group that has not won may try again while others wait: votes may only be late."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot, taken until a time. `refusals` is the node's count of refusals when it was taken,
    `retries` how often the group has campaigned again since.
    """

    until_ms: int
    refusals: int
    retries: int = 0


class ElectionThrottle:
    """Decides which groups of a node may campaign. A group holds its slot until its campaign is
    over or a time-out has passed.

    A group that keeps asking has not won, and may never win (its other members may be down). So it
    loses its slot if another group was refused meanwhile, and then gets one again only while fewer
    than `FAILED_MAX` are taken.
    """

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}
        self._failed: set[str] = set()
        self._refusals = 0
        self._first: dict[str, Callable[[], bool]] = {}
        self._others: dict[str, Callable[[], bool]] = {}

    def admits(self, group: str, now_ms: int, timeout_ms: int) -> bool:
        """Whether a group may campaign now; if so, it takes a slot."""
        slots, until_ms = self._slots, now_ms + timeout_ms
        known = slots.get(group)
        if known is None:
            if not self._has_room(group, now_ms):
                self._refusals += 1
                return False
            slots[group] = _Slot(until_ms, self._refusals)
        elif known.refusals == self._refusals:
            slots[group] = _Slot(until_ms, self._refusals)
        elif known.retries < RETRIES_MAX:
            slots[group] = _Slot(until_ms, known.refusals, known.retries + 1)
        else:
            del slots[group]
            self._failed.add(group)
            return False
        return True

    def _has_room(self, group: str, now_ms: int) -> bool:
        slots = self._slots
        most = FAILED_MAX if group in self._failed else CAMPAIGNS_MAX
        if len(slots) >= most:
            for late in [name for name, slot in slots.items() if slot.until_ms <= now_ms]:
                del slots[late]
        return len(slots) < most

    def wait(self, group: str, wake: Callable[[], bool], *, is_first: bool) -> None:
        """Have a group that was refused woken up once another is over, those that are first before
        others: if all nodes of a cluster start, each has the groups that it led before elect it.

        `wake` returns whether the group still wants to campaign.
        """
        waiting = self._first if is_first else self._others
        waiting.setdefault(group, wake)

    def pause_ms(self, timeout_ms: int) -> int:
        """Return when a group that waits should ask again, unless it is woken up before.

        Slots get free without a word when their time-out has passed, as many in each time-out as
        there are: so the more groups wait, the less often each of them needs to ask.
        """
        waiting = len(self._first) + len(self._others)
        return timeout_ms * min(WAITS_MAX, 1 + waiting // CAMPAIGNS_MAX)

    def over(self, group: str) -> None:
        """A group has stopped campaigning, and its slot is free."""
        self._failed.discard(group)
        self._first.pop(group, None)
        self._others.pop(group, None)
        if self._slots.pop(group, None) is not None:
            self._wake_next()

    def _wake_next(self) -> None:
        for waiting in (self._first, self._others):
            while waiting:
                if waiting.pop(next(iter(waiting)))():
                    return
