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


class Classified(Protocol):
    """A client, as far as its class goes."""

    @property
    def traffic_class(self) -> TrafficClass:
        """Its class now."""
        ...


class Scheduler:
    """The turns of all connections of one listener. `now`: seconds, which go on within a turn.

    `is_crowded`: whether the log has more appends under way than those of interactive clients can
    wait for; bursts and bulk clients have no time then.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.now = now
        self._is_crowded = is_crowded
        self._call_soon = loop.call_soon
        self._call_later = loop.call_later
        self._waiting: dict[TrafficClass, deque[Schedulable]] = {
            one: deque() for one in TrafficClass
        }
        self._spent = dict.fromkeys(TrafficClass, 0.0)
        self._is_called = False
        self._later: asyncio.TimerHandle | None = None
        self._serving: TrafficClass | None = None
        """The class that is being served. A connection's class may have changed while it waited;
        its slice counts against the one that it waited in, or a turn would have no end."""
        self._slice: tuple[TrafficClass, float] | None = None
        self._interactive_until = 0.0
        self._only: Classified | None = None
        """The interactive client, if it was the only one that had slices up to then."""

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for its slice."""
        return any(self._waiting.values())

    def begin(
        self,
        client: Classified,
        traffic_class: TrafficClass,
        since: float,
        *,
        is_granted: bool = False,
    ) -> bool:
        """Start a slice; False: the connection has to wait, and only its receiving is counted.

        `since`: when it began to receive. `is_granted`: it has waited for its slice. While a class
        is being served, the slice counts against that class.
        """
        if self._serving is not None:
            traffic_class = self._serving
        else:
            if self._later is not None or not self._is_called:
                self._call_next()
            if not is_granted and (
                self._waiting[traffic_class]
                or self._spent[traffic_class] >= self._time_for(traffic_class)
            ):
                self._spent[traffic_class] += self.now() - since
                return False
        self._slice = (traffic_class, since)
        if traffic_class is TrafficClass.INTERACTIVE:
            if client is not self._only:
                self._only = client if since >= self._interactive_until else None
            self._interactive_until = since + INTERACTIVE_FOR_S
        return True

    @property
    def has_interactive(self) -> bool:
        """Whether interactive clients send requests at present.

        One that is alone, and not interactive any more as its first answer was large, is none.
        """
        if self.now() >= self._interactive_until:
            return False
        return self._only is None or self._only.traffic_class is TrafficClass.INTERACTIVE

    def _time_for(self, traffic_class: TrafficClass) -> float:
        if traffic_class in (TrafficClass.BURST, TrafficClass.BULK) and self.has_interactive:
            return 0.0 if self._is_crowded() else BESIDE_INTERACTIVE_S
        return CLASS_TIME_S[traffic_class]

    def is_slice_over(self) -> bool:
        """Whether the present slice has lasted long enough."""
        return self._slice is None or self.now() - self._slice[1] >= SLICE_S

    def end(self) -> None:
        """End the present slice."""
        if self._slice is not None:
            traffic_class, began = self._slice
            self._spent[traffic_class] += self.now() - began
            self._slice = None

    def wait(self, connection: Schedulable) -> None:
        """Have a connection wait for its next slice."""
        self._waiting[connection.traffic_class].append(connection)
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
            for traffic_class, waiting in self._waiting.items():
                if not waiting:
                    continue
                self._serving = traffic_class
                most = self._time_for(traffic_class)
                is_any_served |= most > 0
                while waiting and self._spent[traffic_class] < most:
                    if waiting.popleft().run_slice():
                        self._spent[traffic_class] += SLICE_S
        finally:
            self._serving = None
            if self.has_waiting and is_any_served:
                self._call_next()
            elif self.has_waiting and not self._is_called:
                self._later = self._call_later(CROWDED_PAUSE_S, self._call_next)
