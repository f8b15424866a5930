"""One run of an archive of a group: what is missing is fetched round by round, small files merged.

`ArchiveState` says in which order files and manifest change.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from quorumlog.model.errors import IndexRemovedError
from quorumlog.spark.jobs.archive.manifest import (
    ArchivedFile,
    Gap,
    Manifest,
    PartitionBy,
    load_manifest,
)
from quorumlog.spark.jobs.archive.manifest_file import FORMAT_VERSION, manifest_path
from quorumlog.spark.jobs.archive.state import (
    ID_BYTES,
    MERGE_COUNT_MIN,
    SMALL_SHARE,
    ArchiveState,
    BaseRun,
    RunOptions,
)
from quorumlog.spark.jobs.archive.tasks import (
    FetchRange,
    MergeFiles,
    RangeOutcome,
    groups_to_merge,
)
from quorumlog.spark.jobs.log_source import LogSource, plan_ranges
from quorumlog.spark.jobs.tasks import (
    ROUND_TASKS_PER_CORE,
    PipelineError,
    Progress,
    RunTasks,
    Task,
    no_progress,
)
from quorumlog.storage.files.os_files import FileSystem

_OUTCOMES: Final = msgspec.json.Decoder(RangeOutcome)


@dataclass(frozen=True, slots=True)
class ArchiveOptions(RunOptions):
    """How to archive a group; see `archive`.

    partition_by None: as the archive is, a new one by range.
    """

    partition_by: PartitionBy | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What an archive holds, and what one run added to it.

    Indexes are None as long as it holds nothing. `lost_entries` were removed by retention first:
    all in gaps, `new_lost_entries` of them found by this run. Bytes are those of bodies, and of new
    files.
    """

    directory: str
    first_index: int | None
    last_index: int | None
    rows: int
    files: int
    lost_entries: int
    new_entries: int
    new_rows: int
    new_body_bytes: int
    new_file_bytes: int
    new_lost_entries: int
    merged_files: int


