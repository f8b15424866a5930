"""Fair scheduling of connections, for when there are more requests than the loop has time for.

Each iteration of the event loop ("turn") has some time for each of five traffic classes, so that
none waits for another; only bursts and bulk clients wait for interactive ones while the log is
crowded. Within a class the connections come one after the other, each for one slice. Who uses up
its slice goes on in a class in which it delays only its like: a multilevel feedback queue, as
operating systems have for processes. Messages of members wait for none of this.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

SLICE_S = 0.000_25
"""How long one connection's requests are handled (at least one), before it is the next one's
turn."""


class TrafficClass(IntEnum):
    """The classes of connections that are not members'."""

    INTERACTIVE = 0
    """A client that waits for its answers, or has been doing so and catches up."""
    BURST = 1
    """A client that has sent more at once than a slice takes; the rest of it waits."""
    BULK = 2
    """A client that sends faster than it is answered, or whose requests or answers are large."""
    UNPROVEN = 3
    """A client of which no request succeeded yet."""
    HANDSHAKE = 4
    """A connection whose other side has not said who it is."""


CLASS_TIME_S = {
    TrafficClass.INTERACTIVE: 0.001,
    TrafficClass.BURST: 0.001,
    TrafficClass.BULK: 0.001,
    TrafficClass.UNPROVEN: 0.000_25,
    TrafficClass.HANDSHAKE: 0.000_25,
}
"""Time for requests of each class in one turn of the loop; the last slice may go beyond it."""
BESIDE_INTERACTIVE_S = 0.000_25
"""Time for bursts, and for bulk clients, in a turn while there are interactive ones: these wait for
as long as a turn takes. Alone they have more, as each turn costs something. They have none while
the log is crowded."""
CROWDED_PAUSE_S = 0.001
"""How long to wait before it is checked again whether bursts and bulk clients may go on."""
INTERACTIVE_FOR_S = 0.05
"""Interactive clients are taken to be there for this long after each of their slices."""


class Schedulable(Protocol):
    """A connection, as the scheduler sees it."""

    @property
    def traffic_class(self) -> TrafficClass:
        """The class of the connection at present."""
        ...

    def run_slice(self) -> bool:
        """Handle requests for a slice; a connection that is not done waits again.

        Returns True if there were none: the connection will only now be read from.
        """
        ...


class Scheduler:
    """The turns of all connections of one listener. `now`: seconds, which go on within a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self.now = now
        self.is_crowded: Callable[[], bool] = lambda: False
        """Whether the log has so many appends under way that those of interactive clients would
        wait: bursts and bulk clients have no time then."""
        self._call_soon = loop.call_soon
        self._call_later = loop.call_later
        self._waiting: dict[TrafficClass, deque[Schedulable]] = {
            kind: deque() for kind in TrafficClass
        }
        self._spent = dict.fromkeys(TrafficClass, 0.0)
        self._is_called = False
        self._later: asyncio.TimerHandle | None = None
        self._serving: TrafficClass | None = None
        """The queue whose turn it is. A connection's kind may have changed while it waited; its
        slice counts against the queue that it waited in, or a turn would have no end."""
        self._slice: tuple[TrafficClass, float] | None = None
        self._interactive_until = 0.0

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return any(self._waiting.values())

    def begin(self, kind: TrafficClass, since: float, *, is_granted: bool = False) -> bool:
        """Start a slice, or count one that started `since`; False: wait for the next turn.

        `is_granted`: the connection has waited for its turn.
        """
        if self._serving is not None:
            kind = self._serving
        else:
            self._call_next()
            if not is_granted and (
                self._waiting[kind] or self._spent[kind] >= self._time_for(kind)
            ):
                self._spent[kind] += self.now() - since
                return False
        self._slice = (kind, since)
        if kind is TrafficClass.INTERACTIVE:
            self._interactive_until = since + INTERACTIVE_FOR_S
        return True

    @property
    def has_interactive(self) -> bool:
        """Whether interactive clients send requests at present."""
        return self.now() < self._interactive_until

    def _time_for(self, kind: TrafficClass) -> float:
        if kind in (TrafficClass.BURST, TrafficClass.BULK) and self.has_interactive:
            return 0.0 if self.is_crowded() else BESIDE_INTERACTIVE_S
        return CLASS_TIME_S[kind]

    def is_slice_over(self) -> bool:
        """Whether the present slice has lasted long enough."""
        return self._slice is None or self.now() - self._slice[1] >= SLICE_S

    def end(self) -> None:
        """End the present slice."""
        if self._slice is not None:
            kind, began = self._slice
            self._spent[kind] += self.now() - began
            self._slice = None

    def wait(self, waiter: Schedulable) -> None:
        """Have a connection wait for its next slice."""
        self._waiting[waiter.traffic_class].append(waiter)
        self._call_next()

    def _call_next(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Let those that wait go on, in order, as far as there is time."""
        self._is_called = False
        self._spent = dict.fromkeys(self._waiting, 0.0)
        is_any_served = False
        try:
            for kind, waiting in self._waiting.items():
                if not waiting:
                    continue
                self._serving = kind
                most = self._time_for(kind)
                is_any_served |= most > 0
                while waiting and self._spent[kind] < most:
                    if waiting.popleft().run_slice():
                        self._spent[kind] += SLICE_S
        finally:
            self._serving = None
            if self and is_any_served:
                self._call_next()
            elif self and not self._is_called:
                self._later = self._call_later(CROWDED_PAUSE_S, self._call_next)
