"""Threads for work that may take long (cold files, state machines): the loop never waits."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from quorumlog.log_events import describe_error
from quorumlog.model.errors import LeaderPendingFullError
from quorumlog.model.fair_queue import FairQueue

T = TypeVar("T")

THREADS = 2
WAITING_MAX = 1_024
"""Jobs of one client, or of the node itself, that wait; more are refused."""
UNDER_WAY_PER_THREAD = 2
"""Jobs that run, or have run and wait for the loop, for each thread. So one is there when another
ends, and one turn of the loop takes the results of a few only: each may be large, and be sent."""


class _Job(msgspec.Struct, eq=False):
    """A call for a thread, and those that the loop makes with its outcome.

    `is_dropped`: nobody wants the result any more, so `dropped` is called instead of `done`; a
    failure is still reported.
    """

    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    client: object
    dropped: Callable[[], None] | None
    is_dropped: bool = False


class ThreadExecutor:
    """A bounded pool; results come back on the loop's thread.

    Clients take turns, and so do all of them and the node itself: a client with a thousand jobs
    has others wait for one of them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: int = THREADS,
        name: str = "quorumlog-read",
    ) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._own: deque[_Job] = deque()
        self._of_clients: FairQueue[_Job] = FairQueue()
        self._is_own_next = True
        self._under_way_max = threads * UNDER_WAY_PER_THREAD
        self._under_way: list[_Job] = []
        self._is_stopped = False

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Run `work` on a thread, then `done` or `failed` on the loop; none of it after `stop`.

        What is no `Exception`, such as a `SystemExit` of a state machine, is a failure as well.
        `client`: for whom, compared by identity or `__eq__`; None: for the node itself. `dropped`
        is called instead of `done` if the client has left while `work` ran.
        """
        if self._is_stopped:
            return
        waiting = len(self._own) if client is None else self._of_clients.count_of(client)
        if waiting >= WAITING_MAX:
            failed(LeaderPendingFullError("too much waits for threads; try again later"))
            return
        job = _Job(work, done, failed, client, dropped)
        if client is None:
            self._own.append(job)
        else:
            self._of_clients.add(client, job)
        self._start()

    def _start(self) -> None:
        """Give the threads as many jobs as may be under way."""
        while len(self._under_way) < self._under_way_max and (self._own or self._of_clients):
            job = self._next()
            self._under_way.append(job)
            future = self._pool.submit(job.work)
            future.add_done_callback(partial(self._bring_back, job))

    def _next(self) -> _Job:
        is_own = bool(self._own) and (self._is_own_next or not self._of_clients)
        self._is_own_next = not is_own
        return self._own.popleft() if is_own else self._of_clients.pop()

    def _bring_back(self, job: _Job, future: Future[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, job, future)

    def _finish(self, job: _Job, future: Future[Any]) -> None:
        if self._is_stopped:
            return  # the owner is closed
        self._under_way.remove(job)
        error = future.exception()
        try:
            if error is None:
                if not job.is_dropped:
                    job.done(future.result())
                elif job.dropped is not None:
                    job.dropped()
            elif isinstance(error, Exception):
                job.failed(error)
            else:  # as it is, it would end the event loop
                job.failed(RuntimeError(describe_error(error)))
        finally:
            self._start()

    def forget(self, client: object) -> None:
        """Drop the jobs of a client that has left, and the results of those under way."""
        self._of_clients.drop(client)
        for job in self._under_way:
            job.is_dropped |= job.client == client

    def stop(self) -> None:
        """Drop what is queued; neither that nor running work is reported any more."""
        self._is_stopped = True
        self._own.clear()
        self._of_clients = FairQueue()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the work that still runs, after `stop`; on any thread."""
        self._pool.shutdown(wait=True)
