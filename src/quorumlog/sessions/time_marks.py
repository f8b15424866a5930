"""Group time as leaders recorded it in the log, and how old entries are by it.

Group time counts the milliseconds during which a replica that saw the newest mark was running. It
is not a calendar, and does not depend on any clock that people set. The mark of a leader states the
time of the mark before it plus the time since the leader saw that one, by its monotonic clock. So
whichever leaders wrote two marks, at least as much real time passed between them as they differ,
and every entry before a mark is at least as old as the time since that mark.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final

from quorumlog.model.block import Block
from quorumlog.model.record_sum import DIGEST_SIZE
from quorumlog.sessions.entries import SystemEntry, TimeMark

MARKS_MAX: Final = 10_000
"""Marks that are remembered; above it every other one is forgotten, which makes entries younger."""


STEP_MS_MAX: Final = 7_200_000
"""More never passes from one mark to the next, as leaders write one an hour where it matters: a
mark that says so, or a monotonic clock that leaps, ages entries by no more than this."""


class TimeMarks:
    """The marks of a log as (index, time in ms), ascending in both. See `DerivedTable`."""

    name: ClassVar[str] = "marks.1"
    reads_users: ClassVar[bool] = False

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.pairs = list(pairs)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same marks."""
        return isinstance(other, TimeMarks) and self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]

    @property
    def newest(self) -> tuple[int, int] | None:
        """The newest mark, if there is one."""
        return self.pairs[-1] if self.pairs else None

    def found_in(
        self, block: Block, first_index: int, entries: Sequence[tuple[int, SystemEntry]]
    ) -> Sequence[tuple[int, TimeMark]]:
        """See `DerivedTable`."""
        return [(index, entry) for index, entry in entries if isinstance(entry, TimeMark)]

    def apply(self, index: int, what: TimeMark) -> None:
        """Take a time mark of the log."""
        self.add(index, what.time_ms)

    def add(self, index: int, time_ms: int) -> None:
        """Take a mark that follows all others in the log; time never goes back or jumps ahead."""
        if self.pairs:
            before_ms = self.pairs[-1][1]
            time_ms = min(max(time_ms, before_ms), before_ms + STEP_MS_MAX)
        self.pairs.append((index, time_ms))
        if len(self.pairs) > MARKS_MAX:
            del self.pairs[-2::-2]

    def first_since(self, index: int) -> int | None:
        """Return the time of the first mark at or after an index; None: there is none.

        Everything up to the index was in the log at that time.
        """
        found = bisect_left(self.pairs, (index, 0))
        return self.pairs[found][1] if found < len(self.pairs) else None

    def last_before(self, time_ms: int) -> int:
        """Return the index of the last mark that states less than a time; -1: there is none.

        Everything up to it was in the log before that time.
        """
        found = bisect_left(self.pairs, time_ms, key=lambda pair: pair[1])
        return self.pairs[found - 1][0] if found else -1

    def removed(self, before_begin_index: int) -> None:
        """Forget marks that no kept entry needs; the newest stays, as time goes on from it."""
        found = bisect_left(self.pairs, (before_begin_index + 1, 0))
        del self.pairs[: min(found, len(self.pairs) - 1)]

    def fields(self) -> tuple[Any, ...]:
        """See `DerivedTable`."""
        return (self.pairs,)

    def digest(self, since: int) -> bytes:
        """See `DerivedTable`. The newest mark follows from all before it."""
        return blake2b(repr(self.newest).encode(), digest_size=DIGEST_SIZE).digest()

    def copy(self) -> "TimeMarks":
        """Return an independent copy."""
        return TimeMarks(self.pairs)
