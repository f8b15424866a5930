"""The Parquet files of an archive of topics: writing those of a range, reading a partition's."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.model.block import Int64s
from quorumlog.model.errors import StorageError
from quorumlog.spark.jobs.archive.parquet import (
    ROW_GROUP_BYTES,
    ArchiveFileWriter,
    Layout,
    row_groups,
)
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.manifest import NO_DAY, LastRecord, TopicFile
from quorumlog.spark.jobs.topics.source import RECORD_COLUMNS
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.schema import COLUMNS
from quorumlog.storage.files.os_files import FileSystem

FILE_COLUMNS: Final = RECORD_COLUMNS
"""The columns in a file; topic and day are in the names of its directories."""


@dataclass(frozen=True, slots=True)
class TopicLayout(Layout):
    """The columns of an archive's files of records.

    Timestamps of no calendar, before the year 1 or after 9999, have no day; with `calendar_only`
    they are null.
    """

    calendar_only: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)


TOPIC_LAYOUT: Final = TopicLayout(
    schema=arrow_schema(FILE_COLUMNS, COLUMNS),
    bodies=("key", "value"),
    number="offset",
    repeated=("key", "partition", "timestampType"),
    searched=("partition", "offset", "timestamp"),
    page_bytes=512 * 1024,  # files of many days are read side by side, by pages
)
SIDE_BY_SIDE_BYTES: Final = 2 * ROW_GROUP_BYTES
"""Bytes of keys and values that files which are read side by side have in memory, all together."""
PIECE_BYTES_MIN: Final = 64 * 1024
"""The least of these that each of them has, however many they are."""
DAYS_OPEN_MAX: Final = 64
"""Files that a task writes at a time; if a range has more days, the one least used is ended."""
_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = int(np.datetime64("0001-01-01").astype(np.int64))
_LAST_DAY: Final = int(np.datetime64("9999-12-31").astype(np.int64))
_DAYLESS: Final = _LAST_DAY + 1


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written: the offsets and timestamps of its records."""

    writer: ArchiveFileWriter
    first: int
    last: int = 0
    min_us: int | None = None
    max_us: int | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        self.writer.write(rows)
        self.last = rows.column("offset")[-1].as_py()
        least, most = pc.min_max(rows.column("timestamp").cast(pa.int64())).as_py().values()
        if least is not None:
            self.min_us = least if self.min_us is None else min(self.min_us, least)
            self.max_us = most if self.max_us is None else max(self.max_us, most)


class DayFiles:
    """The files of records of one partition, given in order: one or more for each day.

    `directory` is that of the archive. A file ends at about `file_bytes` of keys and values.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        part: Part,
        file_bytes: int,
        layout: TopicLayout = TOPIC_LAYOUT,
    ) -> None:
        self._files = files
        self._directory = directory
        self._part = part
        self._file_bytes = file_bytes
        self._layout = layout
        self._open: dict[str, _OpenFile] = {}
        self._done: list[TopicFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take more records."""
        for day, of_day in _by_day(rows):
            is_null = day == NO_DAY and self._layout.calendar_only
            found = _without_timestamps(of_day) if is_null else of_day
            file = self._open.pop(day, None) or self._opened(day, found)
            self._open[day] = file  # the last one is the one used last
            file.write(found)
            if file.writer.body_bytes >= self._file_bytes:
                self._end(day)
        if sum(file.writer.waiting_bytes for file in self._open.values()) >= ROW_GROUP_BYTES:
            largest = max(self._open.values(), key=lambda file: file.writer.waiting_bytes)
            largest.writer.write_row_group()

    def _opened(self, day: str, rows: pa.RecordBatch) -> _OpenFile:
        if len(self._open) >= DAYS_OPEN_MAX:
            self._end(next(iter(self._open)))
        first = rows.column("offset")[0].as_py()
        directory = f"{self._directory}/{_within(self._part.topic, day)}"
        self._files.make_directory(directory.rstrip("/"))
        stem = topic_stem(self._part, first)
        return _OpenFile(ArchiveFileWriter(self._files, directory, stem, self._layout), first)

    def _end(self, day: str) -> None:
        file = self._open[day]
        name, size, sha256 = file.writer.finish()
        del self._open[day]
        self._done.append(
            TopicFile(
                path=_within(self._part.topic, day) + name,
                topic=self._part.topic,
                partition=self._part.partition,
                day=day,
                first=file.first,
                last=file.last,
                rows=file.writer.rows,
                body_bytes=file.writer.body_bytes,
                file_bytes=size,
                sha256=sha256,
                min_ms=None if file.min_us is None else file.min_us // 1_000,
                max_ms=None if file.max_us is None else file.max_us // 1_000,
            )
        )

    def finish(self) -> list[TopicFile]:
        """Publish all files and return them."""
        for day in list(self._open):
            self._end(day)
        return self._done

    def abandon(self) -> None:
        """Remove the files that are being written."""
        for file in self._open.values():
            with suppress(StorageError):  # must not hide why; what is left is known by its name
                file.writer.abandon()


