"""The partitions that a consumer has, from one assignment to the next, and where it is in them."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

from quorumlog.model.entry import Entry

T = TypeVar("T")


class Place:
    """Where a consumer is in a partition. It is the same one for as long as the partition stays.

    Attributes:
        position: index of the first entry not yielded yet.
        handled: the same of the first entry that may be in the program's hands: it has asked for
            more after those before.
        yielded: index after the last entry that was yielded; 0: none was.
        is_sought: the program has moved the consumer here, and has handled nothing since.
        tenure: stands for the time in which the consumer has the partition without a break.
    """

    __slots__ = ("handled", "is_sought", "position", "tenure", "yielded")

    def __init__(self, position: int) -> None:
        self.position = self.handled = position
        self.yielded = 0
        self.is_sought = False
        self.tenure = object()

    def moved(self, position: int, *, is_sought: bool) -> "Place":
        """Return where the consumer goes on instead; nothing is yielded of this place any more.

        What the program has in its hands was yielded by this one, so handling it says nothing of
        entries after the new one.
        """
        there = Place(position)
        there.yielded, there.is_sought, there.tenure = self.yielded, is_sought, self.tenure
        return there

    def has_handled(self, position: int) -> None:
        """The program has handled what was yielded before a position."""
        self.handled = max(self.handled, min(position, self.position))
        self.is_sought = False


class Share:
    """What a consumer has until it is assigned something else; then the share has ended.

    `places` are those of its partitions. Those that the next share has, too, are passed on to it.
    """

    def __init__(self, places: Mapping[int, Place], partitions: int) -> None:
        self.places = dict(places)
        self._partitions = partitions
        self._last: Place | None = None
        """The only place that has changed since; None: all of them may have."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def positions(self) -> dict[int, int]:
        """Index of the first entry not yielded yet, by partition."""
        return {partition: place.position for partition, place in self.places.items()}

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it may be yielded any more."""
        return self._ended.done()

    def end(self) -> None:
        """Yield nothing of it any more."""
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def begin(self) -> int:
        """The index from which its partitions have to be read."""
        return min(place.position for place in self.places.values())

    def _place_of(self, entry: Entry) -> Place | None:
        return self.places.get(entry.channel % self._partitions)

    def has(self, entry: Entry) -> bool:
        """Whether an entry is one that has still to be yielded."""
        place = self._place_of(entry)
        return place is not None and entry.index >= place.position

    def advance_to(self, entry: Entry) -> None:
        """Yield an entry: it was the first of its partition that had not been."""
        self._last = place = self._place_of(entry)
        if place is not None:
            place.position = place.yielded = entry.index + 1

    def advance_over(self, entries: Sequence[Entry]) -> None:
        """Yield entries, in their order."""
        for entry in entries:
            self.advance_to(entry)

    def advance(self, position: int) -> None:
        """All entries before a position have been yielded, or are nobody's."""
        self._last = None
        for place in self.places.values():
            place.position = max(place.position, position)

    def has_handled(self) -> None:
        """The program asks for more: it has handled what was yielded."""
        for place in self.places.values() if self._last is None else (self._last,):
            place.has_handled(place.position)

    async def unless_ended(self, work: Awaitable[T]) -> T | None:
        """Return what is waited for, or None once the share has ended; then it is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            elif self.has_ended and not task.cancelled():
                task.exception()  # marks it as seen: whoever reads on meets it again
        if task.cancelled() or self.has_ended:
            return None
        return task.result()
