"""Whether a client sends faster than it is answered, judged by what its slices leave over.

A client that waits for its answers leaves nothing over, except for a moment. How much of the loop's
time it takes says less: one that appends 200 times a second takes more than each of 300 pipelines.
Of a connection that sends large frames, requests that are left over cannot be seen.
"""

from collections.abc import Callable

PROMPT_AFTER = 8
"""Slices that leave nothing behind make a client known as prompt."""
BUSY_AFTER_S = 0.5
"""A client known as prompt that leaves something behind all the time is busy after this long.
After a pause of the loop a client that asks 400 times a second has more waiting than a slice takes,
and as one busy client of many it would never catch up."""
SOON_BUSY_AFTER_S = 0.02
"""A client not known as prompt is busy after this long. One slice that leaves something behind says
nothing: on a slow processor two requests that arrive together take longer than a slice."""
BUSY_FOR_S = 1.0
"""A busy client stays busy until nothing was left behind for this long: one that sends as fast as
it can has nothing more to be read now and then, too."""


class Pace:
    """Whether one connection's slices left requests over; `now` in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._behind_since = self._busy_until = 0.0
        self._prompt_slices = 0

    @property
    def is_busy(self) -> bool:
        """Whether the client sends faster than it is answered."""
        return self._now() < self._busy_until

    def received_of_large_frame(self) -> None:
        """Note a piece of a large frame.

        What else its sender has under way cannot be seen, so the connection counts as busy, and
        small requests of others go first.
        """
        self._busy_until = self._now() + BUSY_FOR_S

    def slice_ended(self, *, leaves_something: bool) -> None:
        """Note whether a slice left requests over for which there was no time."""
        if not leaves_something:
            self._behind_since = 0.0
            self._prompt_slices += 1
            return
        now = self._now()
        self._behind_since = self._behind_since or now
        is_known = self._prompt_slices >= PROMPT_AFTER and not self.is_busy
        if now - self._behind_since >= (BUSY_AFTER_S if is_known else SOON_BUSY_AFTER_S):
            self._busy_until = now + BUSY_FOR_S
            self._prompt_slices = 0
