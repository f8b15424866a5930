"""What is read: which partitions of topics, from where to where, and by how many tasks."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from quorumlog.model.errors import IndexOutOfRangeError, QuorumlogError, UnexpectedArgumentError
from quorumlog.model.wording import shortened, there_is_no
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.topics.brokers import Brokers
from quorumlog.spark.topics.errors import UnknownTopicError
from quorumlog.spark.topics.options import Positions, TopicOptions
from quorumlog.spark.topics.part import EARLIEST, LATEST, Part

FEW_OFFSETS: Final = 10_000
"""A task reads about as many at least, of several partitions if need be: it costs 70 ms anyway."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets begin … beyond - 1 of a partition can be read."""

    begin: int
    beyond: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets first … beyond - 1 of a partition; none if `beyond` is not above `first`."""

    part: Part
    first: int
    beyond: int

    @property
    def count(self) -> int:
        """Number of offsets; markers of transactions have some that no record has."""
        return max(0, self.beyond - self.first)


@dataclass(frozen=True)
class OffsetRanges(InputPartition):
    """What one task reads."""

    ranges: tuple[OffsetRange, ...]


def parts_to_read(brokers: Brokers, options: TopicOptions) -> list[Part]:
    """Return the partitions that are there of what is asked for, in order.

    Raises `UnknownTopicError` for one that is named and not there, `UnexpectedArgumentError` if no
    topic has a name that matches the pattern.
    """
    if options.pattern is not None:
        topics = brokers.topics()
        found = parts_matching(options.pattern, topics)
        if not found:
            named = shortened(", ".join(sorted(topics))) or "it has none"
            raise UnexpectedArgumentError(
                f"option subscribePattern={options.pattern!r} matches none of the topics of the "
                f"cluster: {named}"
            )
        return found
    topics = brokers.partitions(options.topics)
    if unknown := [topic for topic in options.topics if topic not in topics]:
        known: Collection[str] = ()
        with suppress(QuorumlogError):  # only for names that may be meant
            known = brokers.topics(unconfirmed=True)
        text = there_is_no("topic", unknown, known, "quorumlog topic list")
        raise UnknownTopicError(text, unknown[0])
    if options.assigned is None:
        return _parts_of(topics)
    for part in options.assigned:
        if part.partition not in topics[part.topic]:
            count = len(topics[part.topic])
            raise UnknownTopicError(
                f"there is no partition {part}: topic {part.topic!r} has {count}, from 0 on",
                part.topic,
            )
    return list(options.assigned)


def parts_matching(pattern: str, topics: Mapping[str, Sequence[int]]) -> list[Part]:
    """Return the partitions of the topics whose whole names a regular expression matches."""
    return _parts_of({name: parts for name, parts in topics.items() if matches(pattern, name)})


def matches(pattern: str, topic: str) -> bool:
    """Whether a regular expression matches the whole name of a topic."""
    return re.fullmatch(pattern, topic) is not None


def _parts_of(topics: Mapping[str, Sequence[int]]) -> list[Part]:
    return sorted(Part(topic, one) for topic, partitions in topics.items() for one in partitions)


def bounds_of(
    brokers: Brokers, parts: Iterable[Part], *, reads_committed: bool, unconfirmed: bool = False
) -> dict[Part, Bounds]:
    """Return what can be read now; `unconfirmed` as in `Brokers.offsets`.

    Raises `UnknownTopicError`.
    """
    parts = list(parts)
    begin, beyond = (
        brokers.offsets(
            dict.fromkeys(parts, at), reads_committed=reads_committed, unconfirmed=unconfirmed
        )
        for at in (EARLIEST, LATEST)
    )
    return {part: Bounds(begin[part] or 0, beyond[part] or 0) for part in parts}


def starts_of(
    brokers: Brokers, options: TopicOptions, bounds: Mapping[Part, Bounds], default: int
) -> dict[Part, int]:
    """Return the offsets at which to start; `default` is `EARLIEST` or `LATEST`.

    Raises `IndexOutOfRangeError` for one beyond the end, or if all records are older than a time.
    """
    positions = options.starting or Positions("offset", default)
    found = _positions_of(brokers, positions, bounds, options)
    for part, offset in found.items():
        is_empty = bounds[part].begin == bounds[part].beyond  # then there is nothing to miss
        if offset is None and not is_empty and not options.is_late_start_allowed:
            raise IndexOutOfRangeError(
                f"{positions.option}: all records of partition {part} are older; to start at its "
                "end, set startingOffsetsByTimestampStrategy=latest"
            )
    return _known(found, bounds)


def ends_of(
    brokers: Brokers, options: TopicOptions, bounds: Mapping[Part, Bounds]
) -> dict[Part, int]:
    """Return the offsets before which to end. Raises `IndexOutOfRangeError`."""
    return _known(_positions_of(brokers, options.ending, bounds, options), bounds)


def _known(found: Mapping[Part, int | None], bounds: Mapping[Part, Bounds]) -> dict[Part, int]:
    return {
        part: bounds[part].beyond if offset is None else offset for part, offset in found.items()
    }


def _positions_of(
    brokers: Brokers,
    positions: Positions,
    bounds: Mapping[Part, Bounds],
    options: TopicOptions,
) -> dict[Part, int | None]:
    wanted = dict(positions.by_part or dict.fromkeys(bounds, positions.for_all))
    _check_names(positions.option, wanted, bounds)
    if positions.kind == "time":
        found = brokers.offsets(wanted, reads_committed=options.reads_committed)
        return {
            part: None if offset is None else min(offset, bounds[part].beyond)
            for part, offset in found.items()
        }
    return {part: _offset_of(positions.option, part, wanted[part], bounds[part]) for part in bounds}


def _check_names(option: str, positions: Mapping[Part, int], parts: Mapping[Part, Bounds]) -> None:
    """Raise `UnexpectedArgumentError` unless each partition has a position, and no other one."""
    for missing in sorted(parts.keys() - positions.keys()):
        raise UnexpectedArgumentError(f"option {option} says nothing of partition {missing}")
    for extra in sorted(positions.keys() - parts.keys()):
        raise UnexpectedArgumentError(f"option {option} names {extra}, which is not read")


def _offset_of(option: str, part: Part, offset: int, bounds: Bounds) -> int:
    if offset == EARLIEST:
        return bounds.begin
    if offset == LATEST:
        return bounds.beyond
    if offset > bounds.beyond:
        raise IndexOutOfRangeError(
            f"{option} {offset} is beyond the end: partition {part} has {offsets_text(bounds)}"
        )
    return offset


def offsets_text(bounds: Bounds) -> str:
    """Return what a partition has in words."""
    if bounds.beyond <= bounds.begin:
        return "no records"
    return f"offsets {bounds.begin} to {bounds.beyond - 1}"


def first_kept(losses: DataLossPolicy, part: Part, first: int, beyond: int, begin: int) -> int:
    """Return `first`, or the first offset kept of first … beyond - 1 if some were removed.

    Raises `DataLossError`, unless losses are only logged.
    """
    if first >= begin or first >= beyond:
        return first
    kept = min(begin, beyond)
    losses.lose(
        f"partition {part}: offsets {first} to {kept - 1} ({kept - first} of them) were removed by "
        f"retention before they were read; the first kept is {begin}"
    )
    return kept


def remaining(one: OffsetRange, bounds: Bounds) -> OffsetRange:
    """Return what is left of a range whose first offset is lost.

    That is nothing if the partition ends before it: its topic was made again.
    """
    if bounds.beyond <= one.first:
        return replace(one, first=one.beyond)
    return replace(one, first=min(one.beyond, bounds.begin))


def cut(ranges: Iterable[OffsetRange], options: TopicOptions) -> list[InputPartition]:
    """Return what Spark's tasks read, at least one.

    A range is cut as maxRecordsPerPartition and minPartitions ask for; a task reads several that
    are small.
    """
    ranges = [one for one in ranges if one.count]
    total = sum(one.count for one in ranges)
    pieces: list[OffsetRange] = []
    for one in ranges:
        shared = -(-(options.min_partitions or 1) * one.count // total)
        by_count = -(-one.count // options.max_records_per_partition)
        pieces += split(one, max(shared, by_count))
    enough = min(FEW_OFFSETS, options.max_records_per_partition)
    if options.min_partitions is not None:
        enough = min(enough, max(1, total // options.min_partitions))
    tasks: list[InputPartition] = []
    together: list[OffsetRange] = []
    for piece in pieces:
        if together and sum(one.count for one in together) + piece.count > enough:
            tasks.append(OffsetRanges(tuple(together)))
            together = []
        together.append(piece)
    return [*tasks, OffsetRanges(tuple(together))]


def split(one: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Return a range cut into equal pieces, none of them empty."""
    pieces = min(pieces, one.count)
    edges = [one.first + one.count * number // pieces for number in range(pieces + 1)]
    return [OffsetRange(one.part, first, beyond) for first, beyond in pairwise(edges)]
