"""Runs of equal terms over a log: found by binary search, so that opening does not read it all."""

from bisect import bisect_right
from collections.abc import Callable, Sequence


class TermRuns:
    """(term, first index) of each run, ascending."""

    def __init__(self) -> None:
        self._terms: list[int] = []
        self._firsts: list[int] = []

    @classmethod
    def joined(
        cls,
        noted: Sequence[tuple[int, int]],
        until: int,
        first: int,
        last: int,
        term_at: Callable[[int], int],
    ) -> "TermRuns":
        """Return the runs of entries first … last: `noted` are the newest up to entry `until`."""
        runs = cls()
        wanted = [(term, start) for term, start in noted if start <= min(until, last)]
        while len(wanted) > 1 and wanted[1][1] <= first:
            wanted.pop(0)
        known_from = max(first, wanted[0][1]) if wanted else last + 1
        runs.search(first, known_from - 1, term_at)
        for term, start in wanted:
            runs.append(term, max(start, first))
        runs.search(max(known_from, until + 1), last, term_at)
        return runs

    def search(self, first: int, last: int, term_at: Callable[[int], int]) -> None:
        """Find and add the runs of the next entries, first … last; terms never fall."""
        index = first
        while index <= last:
            term = term_at(index)
            self.append(term, index)
            low, high = index, last
            while low < high:
                middle = (low + high + 1) // 2
                if term_at(middle) == term:
                    low = middle
                else:
                    high = middle - 1
            index = low + 1

    def pairs(self) -> list[tuple[int, int]]:
        """Return the runs."""
        return list(zip(self._terms, self._firsts, strict=True))

    def append(self, term: int, first_index: int) -> None:
        """Entries of a term start (or go on) at first_index."""
        if not self._terms or self._terms[-1] != term:
            self._terms.append(term)
            self._firsts.append(first_index)

    def truncate(self, from_index: int) -> None:
        """Forget from_index and everything after it."""
        while self._firsts and self._firsts[-1] >= from_index:
            self._firsts.pop()
            self._terms.pop()

    def remove_before(self, index: int) -> None:
        """Forget everything before an index; its own run now starts with it."""
        kept = bisect_right(self._firsts, index) - 1
        if kept >= 0:
            del self._terms[:kept]
            del self._firsts[:kept]
            self._firsts[0] = index

    def clear(self) -> None:
        """Forget everything."""
        self._terms.clear()
        self._firsts.clear()

    def term_at(self, index: int, before_begin_term: int) -> int:
        """Return the term at an index; before_begin_term in front of the first run."""
        place = bisect_right(self._firsts, index) - 1
        return self._terms[place] if place >= 0 else before_begin_term
