"""The manifest of an archive of topics: which file holds which records, and how far it has come.

A file has the records of one partition whose timestamps are of one day (UTC), in the order of their
offsets. What was read of a partition follows without a hole: a range of offsets, of which gaps are
missing. Some offsets have no records for readers: markers, and what was aborted.
"""

from itertools import pairwise
from typing import ClassVar, Final

import msgspec

from quorumlog.model.wording import counted
from quorumlog.spark.jobs.archive.manifest_file import ArchiveOf, BaseManifest, read_manifest
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.topics.part import Part
from quorumlog.storage.files.os_files import FileSystem

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""The day of records whose timestamp is in no year from 1 to 9999: Hive's word for null."""


class TopicFile(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one day in one Parquet file, the first and the last of which are named by offset.

    `path` is relative to the archive's directory. `body_bytes` counts keys and values before
    compression. `min_ms` and `max_ms` are the least and the greatest timestamp, in milliseconds
    since 1970; None: there is none. `sha256` is of the file's bytes, in hexadecimal.
    """

    path: str
    topic: str
    partition: int
    day: str
    first: int
    last: int
    rows: int
    body_bytes: int
    file_bytes: int
    sha256: str
    min_ms: int | None
    max_ms: int | None

    @property
    def part(self) -> Part:
        """The partition whose records it has."""
        return Part(self.topic, self.partition)

    @property
    def place(self) -> tuple[str, int, str, int]:
        """By what files are in order: those that may be merged are neighbours."""
        return self.topic, self.partition, self.day, self.first


class LastRecord(msgspec.Struct, frozen=True):
    """The last record of a partition that was archived, by which the partition is known again.

    `sha256` is of its timestamp, key and value.
    """

    offset: int
    sha256: str


class OffsetGap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets first … last, removed by retention before they were archived; seen on `day`."""

    topic: str
    partition: int
    first: int
    last: int
    day: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How far one partition was read: offsets first … beyond - 1, which had `rows` records."""

    topic: str
    partition: int
    first: int
    beyond: int
    rows: int = 0
    last_record: LastRecord | None = None

    @property
    def part(self) -> Part:
        """The partition."""
        return Part(self.topic, self.partition)


class TopicManifest(BaseManifest, frozen=True, kw_only=True):
    """An archive of topics of one cluster; each run may add others.

    `topic_ids` are Kafka's ids of the topics, by name. Those that only versions without them have
    archived from lack.
    """

    OF: ClassVar[ArchiveOf] = "topics"
    of: ArchiveOf = "topics"
    partitions: tuple[Coverage, ...] = ()
    files: tuple[TopicFile, ...] = ()
    gaps: tuple[OffsetGap, ...] = ()
    topic_ids: dict[str, str] = msgspec.field(default_factory=dict)

    def parts_named(self) -> tuple[TopicFile, ...]:
        """See `BaseManifest`."""
        return self.files

    @property
    def coverage(self) -> dict[Part, Coverage]:
        """How far each partition was read."""
        return {one.part: one for one in self.partitions}

    @property
    def rows(self) -> int:
        """Records that it holds."""
        return sum(file.rows for file in self.files)

    @property
    def lost_offsets(self) -> int:
        """Offsets in gaps."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)

    def files_of(self, part: Part) -> list[TopicFile]:
        """Return the files of a partition, by their first offset."""
        return sorted((one for one in self.files if one.part == part), key=lambda one: one.first)

    def check(self) -> None:
        """Raise `PipelineError` unless each record that was read is in one file."""
        super().check()
        coverage = self.coverage
        rows = dict.fromkeys(coverage, 0)
        if len(coverage) != len(self.partitions):
            raise PipelineError("a partition is named twice")
        for file in self.files:
            known = coverage.get(file.part)
            if known is None or not known.first <= file.first <= file.last < known.beyond:
                raise PipelineError(f"{file.path} has offsets of {file.part} that were not read")
            rows[file.part] += file.rows
        for before, after in pairwise(sorted(self.files, key=lambda one: one.place)):
            if before.place[:3] == after.place[:3] and after.first <= before.last:
                raise PipelineError(f"{before.path} and {after.path} have the same offsets")
        for part, count in rows.items():
            if count != coverage[part].rows:
                raise PipelineError(
                    f"the files of {part} have {counted(count, 'record')}, and "
                    f"{coverage[part].rows:,} were read"
                )


_MANIFESTS: Final = msgspec.json.Decoder(TopicManifest)


def load_topic_manifest(files: FileSystem, directory: str) -> TopicManifest:
    """Return the manifest of an archive of topics. Raises what `read_manifest` raises."""
    return read_manifest(files, directory, TopicManifest, _MANIFESTS)
