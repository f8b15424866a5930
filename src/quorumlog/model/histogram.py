"""Histograms: how many values fell into each bucket, and their sum.

They are observed where things happen, for a block, a push or a batch and not for each entry, and
read when somebody asks for metrics. Observing is one call: a search among a few bounds and two
additions.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

LATENCY_SECONDS = (
    *(0.0001, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.03, 0.05),
    *(0.1, 0.3, 0.5, 1.0, 3.0, 10.0),
)
"""Buckets of what takes a part of a second."""
SNAPSHOT_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Buckets of what may take minutes."""
SIZE_BYTES = tuple(float(4**exponent) for exponent in range(4, 14))
"""Buckets of sizes: from 256 bytes to 64 MiB."""
ENTRY_COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0)
"""Buckets of numbers of entries."""


class Histogram:
    """Counts of values by bucket. One thread observes; any thread may read.

    `counts[i]` is the number of values that are at most `bounds[i]` and above the bound before; the
    last one is that of values above all bounds. `total` is the sum of all values. A reader on
    another thread may see a value in one of the two and not yet in the other.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def observe_each(histograms: Sequence[Histogram], *values: float) -> None:
    """Count a value in each of several histograms: one call in the place of several."""
    for histogram, value in zip(histograms, values, strict=True):
        histogram.counts[bisect_left(histogram.bounds, value)] += 1
        histogram.total += value


class CommitHistograms:
    """Of the group commits of one disk thread.

    `observe(seconds, size_bytes)` counts one: how long writes and fsync took, how much was written.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(LATENCY_SECONDS)
        self.size_bytes = Histogram(SIZE_BYTES)
        self.observe = partial(observe_each, (self.seconds, self.size_bytes))
