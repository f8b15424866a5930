"""The entries after which replicas compare what they derived: the same on all of them."""

POINTS_KEPT = 8
"""How many entries' digests are remembered, newest first."""
NOWHERE = 1 << 62


class Points:
    """The indexes after which replicas compare: the last of each `entries`; none if that is 0."""

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def after(self, index: int) -> int:
        """Return the first one after an index."""
        entries = self.entries
        return ((index + 1) // entries + 1) * entries - 1 if entries else NOWHERE

    def is_one(self, index: int) -> bool:
        """Whether replicas compare after an entry."""
        return bool(self.entries) and index >= 0 and (index + 1) % self.entries == 0

    def newest(self, first: int, last: int) -> range:
        """Return those from `first`, which is one, to `last`; no more of them than are kept."""
        skipped = max(0, (last - first) // self.entries + 1 - POINTS_KEPT)
        return range(first + skipped * self.entries, last + 1, self.entries)
