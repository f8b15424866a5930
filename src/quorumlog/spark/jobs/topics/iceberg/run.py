"""One run of an archive in an Iceberg table: what is missing is fetched, and appended once.

Files are durable before a commit of the table names them; what no snapshot names was left by a run
that was stopped, or by an attempt of a task that Spark gave up, and is removed by the next run.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from quorumlog.spark.jobs.archive.manifest_file import FORMAT_VERSION, manifest_path
from quorumlog.spark.jobs.archive.parquet import archive_files
from quorumlog.spark.jobs.archive.state import ID_BYTES, RunOptions, locked
from quorumlog.spark.jobs.output_files import NewFile
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
SEEN_NAME: Final = "_seen"
"""A file with a hash of the names of all data files that the last run left with the table. Only if
others are there are all snapshots asked which files they name."""


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

        Without records, it keeps where partitions begin that are new, gaps, and ids of topics:
        retention, or whoever makes topics again, could change them before a later run. Markers are
        read again.
        """
        now, before = self.manifest, self._committed
        if now.files or self._known(now) != self._known(before):
            self.commit_anew()

    def _known(self, progress: TableProgress) -> tuple[object, ...]:
        return progress.gaps, progress.coverage.keys(), progress.topic_ids

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

    def run(self) -> IcebergArchiveResult:
        """Archive up to the ends of the partitions as they are now.

        Raises `PipelineError`, `StoreLockedError` while another run is under way, or what fetching
        and writing raise; what was committed until then stays.
        """
        files, directory = self._files, self._table.directory
        with locked(files, directory):
            before = self._loaded()
            state = TableState(self._table, files, before, self._now_s)
            kept = self._remove_orphans(state)
            place = RecordFiles(files, f"{directory}/{DATA}", ICEBERG_LAYOUT)
            fetch = TopicFetch(
                *(self._source, place, f"table {self._table.name}", state),
                *(self._options, self._run_tasks, self._progress),
            )
            fetch.run()
            state.commit()
            self._note_seen(kept | {file.path for file in fetch.new})
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

    def _remove_orphans(self, state: TableState) -> set[str]:
        """Remove what was written in vain: by a run that was stopped, before retention removed what
        comes first, or by an attempt of a task that Spark gave up. Return the files that stay.

        Where locks do not work, the run that wrote it may be under way still: a commit of this one
        comes first, so that the other's next commit is refused and never names a file that is gone.
        What is written after it may be a later run's, and stays.
        """
        files, data = self._files, f"{self._table.directory}/{DATA}"
        files.make_directory(data)
        found = set(archive_files(files, data))
        if not found or _hash_of(found) == self._seen():
            return found
        named = self._table.data_files()
        if found - named:
            state.commit_anew()
            named = self._table.data_files()
            for path in found - named:
                files.remove(f"{data}/{path}")
        return found & named

    def _seen(self) -> str:
        """Return the hash of the files that the last run left; nothing if it is not known."""
        path = f"{self._table.directory}/{SEEN_NAME}"
        if not self._files.exists(path):
            return ""
        file = self._files.open(path, writable=False)
        try:
            return file.read_at(file.size(), 0).decode("ascii", "replace")
        finally:
            file.close()

    def _note_seen(self, paths: Iterable[str]) -> None:
        """Note the files that are there with the table; the next run finds others by that."""
        found = _hash_of(paths)
        if found != self._seen():
            with NewFile(self._files, self._table.directory, SEEN_NAME) as file:
                file.write(found.encode())
                file.publish()

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


def _hash_of(paths: Iterable[str]) -> str:
    return sha256("\n".join(sorted(paths)).encode()).hexdigest()
