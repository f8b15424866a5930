"""What tasks do for an archive of topics: fetch ranges into files, merge small files into one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from quorumlog.model.errors import check
from quorumlog.spark.jobs.archive.parquet import ArchiveFileWriter, merge_into
from quorumlog.spark.jobs.topics.files import (
    FILE_COLUMNS,
    TOPIC_LAYOUT,
    DayFiles,
    TopicLayout,
    last_record,
    topic_stem,
)
from quorumlog.spark.jobs.topics.identity import check_same
from quorumlog.spark.jobs.topics.manifest import LastRecord, TopicFile
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.topics.errors import OffsetOutOfRangeError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange
from quorumlog.storage.files.os_files import FileSystem


class FetchedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets first … beyond - 1 of a partition, read into files.

    `is_whole`: up to where it was to be read; otherwise retention was there first.
    """

    topic: str
    partition: int
    first: int
    beyond: int
    files: list[TopicFile]
    last_record: LastRecord | None
    is_whole: bool

    @property
    def part(self) -> Part:
        """The partition."""
        return Part(self.topic, self.partition)


FETCHED: Final = msgspec.json.Decoder(list[FetchedRange])
MERGED: Final = msgspec.json.Decoder(TopicFile)


@dataclass(frozen=True, slots=True)
class FetchRanges:
    """Fetch ranges of offsets and write their records as files below `directory`.

    `topic_ids` are those of the topics to read, by name.
    """

    source: TopicSource
    files: FileSystem
    directory: str
    ranges: tuple[OffsetRange, ...]
    file_bytes: int
    topic_ids: Mapping[str, str]
    layout: TopicLayout = TOPIC_LAYOUT

    def __call__(self) -> bytes:
        """Return `FetchedRange`s. Raises what fetching and writing raise."""
        check_same(self.source, self.topic_ids, {one.part.topic for one in self.ranges})
        return msgspec.json.encode([self._fetched(one) for one in self.ranges])

    def _fetched(self, one: OffsetRange) -> FetchedRange:
        days = DayFiles(self.files, self.directory, one.part, self.file_bytes, self.layout)
        beyond, last = one.first, None
        try:
            try:
                for batches, read in self.source.records(one, self.layout.columns):
                    for rows in batches:
                        if rows.num_rows:
                            days.write(rows)
                            last = last_record(rows)
                    beyond = read
            except OffsetOutOfRangeError:
                pass  # what was read until then counts
            found = days.finish()
        except BaseException:
            days.abandon()
            raise
        return FetchedRange(
            topic=one.part.topic,
            partition=one.part.partition,
            first=one.first,
            beyond=beyond,
            files=found,
            last_record=last,
            is_whole=beyond == one.beyond,
        )


@dataclass(frozen=True, slots=True)
class MergeTopicFiles:
    """Write the records of neighbouring files of one day as one file. The old ones stay."""

    files: FileSystem
    directory: str
    merged: tuple[TopicFile, ...]

    def __call__(self) -> bytes:
        """Return a `TopicFile`. Raises `PipelineError` when a file is damaged."""
        first, last = self.merged[0], self.merged[-1]
        within = first.path.rpartition("/")[0]
        writer = ArchiveFileWriter(
            self.files,
            f"{self.directory}/{within}",
            topic_stem(first.part, first.first),
            TOPIC_LAYOUT,
        )
        name, size, sha256 = merge_into(
            writer, self.files, self.directory, self.merged, FILE_COLUMNS
        )
        rows = sum(one.rows for one in self.merged)
        check(writer.rows == rows, "a file has as many rows as those merged", writer.rows, rows)
        times = [
            time for one in self.merged for time in (one.min_ms, one.max_ms) if time is not None
        ]
        return msgspec.json.encode(
            msgspec.structs.replace(
                first,
                path=f"{within}/{name}",
                last=last.last,
                rows=writer.rows,
                body_bytes=writer.body_bytes,
                file_bytes=size,
                sha256=sha256,
                min_ms=min(times, default=None),
                max_ms=max(times, default=None),
            )
        )


def follows_on_the_same_day(run: list[TopicFile], file: TopicFile) -> bool:
    """Whether a file may be merged with those before it, which are in the order of `place`."""
    return run[-1].place[:3] == file.place[:3]
