"""The traffic class of a client, found by what its slices leave over.

A client that waits for its answers leaves nothing over, except for a moment. How much of the loop's
time it takes says less: one that appends 200 times a second takes more than each of 300 pipelines.
Of a connection that sends large frames, requests that are left over cannot be seen.
"""

from collections.abc import Callable

from quorumlog.transport.scheduler import TrafficClass

CREDIT_MAX = 800
"""Slices that left nothing over count for a client up to this many. After a pause of the loop a
client that asks 400 times a second has more waiting than a slice takes, and as one client of many
that send bursts it would never catch up."""
CREDIT_PER_SLICE = 2
"""What a slice that leaves something over costs, so that the last slices of bursts do not make up
for the others."""
CREDIT_AT_FIRST = 4
"""A client that connects while the node has much to do has some requests waiting when it is first
answered."""
CLOSED_LOOP_AFTER = 8
"""A client that leaves nothing over in this many slices in a row is known to wait for its answers.
It has all credit then, once: many others may be connecting at the same time."""
BULK_AFTER_S = 0.1
"""A client that sends a burst for this long, without a pause, is bulk."""
BULK_FOR_S = 1.0
"""A client is bulk for this long, then it may show again that it sends no more than bursts; if it
does not, it is bulk for twice as long, and so on: it may have been taken for one of many that
connected at the same time, but those are not to have the time for bursts again and again."""
BULK_FOR_MAX_S = 64.0
CLEAN_SLICES = 50
"""A client that leaves nothing over in this many slices in a row is no longer bulk. One that sends
as fast as it can has nothing more to be read now and then, too."""


class Classifier:
    """Finds the class of one connection; `now` in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._credit = CREDIT_AT_FIRST
        self._is_closed_loop = False
        self._burst_since = self._bulk_until = 0.0
        self._bulk_for_s = BULK_FOR_S
        self._clean_slices = 0

    @property
    def traffic_class(self) -> TrafficClass:
        """`INTERACTIVE`, `BURST` or `BULK`."""
        if self._now() < self._bulk_until:
            return TrafficClass.BULK
        return TrafficClass.BURST if self._burst_since else TrafficClass.INTERACTIVE

    @property
    def is_closed_loop(self) -> bool:
        """Whether the client is known to wait for its answers."""
        if not self._is_closed_loop or self._credit < CREDIT_PER_SLICE or self._burst_since:
            return False
        return self._now() >= self._bulk_until  # of large frames nothing that is left over is seen

    def saw_large_frame(self) -> None:
        """Note a piece of a large request, or a large answer.

        What else the client has under way, or what its answers take, cannot be seen in its slices.
        So it counts as bulk, and small requests of others go first.
        """
        self._bulk_until = max(self._bulk_until, self._now() + BULK_FOR_S)
        self._clean_slices = 0

    def slice_ended(self, *, leaves_something: bool) -> None:
        """Note whether a slice left requests over for which there was no time."""
        if not leaves_something:
            self._burst_since = 0.0
            self._credit = min(self._credit + 1, CREDIT_MAX)
            self._clean_slices += 1
            if self._clean_slices >= CLOSED_LOOP_AFTER and not self._is_closed_loop:
                self._is_closed_loop = True
                self._credit = CREDIT_MAX
            if self._clean_slices == CLEAN_SLICES:
                self._bulk_until, self._bulk_for_s = 0.0, BULK_FOR_S
            return
        self._clean_slices = 0
        now = self._now()
        if now < self._bulk_until:
            self._credit, self._burst_since = 0, 0.0
        elif self._credit >= CREDIT_PER_SLICE and not self._burst_since:
            self._credit -= CREDIT_PER_SLICE
        else:
            self._burst_since = self._burst_since or now
            if now - self._burst_since >= BULK_AFTER_S:
                self._bulk_until = now + self._bulk_for_s
                self._bulk_for_s = min(2 * self._bulk_for_s, BULK_FOR_MAX_S)
