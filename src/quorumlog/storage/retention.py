"""Which of the oldest entries may go (spec 20 section 13, with its requirements)."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.config import GroupConfig
from quorumlog.storage.base import Segment
from quorumlog.storage.space import DiskState

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Moment:
    """The calendar's time, and what others need: entries behind `applied_index` or `peers_have`."""

    wall_ms: int
    hour_of_day: int
    applied_index: int
    peers_have: int


def last_to_remove(
    segments: Sequence[Segment],
    size_bytes: int,
    config: GroupConfig,
    disk: DiskState,
    moment: Moment,
) -> int | None:
    """Return the last index that may be removed now, or None.

    `segments` are the oldest of a log of `size_bytes`. Never beyond what is committed and applied,
    nor what a live peer still needs (unless it lags by more than the budget). A disk that is too
    full gives up one segment at a time, since the next look may find that enough.
    """
    last = None
    for segment in segments:
        left = size_bytes - segment.size_bytes
        needed = segment.last_index > moment.peers_have and left <= config.follower_retention_bytes
        if segment.last_index > moment.applied_index or needed:
            break
        age_ms = 0 if segment.modified_ms is None else moment.wall_ms - segment.modified_ms
        is_time = disk.deletes_old or moment.hour_of_day in config.delete_hours
        expired = is_time and age_ms > config.file_reserved_hours * HOUR_MS
        too_many = 0 < config.retention_bytes <= left
        if not (expired or too_many or (disk.deletes_any and last is None)):
            break
        last, size_bytes = segment.last_index, left
    return last
