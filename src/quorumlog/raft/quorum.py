"""Majorities: pure arithmetic."""

from collections.abc import Sequence


def majority(members: int) -> int:
    """Return how many of so many members are a majority."""
    return members // 2 + 1


def quorum_index(values: Sequence[int]) -> int:
    """Return the largest value that a majority has reached; one value for each member."""
    return sorted(values, reverse=True)[len(values) // 2]
