"""How often the groups of one node write checkpoints: together, not each by itself.

A checkpoint takes several fsyncs. Each group that is written to would need some a second, and with
a hundred groups these took more time than the appends. A thousand groups that start to be written
to at the same time, as when they elect their leaders, must not write theirs at the same time.
"""

import zlib

PAUSE_MAX_MS = 30_000
"""Longest pause between two checkpoints of a group that is written to."""
BYTES_MAX = 64 * 1024 * 1024
"""A group that has grown by this since its last checkpoint writes one without a longer pause."""


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
        for name in [name for name, at_ms in known.items() if now_ms - at_ms > PAUSE_MAX_MS]:
            del known[name]
        known[group] = now_ms
        longest_ms = min(max(PAUSE_MAX_MS, interval_ms), interval_ms * len(known))
        share = zlib.crc32(group.encode()) % 100
        return max(interval_ms, longest_ms * (200 - share) // 200)
