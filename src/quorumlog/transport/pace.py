"""Whether a client sends faster than it is answered, judged by what its slices leave behind.

A client that waits for its answers leaves nothing behind, but for a moment. How much of the loop's
time it takes says less: one that appends 200 times a second takes more than each of 300 pipelines.
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
BULK_BYTES_PER_S = 64 * 1024 * 1024
"""Large frames say nothing by what is left of them: all that send some share this rate, and who
sends more than its share counts as leaving something behind."""
RECENT_S = 1.0
"""A connection has a share of that rate for this long after its last piece of a large frame."""


class BulkSenders:
    """The connections of one listener that sent pieces of large frames lately."""

    def __init__(self) -> None:
        self._heard: dict[object, float] = {}
        """When each was heard of, the longest ago first; at most one entry a connection."""

    def share_of(self, who: object, now: float) -> float:
        """Note a piece of a large frame; return how many bytes a second its sender may send."""
        self._heard.pop(who, None)
        self._heard[who] = now
        while now - self._heard[oldest := next(iter(self._heard))] > RECENT_S:
            del self._heard[oldest]
        return BULK_BYTES_PER_S / len(self._heard)

    def forget(self, who: object) -> None:
        """The connection has ended."""
        self._heard.pop(who, None)


class Pace:
    """What one connection's slices left behind; `now` in seconds."""

    def __init__(self, now: Callable[[], float], bulk: BulkSenders) -> None:
        self._now = now
        self._bulk = bulk
        self._behind_since = self._busy_until = 0.0
        self._prompt_slices = 0
        self._rate, self._rate_at = 0.0, 0.0
        self._is_beyond_share = False

    @property
    def is_busy(self) -> bool:
        """Whether the client sends faster than it is answered."""
        return self._now() < self._busy_until

    def received_of_large_frame(self, size_bytes: int) -> None:
        """Note a piece of a large frame."""
        now = self._now()
        kept = max(0.0, 1.0 - (now - self._rate_at))
        self._rate, self._rate_at = self._rate * kept + size_bytes, now
        self._is_beyond_share = self._rate > self._bulk.share_of(self, now)
        if self._is_beyond_share:
            self.slice_ended(leaves_something=True)

    def slice_ended(self, *, leaves_something: bool) -> None:
        """Note whether a slice left requests behind for which there was no time."""
        if not leaves_something and not self._is_beyond_share:
            self._behind_since = 0.0
            self._prompt_slices += 1
            return
        now = self._now()
        self._behind_since = self._behind_since or now
        is_known = self._prompt_slices >= PROMPT_AFTER and not self.is_busy
        if now - self._behind_since >= (BUSY_AFTER_S if is_known else SOON_BUSY_AFTER_S):
            self._busy_until = now + BUSY_FOR_S
            self._prompt_slices = 0

    def forget(self) -> None:
        """The connection has ended."""
        self._bulk.forget(self)
