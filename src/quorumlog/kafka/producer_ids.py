"""Producer ids of one node: allocated in blocks, so that few of them need the cluster group."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

IDS_PER_BLOCK: Final = 1_000
"""Producer ids that a node gets at a time; those that it did not use are lost with it."""
Allocate: TypeAlias = Callable[[int], Awaitable[int]]
"""Returns the first of this number of ids that nobody has had."""


class ProducerIds:
    """Gives out ids that no producer of the cluster has had."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._next = self._stop = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return an id. Raises what `allocate` raises."""
        async with self._lock:
            if self._next == self._stop:
                self._next = await self._allocate(IDS_PER_BLOCK)
                self._stop = self._next + IDS_PER_BLOCK
            self._next += 1
            return self._next - 1
