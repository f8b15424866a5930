"""Threads for reads that may touch cold files, so that the loop never waits for a disk."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quorumlog.model.errors import LeaderPendingFullError

T = TypeVar("T")

THREADS = 2
WAITING_MAX = 1_024
"""Reads queued or running; more are refused, which the asking side retries."""


class ReadThreads:
    """A bounded pool; results come back on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="quorumlog-read")
        self._waiting = 0

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `work` on a thread, then `done` or `failed` on the loop."""
        if self._waiting >= WAITING_MAX:
            failed(LeaderPendingFullError("too many reads of cold files at once; try again later"))
            return
        self._waiting += 1

        def finish(future: Future[T]) -> None:
            self._waiting -= 1
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, Exception):
                failed(error)
            else:
                raise error

        future = self._pool.submit(work)
        future.add_done_callback(lambda future: self._bring_back(finish, future))

    def _bring_back(self, finish: Callable[[Future[T]], None], future: Future[T]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(finish, future)

    def stop(self) -> None:
        """Wait for what runs; drop what is queued."""
        self._pool.shutdown(wait=True, cancel_futures=True)
