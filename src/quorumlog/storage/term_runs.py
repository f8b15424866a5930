"""Runs of equal terms over a log: found by binary search, so that opening does not read it all."""

from bisect import bisect_right
from collections.abc import Callable


class TermRuns:
    """(term, first index) of each run, ascending."""

    def __init__(self) -> None:
        self._terms: list[int] = []
        self._firsts: list[int] = []

    @classmethod
    def found(cls, first: int, last: int, term_at: Callable[[int], int]) -> "TermRuns":
        """Find the runs of a log first … last, whose terms never fall."""
        runs = cls()
        index = first
        while index <= last:
            term = term_at(index)
            runs.append(term, index)
            low, high = index, last
            while low < high:
                middle = (low + high + 1) // 2
                if term_at(middle) == term:
                    low = middle
                else:
                    high = middle - 1
            index = low + 1
        return runs

    def pairs(self) -> list[tuple[int, int]]:
        """Return the runs."""
        return list(zip(self._terms, self._firsts, strict=True))

    def append(self, term: int, first_index: int) -> None:
        """Entries of a term begin (or go on) at first_index."""
        if not self._terms or self._terms[-1] != term:
            self._terms.append(term)
            self._firsts.append(first_index)

    def truncate(self, from_index: int) -> None:
        """Forget from_index and everything after it."""
        while self._firsts and self._firsts[-1] >= from_index:
            self._firsts.pop()
            self._terms.pop()

    def term_at(self, index: int, before_begin_term: int) -> int:
        """Return the term at an index; before_begin_term in front of the first run."""
        place = bisect_right(self._firsts, index) - 1
        return self._terms[place] if place >= 0 else before_begin_term
