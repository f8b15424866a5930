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
        self._allocation: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """Return an id. Raises what `allocate` raises.

        All who wait share one allocation, and so its failure: without a leader of the cluster
        group, nobody waits longer than one allocation takes.
        """
        while self._next == self._stop:
            if self._allocation is None:
                self._allocation = asyncio.get_running_loop().create_task(self._get_block())
                self._allocation.add_done_callback(self._allocated)
            await asyncio.shield(self._allocation)  # a client may leave; others wait for it, too
        self._next += 1
        return self._next - 1

    async def _get_block(self) -> None:
        self._next = await self._allocate(IDS_PER_BLOCK)
        self._stop = self._next + IDS_PER_BLOCK

    def _allocated(self, allocation: asyncio.Task[None]) -> None:
        self._allocation = None
        if not allocation.cancelled():
            allocation.exception()  # those who still wait have it; maybe nobody does
