"""Joins single appends of many tasks: those of one turn of the loop travel as one block."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from quorumlog.client.buffers import body_too_large
from quorumlog.client.results import Appended, AppendedBatch
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.limits import Limits
from quorumlog.model.turn_batcher import TurnBatcher

_Waiting: TypeAlias = tuple[bytes, "asyncio.Future[Appended]"]
_Key: TypeAlias = tuple[int, float | None]
"""Channel and time-out, the same for all entries of a block."""


class AppendBatch(Protocol):
    """Appends several entries, all or none."""

    async def __call__(
        self, bodies: Sequence[bytes], channel: int, timeout_ms: float | None
    ) -> AppendedBatch:
        """Return where they went."""
        ...


class AppendBatcher:
    """Joins appends of tasks, which then share a request, a write to disk and an answer.

    No append waits for others: a block is sent in the turn of the loop after the one in which its
    first entry came. The number of entries is bounded by the number of callers, who all wait.
    Entries with different channels or time-outs are sent apart.
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

    def append(
        self, body: bytes, channel: int, timeout_ms: float | None
    ) -> "asyncio.Future[Appended]":
        """Return a future: where the entry went, or what appending the block raised.

        Raises `UnexpectedArgumentError` for a body that is too large.
        """
        size = HEADER_SIZE + len(body)
        if size > self._entry_bytes_max:
            raise body_too_large(len(body), self._entry_bytes_max)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._batcher.add((channel, timeout_ms), (body, future), size)
        return future

    def _send(self, blocks: list[tuple[_Key, list[_Waiting]]]) -> None:
        """Send each block, without the entries whose callers have been cancelled."""
        for key, given in blocks:
            joined = [waiting for waiting in given if not waiting[1].done()]
            if joined:
                task = asyncio.get_running_loop().create_task(self._deliver(joined, *key))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _deliver(
        self, joined: list[_Waiting], channel: int, timeout_ms: float | None
    ) -> None:
        bodies = [body for body, _ in joined]
        try:
            batch = await self._append_batch(bodies, channel, timeout_ms)
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
                future.set_result(Appended(index, batch.term, position))
