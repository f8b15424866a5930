"""An event loop in a thread, for code that has none."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from quorumlog.client.process import MakingProcess, no_client
from quorumlog.model.errors import QuorumlogError

T = TypeVar("T")

LOOP_DESCRIPTORS = 8
"""Number of descriptors that an event loop opens, with one to spare."""
CANCEL_SECONDS = 5.0
"""How long an interrupted call may take to end."""
SIGNAL_SECONDS = 0.25
"""After how long at most a signal is noticed that comes in the moment in which a wait begins:
Python does not interrupt a wait for a lock by it."""


def closed_text(owner: str) -> str:
    """Return what calls are told after `close`: of a client, a consumer."""
    return f"this {owner} is closed; make a new one"


class LoopThread:
    """An event loop in a thread of its own.

    It runs calls in the order in which they come. Calls that came before `stop` have started by
    then, and are cancelled before the loop stops; later ones are refused. A forked child has no
    such thread: there all calls raise `RequestError`, except `stop`, which does nothing.
    """

    def __init__(self, owner: str = "client") -> None:
        self._process = MakingProcess(owner)
        self._owner = owner
        self._loop = _new_loop()
        # guards the next one, and giving the loop anything; collecting garbage may give it more
        self._lock = threading.RLock()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="quorumlog-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs: not in a forked child, nor once the interpreter shuts down."""
        return self._process.is_this and not sys.is_finalizing()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, so that calls are refused."""
        return self._is_stopping

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return what it returns; Ctrl-C first lets it end.

        Raises `QuorumlogError` if it did not end before `stop`, or if this is the thread itself,
        which would wait for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise QuorumlogError("a callback cannot call its client or consumer and wait for it")
        if not self.is_running:
            work.close()
            self._process.check()
            raise QuorumlogError("the interpreter is ending; nothing can be waited for any more")
        tasks: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: ended.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before it was started
                work.close()
                ended.set()

        try:
            if not self._call_soon(start):
                work.close()
                ended.set()
            while not ended.wait(SIGNAL_SECONDS):
                pass
        except BaseException:
            if self._call_soon(cancel):  # else `stop` cancels it
                ended.wait(CANCEL_SECONDS)
            raise
        if not tasks or (self._is_stopping and tasks[0].cancelled()):
            raise QuorumlogError(closed_text(self._owner))
        return tasks[0].result()

    def each(self, found: AsyncGenerator[T, None], is_closed: Callable[[], bool]) -> Iterator[T]:
        """Yield what an asynchronous generator yields there, then close it.

        Once its owner is closed, which has ended it, it is left alone.
        """

        async def following() -> list[T]:
            try:
                return [await anext(found)]
            except StopAsyncIteration:
                return []

        try:
            while item := self.wait(following()):
                yield item[0]
        finally:
            if not is_closed() and self.is_running:
                self.wait(found.aclose())

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine there and return its future, which also carries its error.

        Raises `QuorumlogError` after `stop`.
        """
        if not self._process.is_this:
            work.close()
            self._process.check()
        with self._lock:
            if not self._is_stopping:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise QuorumlogError(closed_text(self._owner))

    def _call_soon(self, callback: Callable[[], object]) -> bool:
        """Have the loop call something; return False, with nothing done, after `stop`."""
        with self._lock:
            if not self._is_stopping:
                self._loop.call_soon_threadsafe(callback)
            return not self._is_stopping

    def stop(self) -> None:
        """Cancel what still runs there, then end the loop and the thread."""
        if not self._process.is_this:
            return
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def stop_from_within(self) -> None:
        """Like `stop`, for a coroutine that runs there; does not wait for the thread's end."""
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        await asyncio.sleep(0)  # calls that came before are tasks by then
        await _cancel_the_rest()
        self._loop.call_soon(self._loop.stop)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop. Raises `RequestError` if there are no descriptors for it.

    It opens descriptors on trial first: without them uvloop would leave a loop that nobody can
    close, or end the process.
    """
    tried: list[int] = []
    try:
        for _ in range(LOOP_DESCRIPTORS):
            tried.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise no_client(error) from error
    finally:
        for descriptor in tried:
            os.close(descriptor)
    return uvloop.new_event_loop()


async def _cancel_the_rest() -> None:
    """Cancel all other tasks of the running loop and wait for their end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
