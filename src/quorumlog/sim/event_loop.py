"""An event loop of asyncio whose time is simulated: for what the product has written as coroutines.

It has what coroutines, futures, tasks and time-outs ask of a loop, and nothing of sockets, threads
or processes.
"""

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


class SimulatedHandle:
    """A call that is planned; see `asyncio.TimerHandle`."""

    def __init__(self, when: float) -> None:
        self._when = when
        self._is_cancelled = False

    def cancel(self) -> None:
        """Do not call."""
        self._is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it is not called."""
        return self._is_cancelled

    def when(self) -> float:
        """When it is called, in seconds."""
        return self._when


class SimulatedLoop:
    """The loop of one life of a process, or of all clients.

    `later` plans a call after a delay in microseconds, `now_us` reads the clock. Once it has been
    closed, as its process has ended, it calls nothing any more.
    """

    def __init__(
        self, later: Callable[[int, Callable[[], None]], None], now_us: Callable[[], int]
    ) -> None:
        self._later = later
        self._now_us = now_us
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop, as those know it who ask no more of it than it has."""
        return cast(asyncio.AbstractEventLoop, self)

    def run(self, action: Callable[[], Result]) -> Result:
        """Do something while this is the running loop, as `asyncio.get_running_loop` returns it."""
        before = events._get_running_loop()
        events._set_running_loop(self._as_loop)
        try:
            return action()
        finally:
            events._set_running_loop(before)

    # -- see `asyncio.AbstractEventLoop` ----------------------------------------------------------

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._now_us() / 1e6

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        """Call a function after what is being handled now."""
        return self._plan(0, callback, args, context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """Call a function after some seconds."""
        return self._plan(max(0, round(delay * 1e6)), callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """Call a function at a time of this loop."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _plan(
        self,
        delay_us: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> SimulatedHandle:
        handle = SimulatedHandle(self.time() + delay_us / 1e6)
        known = copy_context() if context is None else context

        def call() -> None:
            if not handle.cancelled() and not self._is_closed:
                known.run(callback, *args)

        if not self._is_closed:
            self._later(delay_us, call)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        return asyncio.Future(loop=self._as_loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        """Begin a coroutine. It is kept until it has ended, also when the loop is closed before."""
        task = asyncio.Task(coro, loop=self._as_loop, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing of tasks that end with their process; others have somebody who waits."""

    def get_debug(self) -> bool:
        """See `asyncio.AbstractEventLoop`."""
        return False

    def is_closed(self) -> bool:
        """See `asyncio.AbstractEventLoop`."""
        return self._is_closed

    def close(self) -> None:
        """Call nothing any more: the process has ended."""
        self._is_closed = True
