"""Appends an archive to a log again: same entries, same order, once, and proved by a digest.

    replay("/archive/flights", "h:p,h:p,h:p", "flights-again")

Order allows one writer only, so it runs in this process, without a Spark session. What the group
holds already must be a prefix of the archive: a replay that was stopped goes on there. Each
block is numbered by the rows of the archive before it and appended only after the one before (a
producer session), so a block of a replay that was thought dead is appended once or not at all.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import (
    IndexRemovedError,
    ProducerFencedError,
    SequenceGapError,
    SequenceMismatchError,
    UnknownProducerError,
)
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.wording import entries_text
from quorumlog.sessions.entries import SessionEntry, crc_of
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.archive.manifest import Manifest, load_manifest
from quorumlog.spark.jobs.archive.parquet import row_groups
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.packing import EntryDigest, packed_entries, sizes_of
from quorumlog.spark.jobs.replay.target import (
    ClusterTarget,
    ReplayTarget,
    TargetReader,
    producer_id_of,
)
from quorumlog.spark.jobs.tasks import PipelineError, Progress, no_progress, read_ahead
from quorumlog.storage.files.os_files import FileSystem

BLOCK_BYTES = 1024 * 1024
"""Entries appended together, headers included; a larger entry goes alone."""
COLUMNS = ("channel", "body", "body_crc")


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. Archive and group have the same `digest` (`EntryDigest`).

    The archive has `entries`; `found_entries` of them were in the group before, and the others were
    appended. The group now ends at `last_index`.
    """

    directory: str
    group: str
    entries: int
    found_entries: int
    appended_entries: int
    last_index: int
    digest: str