class ArchiveRun(BaseRun[Manifest, ArchiveResult]):
    """A run; see `BaseRun`."""

    _options: ArchiveOptions

    def __init__(
        self,
        source: LogSource,
        files: FileSystem,
        directory: str,
        options: ArchiveOptions,
        run_tasks: RunTasks,
        progress: Progress = no_progress,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(files, directory, options, run_tasks, progress, now_s)
        self._source = source
        self._fetched: list[ArchivedFile] = []

    # -- what is there ------------------------------------------------------------------------

    def _load(self) -> Manifest:
        """Return the manifest, made if this is the first run."""
        source, wanted = self._source, self._options.partition_by
        if not self._files.exists(manifest_path(self._directory)):
            made = Manifest(
                format_version=FORMAT_VERSION,
                archive_id=self._files.random_bytes(ID_BYTES).hex(),
                cluster=source.cluster(),
                group=source.group,
                isolation=source.isolation,
                partition_by=wanted or "range",
            )
            ArchiveState(self._files, self._directory, made).save(made)
            return made
        found = load_manifest(self._files, self._directory)
        asked = (source.cluster(), source.group, source.isolation, wanted or found.partition_by)
        has = (found.cluster, found.group, found.isolation, found.partition_by)
        if asked != has:
            names = ("cluster", "group", "isolation", "partition_by")
            differing = [
                f"{name} {there}, not {here}"
                for name, there, here in zip(names, has, asked, strict=True)
                if there != here
            ]
            raise PipelineError(
                f"{self._directory} is an archive of {'; '.join(differing)}: choose another "
                "directory, or continue as it was started"
            )
        return found

    # -- fetching -----------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        begin, end = self._source.bounds()
        if self._options.until is not None:
            end = min(end, self._options.until)
        last = self._manifest.last_index
        if last is not None:
            self._check_continues(last)
        first = begin if last is None else last + 1
        total = end - first + 1
        while first <= end:
            if begin > first:
                first = self._lost(first, min(begin - 1, end))
                continue
            first, is_removed = self._fetch_round(first, end)
            self._progress(total - (end - first + 1), total)
            if is_removed:
                begin = self._source.bounds()[0]
                if begin <= first:
                    raise PipelineError(
                        f"entry {first} of {self._source.group} was removed on one replica, but "
                        "the present leader still has it; run again"
                    )

    def _check_continues(self, last: int) -> None:
        """Raise `PipelineError` unless the log goes on where the archive ends."""
        chain_last = self._chain_last()
        committed = self._source.bounds()[1]
        if committed < last:
            raise PipelineError(
                f"{self._directory} holds entries up to {last}, but {self._source.group} ends at "
                f"{committed}: it was restored from an older state, or is another group of this "
                "name; archive it into a new directory"
            )
        with suppress(IndexRemovedError):
            found = self._source.get(last).chain_crc
            if chain_last is not None and found != chain_last:
                raise PipelineError(
                    f"{self._directory} and {self._source.group} have different histories: at "
                    f"entry {last} their chain CRCs are {chain_last:08x} and {found:08x}; archive "
                    "the group into a new directory"
                )

    def _chain_last(self) -> int | None:
        """Return the chain CRC of the last entry; None if it is in a gap."""
        files, last = self._manifest.files, self._manifest.last_index
        return files[-1].chain_last if files and files[-1].last == last else None

    def _lost(self, first: int, last: int) -> int:
        """Record that entries are lost, if that is allowed; return the index after them."""
        if self._options.fail_on_data_loss:
            raise PipelineError(
                f"entries {first} to {last} of {self._source.group} were removed by retention "
                "before they were archived; archive more often, or keep entries longer. To go on "
                "with a gap: fail_on_data_loss=False (--allow-data-loss)"
            )
        gap = Gap(first=first, last=last, day=self._state.day())
        self._state.save(msgspec.structs.replace(self._manifest, gaps=(*self._manifest.gaps, gap)))
        return last + 1

    def _fetch_round(self, first: int, end: int) -> tuple[int, bool]:
        """Archive some ranges; return the next index, and whether retention was there first."""
        options, day = self._options, self._state.day()
        within = f"day={day}/" if self._manifest.partition_by == "day" else ""
        self._files.make_directory(f"{self._directory}/{within}".rstrip("/"))
        try:
            ranges = plan_ranges(self._source, first, end, options.file_bytes, options.cores)
        except IndexRemovedError:
            return first, True
        ranges = ranges[: options.cores * ROUND_TASKS_PER_CORE]
        known = self._chain_last()
        tasks = [
            FetchRange(
                self._source,
                self._files,
                self._directory,
                within,
                day,
                begin,
                last,
                known if begin == first else None,
            )
            for begin, last in ranges
        ]
        written = self._carry_out(tasks)
        if written:
            files = (*self._manifest.files, *written)
            self._state.save(msgspec.structs.replace(self._manifest, files=files))
            self._fetched += written
            first = written[-1].last + 1
        return first, len(written) < len(tasks)

    def _carry_out(self, tasks: Sequence[Task]) -> list[ArchivedFile]:
        """Return the files that tasks wrote, up to the first range that retention removed."""
        files: list[ArchivedFile] = []
        for raw in self._run_tasks(tasks):
            file = _OUTCOMES.decode(raw).file
            if file is None:
                break
            files.append(file)
        self._state.check_is_there(files)
        return files

    # -- merging ------------------------------------------------------------------------------

    def _compact(self) -> None:
        """Merge small files; the manifest changes when all new ones are there."""
        options = self._options
        small_bytes = options.file_bytes // SMALL_SHARE
        groups = groups_to_merge(
            self._manifest.files, small_bytes, options.file_bytes, MERGE_COUNT_MIN
        )
        tasks = [MergeFiles(self._files, self._directory, group) for group in groups]
        if not tasks:
            return
        made = self._carry_out(tasks)
        gone = {file.first: file for group in groups for file in group}
        kept = [file for file in self._manifest.files if file.first not in gone]
        self._state.save(
            msgspec.structs.replace(
                self._manifest,
                files=tuple(sorted([*kept, *made], key=lambda file: file.first)),
                replaced=self._state.replaced_with(gone.values()),
            )
        )
        self._merged_files = len(gone)

    # -- the end ------------------------------------------------------------------------------

    def _result(self, before: Manifest) -> ArchiveResult:
        after = self._manifest
        new = self._fetched
        return ArchiveResult(
            directory=self._directory,
            first_index=after.first_index,
            last_index=after.last_index,
            rows=after.rows,
            files=sum(1 for file in after.files if file.path),
            lost_entries=after.lost_entries,
            new_entries=sum(file.last - file.first + 1 for file in new),
            new_rows=sum(file.rows for file in new),
            new_body_bytes=sum(file.body_bytes for file in new),
            new_file_bytes=sum(file.file_bytes for file in new),
            new_lost_entries=after.lost_entries - before.lost_entries,
            merged_files=self._merged_files,
        )