def topic_stem(part: Part, first: int) -> str:
    """Return the beginning of the name of a file that begins with an offset."""
    return f"{part.partition:05d}-{first:020d}"


def _within(topic: str, day: str) -> str:
    """Return the directory of a file as Hive names it, relative to the archive's."""
    return f"topic={topic}/day={day}/"


def _by_day(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the records of each day, in their order."""
    times = rows.column("timestamp").cast(pa.int64())
    days = pc.fill_null(times, (_LAST_DAY + 1) * _DAY_US).to_numpy() // _DAY_US
    days = np.where((days < _FIRST_DAY) | (days > _LAST_DAY), _DAYLESS, days)
    found = np.unique(days)
    for day in found.tolist():
        text = NO_DAY if day == _DAYLESS else str(np.datetime64(day, "D"))
        yield text, rows if len(found) == 1 else rows.filter(pa.array(days == day))


def _without_timestamps(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("timestamp")
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))


def last_record(rows: pa.RecordBatch) -> LastRecord:
    """Return by what the last of some records is known again."""
    (row,) = rows.slice(rows.num_rows - 1).select(["offset", "key", "value"]).to_pylist()
    time = rows.column("timestamp").cast(pa.int64())[-1].as_py()
    digest = hashlib.sha256(repr((time, row["key"])).encode())
    digest.update(repr(row["value"] is None).encode())
    digest.update(row["value"] or b"")
    return LastRecord(row["offset"], digest.hexdigest())


# -- reading --------------------------------------------------------------------------------------


class RecordsInOrder:
    """The records of files of one partition in the order of their offsets, whatever their days.

    Files whose offsets overlap are read side by side, the smaller pieces of each at a time the more
    they are. `damaged` is called with a file that is not
    as the manifest says, and the reason, and the file is left out; without it that is a
    `PipelineError`.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        parts: Sequence[TopicFile],
        damaged: Callable[[TopicFile, str], None] | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._unread = sorted(parts, key=lambda one: one.first, reverse=True)
        self._damaged = damaged
        self._piece_bytes = max(
            PIECE_BYTES_MIN, SIDE_BY_SIDE_BYTES // max(1, most_overlapping(parts))
        )
        self._heads: list[tuple[pa.Table, Iterator[pa.Table]]] = []

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield the records in pieces of any size but none."""
        while self._unread or self._heads:
            if not self._heads:
                self._begin()
            while self._heads and self._unread and self._unread[-1].first <= self._limit():
                self._begin()
            if self._heads:
                yield self._taken(self._limit())

    def _limit(self) -> int:
        """Return up to which offset the files that are being read have been read."""
        return min(_offset(table, -1) for table, _ in self._heads)

    def _begin(self) -> None:
        """Begin to read the next file."""
        part = self._unread.pop()
        tables = row_groups(
            self._files, self._directory, part, FILE_COLUMNS, bytes_max=self._piece_bytes
        )
        try:
            self._heads.append((next(tables), tables))
        except PipelineError as error:
            if self._damaged is None:
                raise
            self._damaged(part, str(error))

    def _taken(self, limit: int) -> pa.Table:
        """Return the records of all files that are being read up to an offset."""
        taken, heads = [], []
        for table, following in self._heads:
            count = int(np.searchsorted(offsets_in(table), limit, side="right"))
            if count:
                taken.append(table.slice(0, count))
            rest: pa.Table | None = table.slice(count)
            if count == table.num_rows:
                rest = next(following, None)
            if rest is not None:
                heads.append((rest, following))
        self._heads = heads
        return taken[0] if len(taken) == 1 else pa.concat_tables(taken).sort_by("offset")


def most_overlapping(parts: Sequence[TopicFile]) -> int:
    """Return how many files have an offset in their range at most."""
    edges = [(one.first, 1) for one in parts] + [(one.last + 1, -1) for one in parts]
    return max(accumulate(change for _, change in sorted(edges)), default=0)


def offsets_in(rows: Any) -> Int64s:
    """Return the offsets of a table or a batch of records."""
    offsets: Int64s = rows.column("offset").to_numpy()
    return offsets


def _offset(table: pa.Table, place: int) -> int:
    offset: int = table.column("offset")[place].as_py()
    return offset
