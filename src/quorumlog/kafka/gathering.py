"""Answers that come by calls, awaited together."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Gathering(Generic[Value]):
    """Awaits what several calls answer, each once and in any order."""

    def __init__(self) -> None:
        self._found: list[Value | None] = []
        self._left = 0
        self._done: asyncio.Future[None] | None = None

    def expect(self) -> Callable[[Value], None]:
        """Return what takes one more answer."""
        place = len(self._found)
        self._found.append(None)
        self._left += 1

        def take(value: Value) -> None:
            if self._found[place] is None:
                self._found[place] = value
                self._left -= 1
                if not self._left and self._done is not None and not self._done.done():
                    self._done.set_result(None)

        return take

    async def wait(self, timeout_ms: int) -> list[Value | None]:
        """Return the answers, in the order of `expect`; None: not within this time."""
        if self._left:
            self._done = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._done], timeout=timeout_ms / 1_000)
        return self._found
