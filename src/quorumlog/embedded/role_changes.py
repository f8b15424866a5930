"""Telling a program of the role changes of its replicas (spec 10 section 10)."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from quorumlog.log_events import describe_error, log_event
from quorumlog.model.hooks import RoleChange

logger = logging.getLogger(__name__)

RoleChangeHandler: TypeAlias = Callable[[RoleChange], Awaitable[None] | None]
"""A function, or a coroutine function, that hears of the role changes of one replica: in order, and
one after the other. What it raises is logged, and harms nothing."""

WAITING_MAX = 256
"""Changes that may wait for a handler; of more, the oldest are skipped, never the newest."""
END_S = 5.0
"""How long a node that stops waits for a handler to return."""
_CALL: Final[ContextVar[RoleChange | None]] = ContextVar("call of a handler", default=None)
"""The change that a handler is told of by whatever runs here: the handler, and tasks of its own."""


class RoleChanges:
    """Passes the role changes of one replica to its handler, in a task of its own."""

    def __init__(self, group: str, handler: RoleChangeHandler) -> None:
        self._group = group
        self._handler = handler
        self._waiting: deque[RoleChange] = deque()
        self._task: asyncio.Task[None] | None = None
        self._told: RoleChange | None = None
        self._caller_waits = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether the handler has returned, and no change waits for it."""
        return self._task is None or self._task.done()

    def changed(self, change: RoleChange) -> None:
        """See `RoleListener`."""
        if len(self._waiting) >= WAITING_MAX:
            skipped = self._waiting.popleft()
            text = "the handler of role changes has not returned, and the oldest change is skipped"
            log_event(logger, logging.WARNING, text, group=self._group, term=skipped.term)
        self._waiting.append(change)
        if self.is_idle:
            self._task = asyncio.get_running_loop().create_task(self._pass_on())

    async def _pass_on(self) -> None:
        while self._waiting:
            self._told = change = self._waiting.popleft()
            _CALL.set(change)
            try:
                returned = self._handler(change)
                if inspect.isawaitable(returned):
                    await returned
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # also if the handler waited for something that was cancelled: not the call was
                text = "the handler of role changes raised"
                reason = describe_error(error)
                log_event(logger, logging.ERROR, text, group=self._group, reason=reason)
            self._told = None

    def caller_waits(self) -> None:
        """Whoever calls this waits for `end`: if the handler does, `end` does not wait for it."""
        if self._told is not None and _CALL.get() is self._told:
            self._caller_waits.set()

    async def end(self) -> None:
        """Wait until the handler knows everything; after `END_S` its call is cancelled.

        It goes on if it waits for this to return.
        """
        if self._task is None:
            return
        released = asyncio.ensure_future(self._caller_waits.wait())
        either: list[asyncio.Future[Any]] = [self._task, released]
        await asyncio.wait(either, timeout=END_S, return_when=asyncio.FIRST_COMPLETED)
        if not released.cancel():
            return
        self._task.cancel()
