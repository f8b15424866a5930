"""One run of an archive in an Iceberg table: what is missing is fetched, and appended once.

Files are durable before a commit of the table names them; what no snapshot names is left of a run
that was stopped, and removed by the next one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from quorumlog.spark.jobs.archive.manifest_file import FORMAT_VERSION, manifest_path
from quorumlog.spark.jobs.archive.parquet import archive_files
from quorumlog.spark.jobs.archive.state import ID_BYTES, RunOptions, locked
from quorumlog.spark.jobs.tasks import PipelineError, Progress, RunTasks
from quorumlog.spark.jobs.topics.fetching import RecordFiles, TopicFetch
from quorumlog.spark.jobs.topics.iceberg.claim import DATA, ClaimedDirectory
from quorumlog.spark.jobs.topics.iceberg.layout import ICEBERG_LAYOUT
from quorumlog.spark.jobs.topics.iceberg.progress import TableProgress, encode_progress
from quorumlog.spark.jobs.topics.iceberg.table import ArchiveTable
from quorumlog.spark.jobs.topics.manifest import TopicFile
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.storage.files.os_files import FileSystem

COMMIT_BYTES: Final = 8 << 30
"""Bytes of keys and values, without headers, after which a run commits what it has; a smaller run
makes one snapshot of Iceberg."""
RUN_NAME: Final = "_run"
"""An empty file that is there during a run, and after one that left files: it was stopped, or some
of what its tasks wrote is no part of the archive."""


@dataclass(frozen=True, slots=True)
class IcebergArchiveResult:
    """What a table was given by its archive until now, and what one run did.

    `snapshots` of Iceberg are those that the run made; there is none if it found nothing new. Lost
    offsets were removed by retention first, the new ones are those found by this run. Bytes are
    those of keys and values, and of new files.
    """

    table: str
    directory: str
    topics: int
    partitions: int
    rows: int
    lost_offsets: int
    snapshots: int
    new_rows: int
    new_files: int
    new_body_bytes: int
    new_file_bytes: int
    new_lost_offsets: int


class TableState:
    """The progress of an archive during a run: what is in the table, and what will be.

    `now_s`: seconds since 1970.
    """

    def __init__(
        self,
        table: ArchiveTable,
        files: FileSystem,
        progress: TableProgress,
        now_s: Callable[[], float],
    ) -> None:
        self._table = table
        self._files = files
        self._committed = progress
        self._now_s = now_s
        self.manifest = progress
        self.snapshots = 0

    def save(self, manifest: TableProgress) -> None:
        """Keep what was fetched, and commit it once that is enough.

        Raises `PipelineError` if the table has no room for it, before more is fetched.
        """
        encode_progress(manifest)
        self.manifest = manifest
        if sum(file.body_bytes for file in manifest.files) >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Append what was fetched to the table.

        Without records, it keeps where partitions begin that are new, and gaps: retention could
        move both before a later run. Markers are read again.
        """
        now, before = self.manifest, self._committed
        if now.files or now.gaps != before.gaps or now.coverage.keys() != before.coverage.keys():
            self.commit_anew()

    def commit_anew(self) -> None:
        """Commit even if there is nothing new: what other runs commit from now on is refused."""
        self._committed = self._table.append(self.manifest, self._committed)
        self.manifest = self._committed
        self.snapshots += 1

    def check_is_there(self, parts: Sequence[TopicFile]) -> None:
        """Raise `PipelineError` unless the driver sees what tasks wrote."""
        for part in parts:
            path = f"{self._table.directory}/{DATA}/{part.path}"
            if not self._files.exists(path):
                raise PipelineError(
                    f"a task wrote {path}, but it is not there: driver and executors must see the "
                    "same directory under this path"
                )

    def day(self) -> str:
        """Return the present day (UTC)."""
        return datetime.fromtimestamp(self._now_s(), UTC).date().isoformat()


