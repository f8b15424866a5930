"""Produce requests that wait until their group has room for one more batch."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

CHECK_S: Final = 0.01
"""The longest pause between two checks for room: it may come without an answer to a Produce, as
when the disk has caught up with other groups."""


class Waiting(Protocol):
    """A request that waits for room."""

    def go_on(self) -> bool:
        """Append what has room now, and wait no more; False: there is not enough room yet."""
        ...


class Rooms:
    """Those that wait for room, by group; the first one goes on first.

    `waiting` has those of each group that is waited for. Each connection has one at most. `defer`
    calls a function at the end of the turn.
    """

    def __init__(self, defer: Callable[[Callable[[], object]], object]) -> None:
        self._defer = defer
        self.waiting: dict[str, deque[Waiting]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_deferred = False

    def wait(self, group: str, one: Waiting) -> None:
        """Have a request go on when its group has room and all before it have gone on."""
        self.waiting.setdefault(group, deque()).append(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def forget(self, group: str, one: Waiting) -> None:
        """A request waits no more."""
        waiting = self.waiting.get(group)
        if waiting is not None and one in waiting:
            waiting.remove(one)
            if not waiting:
                del self.waiting[group]

    def freed(self) -> None:
        """A batch was answered: there may be room."""
        if self.waiting and not self._is_deferred:
            self._is_deferred = True
            self._defer(self._let_go_on)

    def _check(self) -> None:
        self._timer = None
        self._let_go_on()
        if self.waiting:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _let_go_on(self) -> None:
        self._is_deferred = False
        for group in list(self.waiting):
            waiting = self.waiting.get(group)
            while waiting and waiting[0].go_on():
                waiting = self.waiting.get(group)
