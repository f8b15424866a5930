"""One run of an archive of topics in a directory: what it lacks is fetched, small files merged.

`ArchiveState` says in which order files and manifest change.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

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
    PipelineError,
    Progress,
    RunTasks,
    no_progress,
)
from quorumlog.spark.jobs.topics.fetching import RecordFiles, TopicFetch, in_order
from quorumlog.spark.jobs.topics.manifest import (
    TopicFile,
    TopicManifest,
    load_topic_manifest,
)
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.jobs.topics.tasks import (
    MERGED,
    MergeTopicFiles,
    follows_on_the_same_day,
)
from quorumlog.storage.files.os_files import FileSystem


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

    def _fetch_all(self) -> None:
        """Fetch what is missing, round by round."""
        fetch = TopicFetch(
            self._source,
            RecordFiles(self._files, self._directory),
            self._directory,
            self._state,
            self._options,
            self._run_tasks,
            self._progress,
        )
        fetch.run()
        self._fetched = fetch.new

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
                files=in_order([*kept, *made]),
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
