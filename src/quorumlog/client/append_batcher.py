"""Joins single appends of many tasks: those of one turn of the loop travel as one block."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from quorumlog.client.buffers import body_too_large
from quorumlog.client.results import Appended, AppendedBatch, Level
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.limits import Limits
from quorumlog.model.turn_batcher import TurnBatcher

logger = logging.getLogger(__name__)

ONE_WAY_MAX = 1_024
"""Appends of level "one_way" of one client that may be under way; further ones wait."""

CLOSE_S = 1.0
"""How long these may go on when the client is closed."""

_Waiting: TypeAlias = tuple[bytes, "asyncio.Future[Appended]"]
_Key: TypeAlias = tuple[int, float | None, Level]
"""Channel, time-out and level, the same for all entries of a block."""


class AppendBatch(Protocol):
    """Appends several entries, all or none."""

    async def __call__(
        self, bodies: Sequence[bytes], channel: int, timeout_ms: float | None, level: Level
    ) -> AppendedBatch:
        """Return where they went."""
        ...


class AppendBatcher:
    """Joins appends of tasks, which then share a request, a write to disk and an answer.

    No append waits for others: a block is sent in the turn of the loop after the one in which its
    first entry came. The number of entries is bounded by the number of callers, who all wait.
    Entries with different channels, time-outs or levels are sent apart.
    """

    def __init__(self, limits: Limits, append_batch: AppendBatch) -> None:
        self._append_batch = append_batch
        self._entry_bytes_max = min(limits.entry_bytes_max, limits.block_bytes_max)
        self._batcher: TurnBatcher[_Key, _Waiting] = TurnBatcher(
            lambda flush: asyncio.get_running_loop().call_soon(flush),
            self._send,
            bytes_max=limits.block_bytes_max,
            entries_max=limits.block_entries_max,
        )
        self._sending: set[asyncio.Task[None]] = set()
        self._one_way: set[asyncio.Future[Any]] = set()

    def append(
        self, body: bytes, channel: int, timeout_ms: float | None, level: Level
    ) -> "asyncio.Future[Appended]":
        """Return a future: where the entry went, or what appending the block raised.

        Raises `UnexpectedArgumentError` for a body that is too large.
        """
        size = HEADER_SIZE + len(body)
        if size > self._entry_bytes_max:
            raise body_too_large(len(body), self._entry_bytes_max)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._batcher.add((channel, timeout_ms, level), (body, future), size)
        return future

    async def begin(self, append: Callable[[], Awaitable[Any]]) -> None:
        """Start an append of which nobody awaits the outcome, once there is room for it.

        Raises what `append` raises when it is called.
        """
        while len(self._one_way) >= ONE_WAY_MAX:
            await asyncio.wait(self._one_way, return_when=asyncio.FIRST_COMPLETED)
        begun = asyncio.ensure_future(append())
        self._one_way.add(begun)
        begun.add_done_callback(self._begun_ended)

    def _begun_ended(self, begun: "asyncio.Future[Any]") -> None:
        self._one_way.discard(begun)
        if not begun.cancelled() and (error := begun.exception()) is not None:
            logger.debug("an append of level one_way failed: %s", error)

    async def close(self) -> None:
        """Give the appends of which nobody awaits the outcome a moment, then give them up."""
        if self._one_way:
            await asyncio.wait(self._one_way, timeout=CLOSE_S)
        for begun in list(self._one_way):
            begun.cancel()

    def _send(self, blocks: list[tuple[_Key, list[_Waiting]]]) -> None:
        """Send each block, without the entries whose callers have been cancelled."""
        for key, given in blocks:
            joined = [waiting for waiting in given if not waiting[1].done()]
            if joined:
                task = asyncio.get_running_loop().create_task(self._deliver(joined, *key))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _deliver(
        self, joined: list[_Waiting], channel: int, timeout_ms: float | None, level: Level
    ) -> None:
        bodies = [body for body, _ in joined]
        try:
            batch = await self._append_batch(bodies, channel, timeout_ms, level)
        except asyncio.CancelledError:
            for _, future in joined:
                future.cancel()
            raise
        except Exception as error:
            for _, future in joined:
                if not future.done():
                    future.set_exception(error)
            return
        placed = zip(joined, batch.positions, strict=True)
        for index, ((_, future), position) in enumerate(placed, batch.first_index):
            if not future.done():
                future.set_result(Appended(index, batch.term, position, batch.level))
