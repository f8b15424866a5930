"""Single appends of many tasks, joined: what is asked for in one turn of the loop is one block."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from quorumlog.client.results import Appended, AppendedBatch
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.limits import Limits

_Waiting: TypeAlias = tuple[bytes, "asyncio.Future[Appended]"]


class AppendBatch(Protocol):
    """Appends several entries, all or none."""

    async def __call__(
        self, bodies: Sequence[bytes], *, timeout_ms: float | None = None
    ) -> AppendedBatch:
        """Return where they went."""
        ...


class AppendBatcher:
    """Tasks that append at the same time share a request, a write to disk and an answer.

    Nobody waits for company: a block leaves in the turn of the loop after that in which the first
    of its entries was given. What is given at a time is bounded by the callers, who all wait.
    """

    def __init__(self, limits: Limits, append_batch: AppendBatch) -> None:
        self._limits = limits
        self._append_batch = append_batch
        self._waiting: dict[float | None, list[_Waiting]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def append(self, body: bytes, timeout_ms: float | None) -> Appended:
        """Return where the entry went. Raises what appending the block raises."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(timeout_ms)
        if waiting is None:
            waiting = self._waiting[timeout_ms] = []
            loop.call_soon(self._send, loop, timeout_ms)
        future: asyncio.Future[Appended] = loop.create_future()
        waiting.append((body, future))
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop, timeout_ms: float | None) -> None:
        """Send what is waiting; whoever was cancelled meanwhile is left out."""
        waiting = [given for given in self._waiting.pop(timeout_ms) if not given[1].done()]
        for together in self._blocks(waiting):
            task = loop.create_task(self._deliver(together, timeout_ms))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _blocks(self, waiting: list[_Waiting]) -> Iterator[list[_Waiting]]:
        """Cut into blocks within the limits, in order."""
        limits = self._limits
        together: list[_Waiting] = []
        size = 0
        for given in waiting:
            size += HEADER_SIZE + len(given[0])
            if together and (
                size > limits.block_bytes_max or len(together) == limits.block_entries_max
            ):
                yield together
                together, size = [], HEADER_SIZE + len(given[0])
            together.append(given)
        if together:
            yield together

    async def _deliver(self, together: list[_Waiting], timeout_ms: float | None) -> None:
        try:
            batch = await self._append_batch([body for body, _ in together], timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            for _, future in together:
                future.cancel()
            raise
        except Exception as error:
            for _, future in together:
                if not future.done():
                    future.set_exception(error)
            return
        placed = zip(together, batch.positions, strict=True)
        for index, ((_, future), position) in enumerate(placed, batch.first_index):
            if not future.done():
                future.set_result(Appended(index, batch.term, position))
