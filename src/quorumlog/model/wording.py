"""Sentences for people: numbers with what they count, and texts of a bounded length."""

from typing import Final

TEXT_LENGTH_MAX: Final = 1_000
"""Characters of a text that may have in it what somebody else has sent, such as a name."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: `1 file`, `2 files`; `many` if it is not `one` + s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def entries_text(count: int) -> str:
    """Return `1 entry`, `2 entries` …"""
    return counted(count, "entry", "entries")


def shortened(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return a text, or its first characters and `…` if it is longer than `length_max`."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"