class IcebergArchiveRun:
    """A run; `run` may be called once. `now_s`: seconds since 1970."""

    def __init__(
        self,
        source: TopicSource,
        files: FileSystem,
        table: ArchiveTable,
        options: RunOptions,
        run_tasks: RunTasks,
        progress: Progress,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._files = files
        self._table = table
        self._options = options
        self._run_tasks = run_tasks
        self._progress = progress
        self._now_s = now_s
        self._running = f"{table.directory}/{RUN_NAME}"

    def run(self) -> IcebergArchiveResult:
        """Archive up to the ends of the partitions as they are now.

        Raises `PipelineError`, `StoreLockedError` while another run is under way, or what fetching
        and writing raise; what was committed until then stays.
        """
        files, directory = self._files, self._table.directory
        with locked(files, directory):
            before = self._loaded()
            state = TableState(self._table, files, before, self._now_s)
            self._remove_orphans(state)
            place = RecordFiles(files, f"{directory}/{DATA}", ICEBERG_LAYOUT)
            fetch = TopicFetch(
                *(self._source, place, f"table {self._table.name}", state),
                *(self._options, self._run_tasks, self._progress),
            )
            fetch.run()
            state.commit()
            if not fetch.has_dropped:  # otherwise the next run removes what was
                files.remove(self._running)
        return self._result(before, state, fetch.new)

    def _loaded(self) -> TableProgress:
        """Return how far the archive has come; the table is made if this is the first run."""
        cluster, isolation = self._source.brokers().cluster_id(), self._source.isolation
        found, directory = self._table.load(), self._table.directory
        claimed = ClaimedDirectory(self._files, directory)
        if found is None:
            if self._files.exists(manifest_path(directory)):
                raise PipelineError(
                    f"{directory} is an archive of Parquet files with a manifest: choose another "
                    "directory for a table"
                )
            claimed.check_is_free(self._table.name)
            made = TableProgress(
                format_version=FORMAT_VERSION,
                archive_id=self._files.random_bytes(ID_BYTES).hex(),
                cluster=cluster,
                isolation=isolation,
            )
            found = self._table.create(made)
        claimed.claim(found.archive_id, self._table.name)
        if (found.cluster, found.isolation) != (cluster, isolation):
            raise PipelineError(
                f"table {self._table.name} is an archive of topics of cluster {found.cluster}, "
                f"{found.isolation}, not of {cluster}, {isolation}: archive into a new "
                "table in a new directory, or continue as it was started"
            )
        return found

    def _remove_orphans(self, state: TableState) -> None:
        """Remove what a run that was stopped wrote in vain, and say that this one has begun.

        Where locks do not work, that run may be under way still: a commit of this one comes first,
        so that the other's next commit is refused and never names a file that is gone. What is
        written after it may be a later run's, and stays.
        """
        files, data = self._files, f"{self._table.directory}/{DATA}"
        files.make_directory(data)
        if files.exists(self._running):
            found = set(archive_files(files, data))
            if found - self._table.data_files():
                state.commit_anew()
                for path in found - self._table.data_files():
                    files.remove(f"{data}/{path}")
        files.open(self._running, create=True).close()
        files.sync_directory(self._table.directory)

    def _result(
        self, before: TableProgress, state: TableState, new: Sequence[TopicFile]
    ) -> IcebergArchiveResult:
        after = state.manifest
        return IcebergArchiveResult(
            table=self._table.name,
            directory=self._table.directory,
            topics=len({one.topic for one in after.partitions}),
            partitions=len(after.partitions),
            rows=sum(one.rows for one in after.partitions),
            lost_offsets=after.lost_offsets,
            snapshots=state.snapshots,
            new_rows=sum(file.rows for file in new),
            new_files=len(new),
            new_body_bytes=sum(file.body_bytes for file in new),
            new_file_bytes=sum(file.file_bytes for file in new),
            new_lost_offsets=after.lost_offsets - before.lost_offsets,
        )
