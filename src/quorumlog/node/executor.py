"""Threads for work that may take long (cold files, state machines): the loop never waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quorumlog.model.errors import LeaderPendingFullError

T = TypeVar("T")

THREADS = 2
WAITING_MAX = 1_024
"""Jobs queued or running; more are refused, which the asking side retries."""


class ThreadExecutor:
    """A bounded pool; results come back on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: int = THREADS,
        name: str = "quorumlog-read",
    ) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0
        self._is_stopped = False

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `work` on a thread, then `done` or `failed` on the loop; none of it after `stop`."""
        if self._is_stopped:
            return
        if self._waiting >= WAITING_MAX:
            failed(LeaderPendingFullError("too much waits for threads; try again later"))
            return
        self._waiting += 1

        def finish(future: Future[T]) -> None:
            self._waiting -= 1
            if self._is_stopped:
                return  # the owner is closed
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
        """Wait for running work and drop what is queued; neither is reported any more."""
        self._is_stopped = True
        self._pool.shutdown(wait=True, cancel_futures=True)
