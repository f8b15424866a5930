"""What tasks do for an archive: fetch a range into a file, or merge small files into one."""

from dataclasses import dataclass

import msgspec

from quorumlog.model.errors import IndexRemovedError, check
from quorumlog.spark.jobs.archive.manifest import ArchivedFile
from quorumlog.spark.jobs.archive.parquet import (
    COLUMNS,
    GROUP_LAYOUT,
    ArchiveFileWriter,
    merge_into,
    stem_of,
)
from quorumlog.spark.jobs.archive.state import runs_to_merge
from quorumlog.spark.jobs.history_check import HistoryCheck
from quorumlog.spark.jobs.log_source import LogSource
from quorumlog.spark.source.arrow import decode_block
from quorumlog.storage.files.os_files import FileSystem


class RangeOutcome(msgspec.Struct, frozen=True):
    """The result of a range: a file, or None if retention removed entries first."""

    file: ArchivedFile | None


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Fetch entries first … last and write their rows as one file below `directory`.

    `within` is the directory of the file, relative to it ("" or "day=…/"). `chain_before` is the
    chain CRC of entry first - 1 if it is known already.
    """

    source: LogSource
    files: FileSystem
    directory: str
    within: str
    day: str
    first: int
    last: int
    chain_before: int | None = None

    def __call__(self) -> bytes:
        """Return a `RangeOutcome`. Raises what fetching and writing raise."""
        directory = f"{self.directory}/{self.within}".rstrip("/")
        stem = stem_of(self.first, self.last)
        writer = ArchiveFileWriter(self.files, directory, stem, GROUP_LAYOUT)
        try:
            file = self._write(writer)
        except IndexRemovedError:
            writer.abandon()
            file = None
        except BaseException:
            writer.abandon()
            raise
        return msgspec.json.encode(RangeOutcome(file))

    def _write(self, writer: ArchiveFileWriter) -> ArchivedFile:
        chain_before = self._chain_before()
        history = HistoryCheck(self.first, chain_before)
        for fetched in self.source.blocks(self.first, self.last):
            block, words = history.take(fetched)
            for batch in decode_block(block, words, COLUMNS, rejected=fetched.rejected):
                writer.write(batch)
        check(history.index == self.last + 1, "all of a range is read", history.index, self.last)
        first_term, last_term = history.terms or (0, 0)
        name, size, sha256 = writer.finish()
        return ArchivedFile(
            path=self.within + name if name else "",
            first=self.first,
            last=self.last,
            rows=writer.rows,
            body_bytes=writer.body_bytes,
            file_bytes=size,
            sha256=sha256,
            first_term=first_term,
            last_term=last_term,
            chain_before=chain_before,
            chain_last=history.chain_crc or 0,
            day=self.day,
        )

    def _chain_before(self) -> int | None:
        if self.first == 0:
            return 0
        if self.chain_before is not None:
            return self.chain_before
        try:
            return self.source.get(self.first - 1).chain_crc
        except IndexRemovedError:
            return None


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """Write the rows of neighbouring files as one file, in order. The old ones stay."""

    files: FileSystem
    directory: str
    merged: tuple[ArchivedFile, ...]

    def __call__(self) -> bytes:
        """Return a `RangeOutcome`. Raises `PipelineError` when a file is damaged."""
        first, last = self.merged[0], self.merged[-1]
        within = next((_within(file.path) for file in self.merged if file.path), "")
        directory = f"{self.directory}/{within}".rstrip("/")
        stem = stem_of(first.first, last.last)
        writer = ArchiveFileWriter(self.files, directory, stem, GROUP_LAYOUT)
        name, size, sha256 = merge_into(writer, self.files, self.directory, self.merged)
        file = ArchivedFile(
            path=within + name if name else "",
            first=first.first,
            last=last.last,
            rows=writer.rows,
            body_bytes=writer.body_bytes,
            file_bytes=size,
            sha256=sha256,
            first_term=first.first_term,
            last_term=last.last_term,
            chain_before=first.chain_before,
            chain_last=last.chain_last,
            day=last.day,
        )
        return msgspec.json.encode(RangeOutcome(file))


def _within(path: str) -> str:
    """Return the directory part of a relative path, with its slash, or nothing."""
    head, slash, _ = path.rpartition("/")
    return head + slash


def groups_to_merge(
    files: tuple[ArchivedFile, ...], small_bytes: int, bytes_max: int, count_min: int
) -> list[tuple[ArchivedFile, ...]]:
    """Return runs of neighbouring small files; see `runs_to_merge`.

    Files in different directories, and those with a gap between them, are no neighbours.
    """
    return runs_to_merge(files, _are_neighbours, small_bytes, bytes_max, count_min)


def _are_neighbours(run: list[ArchivedFile], file: ArchivedFile) -> bool:
    """Whether a file follows a run, and lies where that lies; one without rows lies anywhere."""
    paths = [part.path for part in (*run, file) if part.path]
    return file.first == run[-1].last + 1 and len({_within(path) for path in paths}) <= 1
