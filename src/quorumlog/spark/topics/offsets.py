"""The position of a stream in topics, as Spark keeps it.

An offset in a checkpoint is {"<topic>": {"<partition>": offset}}, as Spark's Kafka source has it:
the first offset that was not read.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.topics.part import Part

OffsetJson: TypeAlias = dict[str, dict[str, int]]
"""An offset as Spark keeps it."""
Offset: TypeAlias = dict[Part, int]


def parse_offset(written: Mapping[str, Any]) -> Offset:
    """Return the positions that an offset of a checkpoint names. Raises `QuorumlogError`."""
    try:
        return {
            Part(topic, int(partition)): int(offset)
            for topic, partitions in written.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise QuorumlogError(
            f"{written} is no offset of topics; was the checkpoint written by another source?"
        ) from None


def format_offset(offset: Offset) -> OffsetJson:
    """Return what is written in a checkpoint, always the same for the same positions."""
    written: OffsetJson = {}
    for part in sorted(offset):
        written.setdefault(part.topic, {})[str(part.partition)] = offset[part]
    return written
