"""One run of an archive of topics: what is missing is fetched round by round, small files merged.

`ArchiveState` says in which order files and manifest change.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from quorumlog.spark.jobs.archive.manifest_file import FORMAT_VERSION, manifest_path
from quorumlog.spark.jobs.archive.state import (
    ID_BYTES,
    SMALL_SHARE,
    ArchiveState,
    BaseRun,
    RunOptions,
    runs_to_merge,
)
from quorumlog.spark.jobs.tasks import (
    ROUND_TASKS_PER_CORE,
    PipelineError,
    Progress,
    RunTasks,
    no_progress,
)
from quorumlog.spark.jobs.topics.files import last_record
from quorumlog.spark.jobs.topics.manifest import (
    Coverage,
    LastRecord,
    OffsetGap,
    TopicFile,
    TopicManifest,
    load_topic_manifest,
)
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.jobs.topics.tasks import (
    FETCHED,
    MERGED,
    FetchedRange,
    FetchRanges,
    MergeTopicFiles,
    follows_on_the_same_day,
)
from quorumlog.spark.topics.errors import OffsetOutOfRangeError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import Bounds, OffsetRange
from quorumlog.storage.files.os_files import FileSystem

KNOWN_BY: Final = ("key", "value", "offset", "timestamp")
"""The columns by which a record is known again."""


@dataclass(frozen=True, slots=True)
class TopicArchiveResult:
    """What an archive of topics holds, and what one run added to it.

    `lost_offsets` were removed by retention first: all in gaps, `new_lost_offsets` of them found by
    this run. Bytes are those of keys and values, and of new files.
    """

    directory: str
    topics: int
    partitions: int
    rows: int
    files: int
    lost_offsets: int
    new_rows: int
    new_body_bytes: int
    new_file_bytes: int
    new_lost_offsets: int
    merged_files: int


class TopicArchiveRun(BaseRun[TopicManifest, TopicArchiveResult]):
    """A run; see `BaseRun`."""

    def __init__(
        self,
        source: TopicSource,
        files: FileSystem,
        directory: str,
        options: RunOptions,
        run_tasks: RunTasks,
        progress: Progress = no_progress,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(files, directory, options, run_tasks, progress, now_s)
        self._source = source
        self._fetched: list[TopicFile] = []

    def _load(self) -> TopicManifest:
        """Return the manifest, made if this is the first run."""
        cluster = self._source.brokers().cluster_id()
        isolation = self._source.isolation
        if not self._files.exists(manifest_path(self._directory)):
            made = TopicManifest(
                format_version=FORMAT_VERSION,
                archive_id=self._files.random_bytes(ID_BYTES).hex(),
                cluster=cluster,
                isolation=isolation,
            )
            ArchiveState(self._files, self._directory, made).save(made)
            return made
        found = load_topic_manifest(self._files, self._directory)
        if (found.cluster, found.isolation) != (cluster, isolation):
            raise PipelineError(
                f"{self._directory} is an archive of topics of cluster {found.cluster}, "
                f"{found.isolation}, not of {cluster}, {isolation}: choose another directory, or "
                "continue as it was started"
            )
        return found

    # -- fetching -----------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        parts = self._source.parts()
        bounds = self._source.bounds(parts)
        self._begin(bounds)
        for part in parts:
            self._check_continues(part, bounds[part])
        self._note_lost(bounds)
        total = sum(one.count for one in self._left(bounds))
        while left := self._left(bounds):
            if self._fetch_round(left):
                self._progress(total - sum(one.count for one in self._left(bounds)), total)
                continue
            begins = {part: one.begin for part, one in self._source.bounds(parts).items()}
            bounds = {part: Bounds(begins[part], one.beyond) for part, one in bounds.items()}
            if not self._note_lost(bounds):
                one = left[0]
                raise PipelineError(
                    f"offset {one.first} of partition {one.part} was removed on one replica, but "
                    "the leader of now still has it; run again"
                )

    def _begin(self, bounds: dict[Part, Bounds]) -> None:
        """Add the partitions that the archive does not know to the manifest."""
        manifest = self._manifest
        known = manifest.coverage
        new = [
            Coverage(topic=part.topic, partition=part.partition, first=one.begin, beyond=one.begin)
            for part, one in bounds.items()
            if part not in known
        ]
        if new:
            partitions = tuple(sorted([*manifest.partitions, *new], key=lambda one: one.part))
            self._state.save(msgspec.structs.replace(manifest, partitions=partitions))

    def _left(self, bounds: dict[Part, Bounds]) -> list[OffsetRange]:
        """Return what is to be fetched."""
        coverage = self._manifest.coverage
        ranges = [
            OffsetRange(part, coverage[part].beyond, one.beyond) for part, one in bounds.items()
        ]
        return [one for one in ranges if one.count]

    def _check_continues(self, part: Part, bounds: Bounds) -> None:
        """Raise `PipelineError` unless a partition goes on where the archive ends."""
        known = self._manifest.coverage[part]
        where = f"{self._directory} and partition {part} have different histories"
        hint = "was the topic deleted and made again? Archive it into a new directory"
        if bounds.beyond < known.beyond:
            raise PipelineError(
                f"{where}: the archive holds offsets up to {known.beyond - 1}, and the partition "
                f"ends at {bounds.beyond - 1}; {hint}"
            )
        last = known.last_record
        if last is None or last.offset < bounds.begin or bounds.beyond == known.beyond:
            return
        if self._record_at(part, last.offset) not in {None, last}:
            raise PipelineError(f"{where}: the records at offset {last.offset} differ; {hint}")

    def _record_at(self, part: Part, offset: int) -> LastRecord | None:
        """Return what a record is known by; None: retention has just removed it."""
        found: LastRecord | None = LastRecord(offset, "")
        try:
            for batches, _ in self._source.records(OffsetRange(part, offset, offset + 1), KNOWN_BY):
                for rows in batches:
                    if rows.num_rows:
                        found = last_record(rows)
        except OffsetOutOfRangeError:
            return None
        return found

    def _note_lost(self, bounds: dict[Part, Bounds]) -> bool:
        """Record which offsets are lost, if that is allowed; return whether there are any."""
        manifest = self._manifest
        coverage, gaps = manifest.coverage, []
        for part, one in bounds.items():
            known = coverage[part]
            begin = min(one.begin, one.beyond)
            if begin <= known.beyond:
                continue
            gap = OffsetGap(
                topic=part.topic,
                partition=part.partition,
                first=known.beyond,
                last=begin - 1,
                day=self._state.day(),
            )
            if self._options.fail_on_data_loss:
                raise PipelineError(
                    f"offsets {gap.first} to {gap.last} of partition {part} were removed by "
                    "retention before they were archived; archive more often, or keep records "
                    "longer. To go on with a gap: fail_on_data_loss=False (--allow-data-loss)"
                )
            gaps.append(gap)
            coverage[part] = msgspec.structs.replace(known, beyond=begin)
        if gaps:
            self._state.save(
                msgspec.structs.replace(
                    manifest,
                    partitions=tuple(coverage.values()),
                    gaps=(*manifest.gaps, *gaps),
                )
            )
        return bool(gaps)

    def _fetch_round(self, left: Sequence[OffsetRange]) -> bool:
        """Archive some ranges; return whether all of them are archived whole."""
        options = self._options
        cut = self._source.cut(left, options.cores)[: options.cores * ROUND_TASKS_PER_CORE]
        tasks = [
            FetchRanges(self._source, self._files, self._directory, one.ranges, options.file_bytes)
            for one in cut
        ]
        fetched = [one for raw in self._run_tasks(tasks) for one in FETCHED.decode(raw)]
        manifest = self._manifest
        coverage = manifest.coverage
        new: list[TopicFile] = []
        for one in fetched:
            known = coverage[one.part]
            if one.first == known.beyond:  # nothing is missing before it
                coverage[one.part] = _extended(known, one)
                new += one.files
        self._state.check_is_there(new)
        self._state.save(
            msgspec.structs.replace(
                manifest,
                partitions=tuple(coverage.values()),
                files=_in_order([*manifest.files, *new]),
            )
        )
        self._fetched += new
        return all(one.is_whole for one in fetched)

    # -- merging ------------------------------------------------------------------------------

    def _compact(self) -> None:
        """Merge small files; the manifest changes when all new ones are there."""
        manifest, file_bytes = self._manifest, self._options.file_bytes
        runs = runs_to_merge(
            manifest.files, follows_on_the_same_day, file_bytes // SMALL_SHARE, file_bytes
        )
        if not runs:
            return
        tasks = [MergeTopicFiles(self._files, self._directory, run) for run in runs]
        made = [MERGED.decode(raw) for raw in self._run_tasks(tasks)]
        self._state.check_is_there(made)
        gone = {file.path: file for run in runs for file in run}
        kept = [file for file in manifest.files if file.path not in gone]
        self._state.save(
            msgspec.structs.replace(
                manifest,
                files=_in_order([*kept, *made]),
                replaced=self._state.replaced_with(gone.values()),
            )
        )
        self._merged_files = len(gone)

    # -- the end ------------------------------------------------------------------------------

    def _result(self, before: TopicManifest) -> TopicArchiveResult:
        after, new = self._manifest, self._fetched
        return TopicArchiveResult(
            directory=self._directory,
            topics=len({one.topic for one in after.partitions}),
            partitions=len(after.partitions),
            rows=after.rows,
            files=len(after.files),
            lost_offsets=after.lost_offsets,
            new_rows=sum(file.rows for file in new),
            new_body_bytes=sum(file.body_bytes for file in new),
            new_file_bytes=sum(file.file_bytes for file in new),
            new_lost_offsets=after.lost_offsets - before.lost_offsets,
            merged_files=self._merged_files,
        )


def _extended(known: Coverage, one: FetchedRange) -> Coverage:
    return msgspec.structs.replace(
        known,
        beyond=one.beyond,
        rows=known.rows + sum(file.rows for file in one.files),
        last_record=one.last_record or known.last_record,
    )


def _in_order(files: Sequence[TopicFile]) -> tuple[TopicFile, ...]:
    return tuple(sorted(files, key=lambda file: file.place))