def replay(
    directory: str | os.PathLike[str],
    servers: AnyAccess,
    group: str,
    *,
    allow_gaps: bool = False,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> ReplayResult:
    """Append what an archive holds to a group that is empty or holds its first entries.

    Bodies and channels are kept; indexes and terms are the group's own. With `allow_gaps` entries
    may be missing from the archive. `progress` is called with the number of entries that the group
    has and that it will have. Nobody else may append meanwhile.

    Raises `PipelineError` when the group holds something else, the archive is damaged, or the
    digests differ at the end; `RequestError` after an outage longer than `timeout_ms`.
    """
    target = ClusterTarget(servers, group, "read_uncommitted", timeout_ms=timeout_ms)
    target.check()
    root = local_path(directory)
    return Replay(OutputFileSystem(), root, target, progress, allow_gaps=allow_gaps).run()


class ArchiveRows:
    """The rows of an archive in order, taken in any number; the next row group is read ahead."""

    def __init__(self, files: FileSystem, directory: str, manifest: Manifest) -> None:
        def tables() -> Iterator[pa.Table]:
            for archived in manifest.files:
                yield from row_groups(files, directory, archived, COLUMNS)

        self._tables = read_ahead(tables())
        self._rest: pa.RecordBatch | None = None

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the next `count` rows in batches; fewer at the end."""
        while count and (batch := self.next_batch()) is not None:
            if batch.num_rows > count:
                self._rest = batch.slice(count)
                batch = batch.slice(0, count)
            count -= batch.num_rows
            yield batch

    def next_batch(self) -> pa.RecordBatch | None:
        """Return rows of the same row group, all that follow; None at the end."""
        batch, self._rest = self._rest, None
        if batch is None and (table := next(self._tables, None)) is not None:
            (batch,) = table.combine_chunks().to_batches()
        return batch


class Replay:
    """One run; `run` may be called once."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        target: ReplayTarget,
        progress: Progress = no_progress,
        *,
        allow_gaps: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._directory = directory
        self._target = target
        self._progress = progress
        self._block_bytes = block_bytes
        self._manifest = load_manifest(files, directory)
        if self._manifest.gaps and not allow_gaps:
            raise PipelineError(
                f"{directory} has gaps of {entries_text(self._manifest.lost_entries)} in all; to "
                "replay what it has: allow_gaps=True (--allow-gaps)"
            )
        self._rows = ArchiveRows(files, directory, self._manifest)
        self._reader = TargetReader(target)
        self._archive_digest = EntryDigest()
        self._log_digest = EntryDigest()
        self._cluster = target.cluster()
        self._base = 0

    def run(self) -> ReplayResult:
        """Compare, append, read back; see `replay`."""
        begin, end = self._target.bounds()
        if begin > 0:
            raise PipelineError(
                f"{self._where()} has removed entries below {begin}, so it cannot be compared with "
                "the archive; replay into a new group"
            )
        self._compare(end)
        found = self._archive_digest.entries
        self._append_the_rest()
        self._read_back()
        return ReplayResult(
            directory=self._directory,
            group=self._target.group,
            entries=self._archive_digest.entries,
            found_entries=found,
            appended_entries=self._archive_digest.entries - found,
            last_index=self._reader.next_index - 1,
            digest=self._archive_digest.hexdigest(),
        )

    def _where(self) -> str:
        return f"group {self._target.group}"

    # -- comparing ----------------------------------------------------------------------------

    def _compare(self, end: int) -> None:
        """Compare what the group holds with the first rows of the archive."""
        for theirs in self._reader.read_to(end):
            self._log_digest.update(theirs)
            start = 0
            for ours in self._rows.take(theirs.num_rows):
                self._compare_batch(ours, theirs.slice(start, ours.num_rows))
                self._archive_digest.update(ours)
                start += ours.num_rows
            if start < theirs.num_rows:
                index = theirs.column("index")[start].as_py()
                raise PipelineError(
                    f"{self._where()} holds more than {self._directory}, from entry {index} on; "
                    "replay into a new group"
                )
            self._progress(self._archive_digest.entries, self._manifest.rows)

    def _compare_batch(self, ours: pa.RecordBatch, theirs: pa.RecordBatch) -> None:
        names = ("channel", "body")
        if all(ours.column(name).equals(theirs.column(name)) for name in names):
            return
        pairs = zip(ours.select(names).to_pylist(), theirs.select(names).to_pylist(), strict=True)
        differing = next(number for number, (one, other) in enumerate(pairs) if one != other)
        index = theirs.column("index")[differing].as_py()
        raise PipelineError(
            f"{self._where()} does not hold what {self._directory} begins with: entry {index} is "
            f"not row {self._archive_digest.entries + differing} of the archive; replay into a "
            "new group"
        )

    # -- appending ----------------------------------------------------------------------------

    def _append_the_rest(self) -> None:
        self._base = self._base_found()
        while (batch := self._rows.next_batch()) is not None:
            for rows in self._cut(batch):
                self._append(rows)
                self._archive_digest.update(rows)
                self._progress(self._archive_digest.entries, self._manifest.rows)

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows that fit one block."""
        ends = np.cumsum(sizes_of(batch.column("body")) + HEADER_SIZE)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self._block_bytes, side="right"))
            stop = min(max(stop, start + 1), start + DEFAULT_LIMITS.block_entries_max - 1)
            yield batch.slice(start, stop - start)
            start = stop

    def _base_found(self) -> int:
        """Return the row that an earlier run of this replay numbered 0, else the next row."""
        newest, rows = self._reader.newest, self._reader.rows
        if newest is not None:
            base = newest.rows_before - newest.session.first_sequence
            is_newest = newest.rows_before + newest.session.count == rows
            if is_newest and newest.session.producer_id == self._producer_id(base):
                return base
        return rows

    def _producer_id(self, base: int) -> int:
        archive_id, group = self._manifest.archive_id, self._target.group
        return producer_id_of(archive_id, self._cluster, group, base)

    def _append(self, rows: pa.RecordBatch) -> None:
        """Append a block, once, after all rows before it."""
        try:
            try:
                self._append_numbered(rows)
            except UnknownProducerError:  # forgotten meanwhile, so nothing of it can come any more
                self._base = self._archive_digest.entries
                self._append_numbered(rows)
        except (ProducerFencedError, SequenceGapError, SequenceMismatchError) as error:
            raise PipelineError(
                f"another replay of {self._directory} appends to {self._where()}; let it end, or "
                f"run this one again when it has: {error}"
            ) from error

    def _append_numbered(self, rows: pa.RecordBatch) -> None:
        entries, crcs = packed_entries(rows)
        session = SessionEntry(
            producer_id=self._producer_id(self._base),
            epoch=0,
            first_sequence=self._archive_digest.entries - self._base,
            count=rows.num_rows,
            crc=crc_of(crcs.tolist()),
        )
        self._target.append(session, entries)

    # -- proving ------------------------------------------------------------------------------

    def _read_back(self) -> None:
        """Read what was appended, and raise `PipelineError` unless the group is the archive."""
        try:
            for batch in self._reader.read_to(self._target.bounds()[1]):
                self._log_digest.update(batch)
        except IndexRemovedError as error:
            raise PipelineError(
                f"retention of {self._where()} removed entries before they were read back, so "
                f"nothing is proved: {error}"
            ) from error
        archive, log = self._archive_digest, self._log_digest
        if (archive.entries, archive.hexdigest()) != (log.entries, log.hexdigest()):
            raise PipelineError(
                f"{self._where()} is not {self._directory}: {entries_text(log.entries)} with "
                f"digest "
                f"{log.hexdigest()}, not {archive.entries} with {archive.hexdigest()}; did anybody "
                "else append?"
            )
