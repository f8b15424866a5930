"""Partitions of topics, and the places in them that have names."""

from typing import Final, NamedTuple

EARLIEST: Final = -2
LATEST: Final = -1
"""The first offset that is kept, and the end, in the place of offsets and of times (Kafka's)."""


class Part(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return it as Kafka's tools write it."""
        return f"{self.topic}-{self.partition}"
