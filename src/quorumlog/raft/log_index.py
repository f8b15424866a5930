"""What the core knows of a log: its bounds, and the term of every entry as runs of equal terms."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from quorumlog.model.errors import InvariantViolation, check


class LogIndex:
    """The terms of all entries, by run. A look-up costs O(log runs), an append O(1).

    Invariants: `_firsts` rises strictly from before_begin_index + 1, `_terms` rises strictly, both
    are empty exactly when the log is.
    """

    def __init__(
        self,
        before_begin_index: int,
        before_begin_term: int,
        term_runs: Sequence[tuple[int, int]],
        end_index: int,
    ) -> None:
        self.before_begin_index = before_begin_index
        self.before_begin_term = before_begin_term
        self.end_index = end_index
        self._terms = [term for term, _ in term_runs]
        self._firsts = [first for _, first in term_runs]
        self.validate()

    @property
    def end_term(self) -> int:
        """Term of the last entry (of the absent one before the first when the log is empty)."""
        return self._terms[-1] if self._terms else self.before_begin_term

    def term_at(self, index: int) -> int:
        """Return the term of an entry, or of the absent one just before the first (-1: unknown)."""
        first, last = self.before_begin_index, self.end_index
        if not first <= index <= last:
            raise InvariantViolation(f"no term of {index}: the log has {first} to {last}")
        if index == first:
            return self.before_begin_term
        if index >= self._firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._firsts, index) - 1]

    def run_start(self, index: int) -> int:
        """Return the first index of the run of equal terms that holds the entry at `index`."""
        return self._firsts[bisect_right(self._firsts, index) - 1]

    def run_end(self, index: int) -> int:
        """Return the last index of the run of equal terms that holds the entry at `index`."""
        following = bisect_right(self._firsts, index)
        return self._firsts[following] - 1 if following < len(self._firsts) else self.end_index

    def last_index_of_term(self, term: int) -> int | None:
        """Return the last index with this term, or None when no entry has it."""
        run = bisect_left(self._terms, term)
        if run == len(self._terms) or self._terms[run] != term:
            return None
        return self.run_end(self._firsts[run])

    def runs_between(self, first_index: int, last_index: int) -> list[tuple[int, int]]:
        """Return (term, first index) of each run among the entries first_index … last_index."""
        if first_index >= self._firsts[-1]:
            return [(self._terms[-1], first_index)]
        start = bisect_right(self._firsts, first_index) - 1
        stop = bisect_right(self._firsts, last_index)
        runs = list(zip(self._terms[start:stop], self._firsts[start:stop], strict=True))
        runs[0] = (runs[0][0], first_index)
        return runs

    def append(self, last_index: int, term: int) -> None:
        """Add entries end_index + 1 … last_index, all of one term."""
        end_term = self._terms[-1] if self._terms else self.before_begin_term
        if last_index <= self.end_index or term < end_term:
            raise InvariantViolation(
                f"{last_index} of term {term} cannot follow {self.end_index} of term {end_term}"
            )
        if not self._terms or term > end_term:
            self._terms.append(term)
            self._firsts.append(self.end_index + 1)
        self.end_index = last_index

    def truncate(self, from_index: int) -> None:
        """Remove from_index and everything after it."""
        check(
            self.before_begin_index < from_index <= self.end_index,
            "only entries of the log can be removed",
            from_index,
            self.end_index,
        )
        kept = bisect_left(self._firsts, from_index)
        del self._terms[kept:]
        del self._firsts[kept:]
        self.end_index = from_index - 1

    def compact(self, before_begin_index: int, before_begin_term: int) -> None:
        """Remove everything up to before_begin_index, which must lie inside the log."""
        check(
            self.before_begin_index <= before_begin_index <= self.end_index,
            "the start moves forward, inside the log",
            before_begin_index,
            self.end_index,
        )
        kept = bisect_right(self._firsts, before_begin_index + 1) - 1
        if before_begin_index == self.end_index:
            self._terms.clear()
            self._firsts.clear()
        elif kept >= 0:
            del self._terms[:kept]
            del self._firsts[:kept]
            self._firsts[0] = before_begin_index + 1
        self.before_begin_index = before_begin_index
        self.before_begin_term = before_begin_term

    def reset(self, before_begin_index: int, before_begin_term: int) -> None:
        """Forget all entries; the log continues after before_begin_index, which it does not hold.

        Entries that conflict must have been removed before.
        """
        check(before_begin_index >= self.end_index, "restarts at or after the end", self.end_index)
        self._terms.clear()
        self._firsts.clear()
        self.before_begin_index = self.end_index = before_begin_index
        self.before_begin_term = before_begin_term

    def first_conflict(self, runs: Sequence[tuple[int, int]], last_index: int) -> int:
        """Return the first index from which a leader's entries up to last_index must be appended.

        `runs` are those entries' terms as (term, first index), the first at most at end_index + 1.
        The result is the first entry whose term differs from ours, or end_index + 1, or
        last_index + 1 when we hold all of them. Entries at or below before_begin_index were
        committed and so are equal.
        """
        for position, (term, first) in enumerate(runs):
            last = runs[position + 1][1] - 1 if position + 1 < len(runs) else last_index
            index = max(first, self.before_begin_index + 1)
            if index > last:
                continue
            if index > self.end_index or self.term_at(index) != term:
                return index
            equal_to = min(last, self.run_end(index))
            if equal_to < last:
                return equal_to + 1
        return last_index + 1

    def validate(self) -> None:
        """Raise `InvariantViolation` unless the runs describe a possible log."""
        empty = self.end_index == self.before_begin_index
        check(
            self.end_index >= self.before_begin_index >= -1, "a log ends where it starts or later"
        )
        check(empty == (not self._firsts), "runs exactly where there are entries", self._firsts)
        if empty:
            return
        check(self._firsts[0] == self.before_begin_index + 1, "the first run starts the log")
        check(self._firsts[-1] <= self.end_index, "the last run holds an entry")
        check(self._terms[0] >= self.before_begin_term, "terms never fall along the log")
        for values in (self._firsts, self._terms):
            rising = all(a < b for a, b in pairwise(values))
            check(rising, "runs rise in index and term", values)
