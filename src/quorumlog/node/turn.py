"""One turn of the event loop: what is put off during it, and what is sent at its end.

All groups of a node share one, so that what they have to say in a turn goes out together.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]


class Turn:
    """Calls what was put off, and then what is to be done at the end, in one call of the loop.

    `call_soon` has the loop call a function after the present one.
    """

    def __init__(self, call_soon: Callable[[Action], object]) -> None:
        self._call_soon = call_soon
        self._deferred: deque[Action] = deque()
        self._at_end: deque[Action] = deque()
        self._is_scheduled = self._is_running = False

    def defer(self, action: Action) -> None:
        """Call a function soon, after what is being handled now."""
        self._deferred.append(action)
        self._schedule()

    def at_end(self, action: Action) -> None:
        """Call a function when everything that was put off is done."""
        self._at_end.append(action)
        self._schedule()

    def run(self, work: Callable[..., object] | None = None, *arguments: object) -> None:
        """Do some work and what was put off, and end the turn.

        What the work puts off belongs to this turn. What is put off while that is done waits for
        the next one; so does what is asked for at the end while the end is under way. If anything
        raises, so does this, and what was not done yet is done in the next turn.
        """
        self._is_running = True
        try:
            if work is not None:
                work(*arguments)
            for _ in range(len(self._deferred)):
                self._deferred.popleft()()
            for _ in range(len(self._at_end)):
                self._at_end.popleft()()
        finally:
            self._is_running = False
            if self._deferred or self._at_end:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_running:
            self._is_scheduled = True
            self._call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.run()
