"""The partitions that a consumer has, from one assignment to the next, and where it is in them."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from quorumlog.model.entry import Entry

T = TypeVar("T")


class Share:
    """What a consumer has until it is assigned something else; then the share has ended.

    Attributes:
        positions: index of the first entry not yielded yet, by partition.
        handled: the same of the first entry that may be in the program's hands: it has asked for
            more after those before.
        yielded: partitions of which entries were yielded since the last commit.
    """

    def __init__(self, positions: Mapping[int, int], partitions: int) -> None:
        self.positions = dict(positions)
        self.handled = dict(positions)
        self.yielded: set[int] = set()
        self._partitions = partitions
        self._last: int | None = None
        """The only partition whose position has changed since; None: all of them may have."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take_over(self, before: "Share") -> None:
        """Take what has become of those partitions that an earlier share has, too."""
        both = self.positions.keys() & before.positions.keys()
        self.yielded |= before.yielded & both
        self.handled.update((one, before.handled[one]) for one in both)

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
        return min(self.positions.values())

    def partition_of(self, entry: Entry) -> int:
        """Return the partition of an entry."""
        return entry.channel % self._partitions

    def has(self, entry: Entry) -> bool:
        """Whether an entry is one that has still to be yielded."""
        return entry.index >= self.positions.get(self.partition_of(entry), entry.index + 1)

    def advance_to(self, entry: Entry) -> None:
        """Yield an entry: it was the first of its partition that had not been."""
        self._last = partition = self.partition_of(entry)
        self.positions[partition] = entry.index + 1
        self.yielded.add(partition)

    def advance(self, position: int) -> None:
        """All entries before a position have been yielded, or are nobody's."""
        self._last = None
        for partition, before in self.positions.items():
            if before < position:
                self.positions[partition] = position

    def has_handled(self) -> None:
        """The program asks for more: it has handled what was yielded."""
        if self._last is None:
            self.handled = dict(self.positions)
        else:
            self.handled[self._last] = self.positions[self._last]

    async def unless_ended(self, work: Awaitable[T]) -> T | None:
        """Return what is waited for, or None once the share has ended; then it is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        return None if task.cancelled() else task.result()
