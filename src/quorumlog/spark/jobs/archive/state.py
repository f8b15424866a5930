"""What all archives do alike: change manifest and files so that each row is there exactly once.

The order of steps is what makes it so: files are durable under names of their own before the
manifest names them, the manifest changes by one rename, and only what it does not name any more is
removed. A run that is stopped at any point leaves a manifest that is true, and files that the next
run removes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from quorumlog.spark.jobs.archive.manifest_file import (
    Kept,
    ParquetPart,
    Replaced,
    save_manifest,
)
from quorumlog.spark.jobs.archive.parquet import orphan_files
from quorumlog.spark.jobs.tasks import PipelineError, Progress, RunTasks, no_progress
from quorumlog.storage.files.os_files import FileSystem

FILE_BYTES = 128 * 1024 * 1024
"""Bytes of bodies, about, that go into one file, before compression."""
FILE_BYTES_MIN = 4096
SMALL_SHARE = 16
"""Files with less than this part of it are small, and merged with their neighbours. Half of what
`plan_ranges` cuts at the smallest: what has just been fetched is not written again."""
MERGE_COUNT_MIN = 8
"""This number of small files are merged although they stay small together."""
KEEP_REPLACED_S = 3600
"""Files that were merged into others stay this long, for jobs that are reading them."""
LOCK_NAME = "_lock"
ID_BYTES = 8

Part = TypeVar("Part", bound=ParquetPart)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run archives; `cores` is how many tasks run at a time."""

    fail_on_data_loss: bool = True
    compact: bool = True
    file_bytes: int = FILE_BYTES
    cores: int = 1
    keep_replaced_s: int = KEEP_REPLACED_S


@contextmanager
def locked(files: FileSystem, directory: str) -> Iterator[None]:
    """Make a directory if need be, and hold it for one run.

    Raises `StoreLockedError` while another run is under way.
    """
    files.make_directory(directory)
    lock = files.lock(f"{directory}/{LOCK_NAME}")
    try:
        yield
    finally:
        lock.release()


class ArchiveState(Generic[Kept]):
    """The manifest of an archive and its files during a run. `now_s`: seconds since 1970.

    `manifest` is what is durable; an archive that begins is saved at once.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        manifest: Kept,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._directory = directory
        self._now_s = now_s
        self.manifest = manifest

    def save(self, manifest: Kept) -> None:
        """Put a manifest in the place of the one before."""
        save_manifest(self._files, self._directory, manifest)
        self.manifest = manifest

    def remove_orphans(self, keep_replaced_s: int) -> None:
        """Remove what the manifest does not name, and what was replaced long enough ago."""
        now = int(self._now_s())
        replaced = self.manifest.replaced
        kept = tuple(file for file in replaced if file.at_s + keep_replaced_s > now)
        if kept != replaced:
            self.save(msgspec.structs.replace(self.manifest, replaced=kept))
        for path in orphan_files(self._files, self._directory, self.manifest):
            self._files.remove(f"{self._directory}/{path}")

    def check_is_whole(self) -> None:
        """Raise `PipelineError` unless all files are there: a copy may lack some.

        What is in them is left to audits.
        """
        for path in self._missing(self.manifest.parts_named()):
            raise PipelineError(
                f"{path} is missing; put it back from a copy of the archive, or begin another "
                "archive elsewhere"
            )

    def check_is_there(self, parts: Sequence[ParquetPart]) -> None:
        """Raise `PipelineError` unless the driver sees what tasks wrote."""
        for path in self._missing(parts):
            raise PipelineError(
                f"a task wrote {path}, but it is not there: driver and executors must see the "
                "same directory under this path"
            )

    def _missing(self, parts: Sequence[ParquetPart]) -> Iterator[str]:
        """Yield where files are missing."""
        paths = (f"{self._directory}/{part.path}" for part in parts if part.path)
        return (path for path in paths if not self._files.exists(path))

    def replaced_with(self, gone: Collection[ParquetPart]) -> tuple[Replaced, ...]:
        """Return `replaced` of the manifest once these files have been merged into others."""
        at_s = int(self._now_s())
        more = (Replaced(path=part.path, at_s=at_s) for part in gone if part.path)
        return (*self.manifest.replaced, *more)

    def day(self) -> str:
        """Return the present day (UTC)."""
        return datetime.fromtimestamp(self._now_s(), UTC).date().isoformat()


class BaseRun(ABC, Generic[Kept, Result]):
    """One run of an archive; `run` may be called once. `now_s`: seconds since 1970."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        options: RunOptions,
        run_tasks: RunTasks,
        progress: Progress = no_progress,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._directory = directory
        self._options = options
        self._run_tasks = run_tasks
        self._progress = progress
        self._now_s = now_s
        self._merged_files = 0

    def run(self) -> Result:
        """Archive up to the end as it is now.

        Raises `PipelineError`, `StoreLockedError` while another run is under way, or what fetching
        and writing raise; what was archived until then stays.
        """
        with locked(self._files, self._directory):
            before = self._load()
            self._state = ArchiveState(self._files, self._directory, before, self._now_s)
            self._state.check_is_whole()
            self._state.remove_orphans(self._options.keep_replaced_s)
            self._fetch_all()
            if self._options.compact:
                self._compact()
            self._state.remove_orphans(self._options.keep_replaced_s)
            return self._result(before)

    @property
    def _manifest(self) -> Kept:
        return self._state.manifest

    @abstractmethod
    def _load(self) -> Kept:
        """Return the manifest, made if this is the first run."""

    @abstractmethod
    def _fetch_all(self) -> None:
        """Fetch what is missing, round by round."""

    @abstractmethod
    def _compact(self) -> None:
        """Merge small files; the manifest changes when all new ones are there."""

    @abstractmethod
    def _result(self, before: Kept) -> Result:
        """Return what the archive holds, and what was added to what it was before."""


def runs_to_merge(
    parts: Sequence[Part],
    are_neighbours: Callable[[list[Part], Part], bool],
    small_bytes: int,
    bytes_max: int,
    count_min: int = MERGE_COUNT_MIN,
) -> list[tuple[Part, ...]]:
    """Return runs of neighbouring small files that are worth one larger file each.

    Small are those below `small_bytes` of bodies. A run has at most `bytes_max` of them, and is
    worth it when it has `count_min` files or is not small any more. `are_neighbours`: whether a
    file may join the files before it.
    """
    runs: list[list[Part]] = []
    for part in parts:
        run = runs[-1] if runs else None
        joins = (
            run is not None
            and max(part.body_bytes, run[-1].body_bytes) < small_bytes
            and are_neighbours(run, part)
            and sum(one.body_bytes for one in run) + part.body_bytes <= bytes_max
        )
        if joins and run is not None:
            run.append(part)
        else:
            runs.append([part])
    return [
        tuple(run)
        for run in runs
        if len(run) >= count_min
        or (len(run) > 1 and sum(one.body_bytes for one in run) >= small_bytes)
    ]
