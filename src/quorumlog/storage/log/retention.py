"""Which of the oldest entries may be removed (spec 20 section 13, with its requirements).

Ages are of group time (`sessions.time_marks`), never of a calendar's clock or of a file's times:
those jump, and a jump must not make fresh entries old.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorumlog.model.config import HOUR_MS, GroupConfig
from quorumlog.storage.files.space import DiskState
from quorumlog.storage.log.interface import Segment

MARKS_PER_PERIOD = 24
"""Group time is recorded at least this many times in the time for which entries are kept …"""
PAUSE_MS_MAX = HOUR_MS
"""… and at least once in this time."""


def mark_pause_ms(config: GroupConfig) -> int:
    """Return how often group time is recorded: a restart of all nodes loses at most this much."""
    return min(PAUSE_MS_MAX, config.reserved_ms // MARKS_PER_PERIOD)


@dataclass(frozen=True, slots=True)
class RetentionInputs:
    """What decides besides size: entries after `applied_index` or `peers_have` are still needed.

    `age_ms` returns how old all entries up to an index are at least, None if that is not known.
    `clock_is_steady`: nobody set the wall clock lately, so the hour that it shows can be believed.
    """

    age_ms: Callable[[int], int | None]
    hour_of_day: int
    clock_is_steady: bool
    applied_index: int
    peers_have: int


def last_to_remove(
    segments: Sequence[Segment],
    size_bytes: int,
    config: GroupConfig,
    disk: DiskState,
    inputs: RetentionInputs,
) -> int | None:
    """Return the last index that may be removed now, or None.

    `segments` are the oldest of a log of `size_bytes`. Entries stay that are not both committed and
    applied, or that a live peer still needs (unless it lags by more than the budget). From a disk
    that is too full one segment is removed at a time, since that may be enough.
    """
    last: int | None = None
    is_time = disk.deletes_old or inputs.hour_of_day in config.delete_hours
    is_time = is_time and inputs.clock_is_steady
    for segment in segments:
        remaining = size_bytes - segment.size_bytes
        if _is_kept(segment, remaining, config, inputs):
            break
        age_ms = inputs.age_ms(segment.last_index)
        expired = is_time and age_ms is not None and age_ms > config.reserved_ms
        too_many = 0 < config.retention_bytes <= remaining
        if not (expired or too_many or (disk.deletes_any and last is None)):
            break
        last, size_bytes = segment.last_index, remaining
    return last


def last_unneeded(
    segments: Sequence[Segment], size_bytes: int, config: GroupConfig, inputs: RetentionInputs
) -> int | None:
    """Return the last index that may be removed of a log that holds partitions, or None.

    `inputs.applied_index` comes before everything that may be read of a partition. Neither age nor
    bytes nor a full disk takes entries from a partition that still offers them.
    """
    last: int | None = None
    for segment in segments:
        size_bytes -= segment.size_bytes
        if _is_kept(segment, size_bytes, config, inputs):
            break
        last = segment.last_index
    return last


def _is_kept(
    segment: Segment, remaining: int, config: GroupConfig, inputs: RetentionInputs
) -> bool:
    """Whether a segment stays, whatever its age; `remaining` bytes are in the log after it."""
    is_lagging = segment.last_index > inputs.peers_have
    is_needed = is_lagging and remaining <= config.follower_retention_bytes
    return segment.last_index > inputs.applied_index or is_needed
