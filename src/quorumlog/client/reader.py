"""Reading in order: one block after the other, the next one already on its way."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

from quorumlog.client.results import FetchedBlock
from quorumlog.model.errors import IndexOutOfRangeError

Fetch: TypeAlias = Callable[[int, int, int], Awaitable[FetchedBlock]]
"""(first index, last index or -1, milliseconds to wait for the first entry) → a block."""

POLL_WAIT_MS = 10_000
"""How long a reader at the tail lets the server wait for the next entry."""


class BlockReader:
    """Blocks of committed entries from `index` on; `known` is the last index said to be committed.

    A server may know of fewer committed entries than the one asked before it (a new leader, another
    follower): without `follow` the end is what any of them said.
    """

    def __init__(self, fetch: Fetch, index: int, end: int | None, *, follow: bool) -> None:
        self._fetch = fetch
        self._index = index
        self._end = end
        self._follow = follow
        self._known = -1

    async def blocks(self) -> AsyncGenerator[FetchedBlock, None]:
        """Yield every block that is not empty, until the end."""
        ahead: asyncio.Task[FetchedBlock] | None = None
        try:
            while self._end is None or self._index <= self._end:
                fetched = await (self._next_block() if ahead is None else self._taken(ahead))
                ahead = None
                self._known = max(self._known, fetched.committed_index)
                if fetched.following > self._index:
                    self._index = fetched.following
                    if self._is_more_expected():
                        ahead = asyncio.ensure_future(self._next_block())
                        ahead.add_done_callback(_seen)
                    if fetched.count:
                        yield fetched
                elif not self._follow and self._index > self._known:
                    return
        finally:
            if ahead is not None:
                ahead.cancel()

    async def _taken(self, ahead: "asyncio.Task[FetchedBlock]") -> FetchedBlock:
        """Return the block fetched ahead; fetch it again if that failed before anybody waited.

        So a reader does not notice an outage that is over by the time it asks for the next block.
        """
        if ahead.done() and not ahead.cancelled() and ahead.exception() is not None:
            return await self._next_block()
        return await ahead

    def _is_more_expected(self) -> bool:
        if self._end is not None and self._index > self._end:
            return False
        return self._follow or self._index <= self._known

    async def _next_block(self) -> FetchedBlock:
        """Fetch from the present index on; an empty block if nothing is committed there."""
        index, known = self._index, self._known
        is_promised = index <= known
        wait_ms = POLL_WAIT_MS if self._follow or is_promised else 0
        last = -1 if self._end is None else self._end
        try:
            fetched = await self._fetch(index, last, wait_ms)
        except IndexOutOfRangeError:  # the last entry of the range is not there yet
            fetched = FetchedBlock(index, 0, memoryview(b""), memoryview(b""), -1, index - 1)
        if fetched.following <= index and is_promised and not self._follow:
            raise IndexOutOfRangeError(
                f"entries up to {known} were committed, but {index} cannot be had since; is the "
                "replica that was asked far behind, or was the log truncated?"
            )
        return fetched


def _seen(task: "asyncio.Task[FetchedBlock]") -> None:
    """Mark an error as seen: nobody may ever ask for a block that was fetched ahead."""
    if not task.cancelled():
        task.exception()
