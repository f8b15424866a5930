"""Ordered append streams: the blocks of one producer are appended in the order it sent them.

Once a block of a stream is refused, those sent after it must be refused as well, or they would be
appended before it. A stream lives as long as its connection.
"""

from quorumlog.model.errors import OutOfOrderError, UnexpectedArgumentError


class OrderedStreams:
    """The next expected sequence number of each stream of one connection."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._next: dict[int, int] = {}

    def accept(self, stream: int, sequence: int) -> None:
        """Accept the next block of a stream.

        Raises `OutOfOrderError` when an earlier block is missing, `UnexpectedArgumentError` when
        there are too many streams.
        """
        expected = self._next.get(stream, 0)
        if sequence != expected:
            raise OutOfOrderError(f"stream {stream}: block {expected} comes next, not {sequence}")
        if stream not in self._next and len(self._next) >= self._count_max:
            raise UnexpectedArgumentError(
                f"more than {self._count_max} ordered streams on one connection"
            )
        self._next[stream] = sequence + 1

    def refused(self, stream: int, sequence: int) -> None:
        """Record that an accepted block was not appended: it must come again before any later."""
        self._next[stream] = min(sequence, self._next.get(stream, sequence))
