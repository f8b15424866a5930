"""How often the groups of one node write checkpoints and look after their files: together.

A checkpoint takes several fsyncs. Each group that is written to would need some a second, and with
a hundred groups these took more time than the appends. A thousand groups that start to be written
to at the same time, as when they elect their leaders, must not write theirs at the same time. Nor
must they all look how full the disk is, and what is to be removed, while they elect them.
"""

import zlib

PAUSE_MAX_MS = 30_000
"""Longest pause between two checkpoints of a group that is written to."""
BYTES_MAX = 64 * 1024 * 1024
"""A group that has grown by this since its last checkpoint writes one without a longer pause."""
CLEANING_STEP_MS = 20
"""Pause between two cleanings of one node."""


class CheckpointPace:
    """Spreads checkpoints over the groups of a node, about one in each `checkPointInterval`."""

    def __init__(self) -> None:
        self._written_ms: dict[str, int] = {}

    def pause_ms(self, group: str, now_ms: int, interval_ms: int) -> int:
        """Note that a group writes checkpoints; return the pause before its next one.

        It is `interval_ms` for each group that does, at most `PAUSE_MAX_MS` (or `interval_ms`, if
        that is longer), and up to a half less, a different part for each. All in milliseconds.
        """
        known = self._written_ms
        known.pop(group, None)
        known[group] = now_ms  # they are in the order of their times
        while now_ms - known[oldest := next(iter(known))] > PAUSE_MAX_MS:
            del known[oldest]
        longest_ms = min(max(PAUSE_MAX_MS, interval_ms), interval_ms * len(known))
        share = zlib.crc32(group.encode()) % 100
        return max(interval_ms, longest_ms * (200 - share) // 200)


class CleaningPace:
    """Gives each cleaning of a group a time of its own, the next that is free."""

    def __init__(self) -> None:
        self._free_ms = 0

    def take(self, now_ms: int) -> int:
        """Return when a group that asks now may clean, in milliseconds; maybe at once."""
        at_ms = max(now_ms, self._free_ms)
        self._free_ms = at_ms + CLEANING_STEP_MS
        return at_ms
