"""What all archives of topics do alike: they fetch what they lack, round by round."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from quorumlog.spark.jobs.archive.state import RunOptions
from quorumlog.spark.jobs.tasks import ROUND_TASKS_PER_CORE, PipelineError, Progress, RunTasks
from quorumlog.spark.jobs.topics.files import TOPIC_LAYOUT, TopicLayout, last_record
from quorumlog.spark.jobs.topics.identity import check_archived, check_same, check_there, made_again
from quorumlog.spark.jobs.topics.manifest import (
    Coverage,
    LastRecord,
    OffsetGap,
    TopicFile,
    TopicManifest,
)
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.jobs.topics.tasks import FETCHED, FetchedRange, FetchRanges
from quorumlog.spark.topics.errors import OffsetOutOfRangeError, UnknownTopicError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import Bounds, OffsetRange
from quorumlog.storage.files.os_files import FileSystem

KNOWN_BY: Final = ("key", "value", "offset", "timestamp")
"""The columns by which a record is known again."""
Kept = TypeVar("Kept", bound=TopicManifest)


class FetchedState(Protocol[Kept]):
    """What is known of an archive during a run, and changes with what was fetched."""

    @property
    def manifest(self) -> Kept:
        """How far each partition was read, and into which files."""
        ...

    def save(self, manifest: Kept) -> None:
        """Put a manifest in the place of the one before."""
        ...

    def check_is_there(self, parts: Sequence[TopicFile]) -> None:
        """Raise `PipelineError` unless the driver sees what tasks wrote."""
        ...

    def day(self) -> str:
        """Return the present day (UTC)."""
        ...


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """Where files of records are written, and what is in them."""

    files: FileSystem
    directory: str
    layout: TopicLayout = TOPIC_LAYOUT


class TopicFetch(Generic[Kept]):
    """Fetches what an archive lacks into files. `where` names the archive in errors.

    `new` are the files that were added to the archive, in no particular order. Tasks may have
    written others, which are no part of it: attempts that Spark gave up, and those that read what
    comes after records that retention removed.
    """

    def __init__(
        self,
        source: TopicSource,
        place: RecordFiles,
        where: str,
        state: FetchedState[Kept],
        options: RunOptions,
        run_tasks: RunTasks,
        progress: Progress,
    ) -> None:
        self._source = source
        self._place = place
        self._where = where
        self._state = state
        self._options = options
        self._run_tasks = run_tasks
        self._progress = progress
        self._topic_ids: dict[str, str] = {}
        """The topics from which this run reads."""
        self.new: list[TopicFile] = []

    def run(self) -> None:
        """Fetch up to the ends of the partitions as they are now.

        Raises `PipelineError`, or what fetching and writing raise; what was saved stays.
        """
        parts = self._source.parts()
        topics = {part.topic for part in parts}
        self._topic_ids = self._source.topic_ids(topics)
        check_there(topics, self._topic_ids)
        self._forget_empty()
        manifest = self._state.manifest
        check_archived(self._where, manifest.topic_ids, self._topic_ids)
        read_to = {part: one.beyond for part, one in manifest.coverage.items()}
        bounds = self._source.bounds(parts, read_to)
        check_same(self._source, self._topic_ids, self._topic_ids)
        self._begin(bounds)
        for part, there in bounds.items():
            self._check_continues(part, there)
        self._keep_ids(bounds)
        self._note_lost(bounds)
        total = sum(one.count for one in self._left(bounds))
        while left := self._left(bounds):
            if self._fetch_round(left):
                self._progress(total - sum(one.count for one in self._left(bounds)), total)
                continue
            bounds = self._with_present_begins(bounds)
            if not self._note_lost(bounds):
                one = left[0]
                raise PipelineError(
                    f"offset {one.first} of partition {one.part} was removed on one replica, but "
                    "the present leader still has it; run again"
                )

    def _with_present_begins(self, bounds: dict[Part, Bounds]) -> dict[Part, Bounds]:
        """Return what is left of what was to be read. Raises `UnknownTopicError`."""
        found = self._source.bounds(bounds)
        check_same(self._source, self._topic_ids, self._topic_ids)
        for part in bounds.keys() - found.keys():
            raise UnknownTopicError(f"there is no partition {part} any more", part.topic)
        return {part: Bounds(found[part].begin, one.beyond) for part, one in bounds.items()}

    def _forget_empty(self) -> None:
        """Forget topics that were made again before the archive had anything of them."""
        manifest = self._state.manifest
        read = {one.topic for one in manifest.partitions if one.beyond > one.first}
        kept = read | {one.topic for one in manifest.gaps}
        forgotten = set(made_again(manifest.topic_ids, self._topic_ids)) - kept
        if forgotten:
            partitions = tuple(one for one in manifest.partitions if one.topic not in forgotten)
            ids = {name: one for name, one in manifest.topic_ids.items() if name not in forgotten}
            self._state.save(
                msgspec.structs.replace(manifest, partitions=partitions, topic_ids=ids)
            )

    def _begin(self, bounds: dict[Part, Bounds]) -> None:
        """Add the partitions that the archive does not know to the manifest."""
        manifest = self._state.manifest
        known = manifest.coverage
        new = [
            Coverage(topic=part.topic, partition=part.partition, first=one.begin, beyond=one.begin)
            for part, one in bounds.items()
            if part not in known
        ]
        if new:
            partitions = tuple(sorted([*manifest.partitions, *new], key=lambda one: one.part))
            topics = {part.topic for part in bounds} - {part.topic for part in known}
            self._state.save(
                msgspec.structs.replace(
                    manifest, partitions=partitions, topic_ids=self._ids_with(topics)
                )
            )

    def _keep_ids(self, bounds: Iterable[Part]) -> None:
        """Keep the ids of topics that were archived without, now that they are known again."""
        manifest = self._state.manifest
        topic_ids = self._ids_with({part.topic for part in bounds})
        if topic_ids != manifest.topic_ids:
            self._state.save(msgspec.structs.replace(manifest, topic_ids=topic_ids))

    def _ids_with(self, topics: Set[str]) -> dict[str, str]:
        """Return the ids in the manifest with those of some topics, in the order of their names."""
        new = {topic: one for topic, one in self._topic_ids.items() if one and topic in topics}
        return dict(sorted((self._state.manifest.topic_ids | new).items()))

    def _left(self, bounds: dict[Part, Bounds]) -> list[OffsetRange]:
        """Return what is to be fetched."""
        coverage = self._state.manifest.coverage
        ranges = [
            OffsetRange(part, coverage[part].beyond, one.beyond) for part, one in bounds.items()
        ]
        return [one for one in ranges if one.count]

    def _check_continues(self, part: Part, bounds: Bounds) -> None:
        """Raise `PipelineError` unless a partition goes on where the archive ends."""
        known = self._state.manifest.coverage[part]
        where = f"{self._where} and partition {part} have different histories"
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
        manifest = self._state.manifest
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
        options, place = self._options, self._place
        cut = self._source.cut(left, options.cores)[: options.cores * ROUND_TASKS_PER_CORE]
        tasks = [
            FetchRanges(
                self._source,
                place.files,
                place.directory,
                one.ranges,
                options.file_bytes,
                self._topic_ids,
                place.layout,
            )
            for one in cut
        ]
        fetched = [one for raw in self._run_tasks(tasks) for one in FETCHED.decode(raw)]
        check_same(self._source, self._topic_ids, {one.part.topic for one in fetched})
        manifest = self._state.manifest
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
                files=in_order([*manifest.files, *new]),
            )
        )
        self.new += new
        return all(one.is_whole for one in fetched)


def _extended(known: Coverage, one: FetchedRange) -> Coverage:
    return msgspec.structs.replace(
        known,
        beyond=one.beyond,
        rows=known.rows + sum(file.rows for file in one.files),
        last_record=one.last_record or known.last_record,
    )


def in_order(files: Sequence[TopicFile]) -> tuple[TopicFile, ...]:
    """Return files with those that may be merged as neighbours."""
    return tuple(sorted(files, key=lambda file: file.place))
