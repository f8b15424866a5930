"""The Parquet files of an archive: writing one, reading one back, finding orphans."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.spark.jobs.archive.manifest_file import BaseManifest, ParquetPart
from quorumlog.spark.jobs.output_files import TOKEN_BYTES, NewFile
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.storage.files.os_files import FileSystem

COLUMNS = ("index", "term", "channel", "body", "body_crc", "chain_crc")
ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Bytes of columns from which on a row group is complete: what reader and writer hold in memory."""
PAGE_BYTES = 4 * 1024 * 1024
"""Larger pages than usual compress faster and smaller: bodies are read whole, or not at all."""
ROWS_MAX = 65_536
"""Rows of a piece of a row group at most."""
_NUMBER_DIGITS = 20
_NAME = re.compile(r"\.?\d{5,20}-\d{20}-[0-9a-f]{8}\.parquet(\.tmp)?")
_DIRECTORY = re.compile(r"(topic|day)=[\w.-]+")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an archive's files: those that are counted as `body_bytes`, and encodings.

    `number` is the column by which rows are in order, `repeated` are those with few values,
    `searched` those of which row groups say the least and the most. `page_bytes`: of a column's
    page, the least that is unpacked at a time.
    """

    schema: pa.Schema
    bodies: tuple[str, ...]
    number: str
    repeated: tuple[str, ...]
    searched: tuple[str, ...]
    page_bytes: int = PAGE_BYTES


GROUP_LAYOUT = Layout(
    schema=arrow_schema(COLUMNS),
    bodies=("body",),
    number="index",
    repeated=("term", "channel"),
    searched=("index", "term", "channel"),
)


class ArchiveFileWriter:
    """One file of rows, in order; there is none if no row comes.

    `stem` is the beginning of its name. Every attempt at the same rows uses another name: a task
    that is repeated, or was thought dead, never touches a file that the manifest names.
    """

    def __init__(self, files: FileSystem, directory: str, stem: str, layout: Layout) -> None:
        self._files = files
        self._directory = directory
        self._layout = layout
        self.name = f"{stem}-{files.random_bytes(TOKEN_BYTES).hex()}.parquet"
        self._waiting: list[pa.RecordBatch] = []
        self._file: NewFile | None = None
        self._parquet: pq.ParquetWriter | None = None
        self.waiting_bytes = 0
        self.rows = 0
        self.body_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take more rows, in their order."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        self.body_bytes += sum(
            pc.sum(pc.binary_length(batch.column(name))).as_py() or 0
            for name in self._layout.bodies
        )
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.write_row_group()

    def write_row_group(self) -> None:
        """Write the rows that wait for more, at least one."""
        table = pa.Table.from_batches(self._waiting).cast(self._layout.schema)
        self._waiting, self.waiting_bytes = [], 0
        if self._file is None:
            self._file = NewFile(self._files, self._directory, self.name)
        if self._parquet is None:
            layout = self._layout
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                layout.schema,
                compression="zstd",
                compression_level=1,
                data_page_size=layout.page_bytes,
                use_dictionary=list(layout.repeated),
                column_encoding={layout.number: "DELTA_BINARY_PACKED"},
                write_statistics=list(layout.searched),
            )
        self._parquet.write_table(table, row_group_size=table.num_rows)

    def finish(self) -> tuple[str, int, str]:
        """Publish it; return its name, size in bytes and SHA-256. Without rows: no name."""
        if self._waiting:
            self.write_row_group()
        if self._file is None or self._parquet is None:
            return "", 0, ""
        with self._file:
            self._parquet.close()
            self._file.publish()
        return self.name, self._file.size, self._file.sha256

    def abandon(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with self._file:
                pass
        if self._parquet is not None:
            self._parquet.close()


def row_groups(
    files: FileSystem,
    directory: str,
    archived: ParquetPart,
    columns: tuple[str, ...] = COLUMNS,
    *,
    bytes_max: int = ROW_GROUP_BYTES,
) -> Iterator[pa.Table]:
    """Yield the row groups of a file, after comparing it with the manifest.

    They are divided if their rows have more than about `bytes_max` bytes of bodies. Raises
    `PipelineError` when it is not the file that the manifest names.
    """
    if not archived.path:
        return
    path = f"{directory}/{archived.path}"
    if not files.exists(path):
        raise PipelineError(f"{path} is missing: put it back from a copy of the archive")
    file = files.open(path, writable=False)
    try:
        data = file.map()
    finally:
        file.close()
    if len(data) != archived.file_bytes or hashlib.sha256(data).hexdigest() != archived.sha256:
        raise PipelineError(
            f"{path} is damaged: it does not fit the manifest's size and SHA-256; put it back from "
            "a copy of the archive"
        )
    parquet = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
    if bytes_max >= ROW_GROUP_BYTES:
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, columns=list(columns))
        return
    rows = max(1, bytes_max * parquet.metadata.num_rows // max(1, archived.body_bytes))
    for batch in parquet.iter_batches(min(rows, ROWS_MAX), columns=list(columns)):
        yield pa.Table.from_batches([batch])


def stem_of(first: int, last: int) -> str:
    """Return the beginning of the name of a file with the entries first … last."""
    return f"{first:0{_NUMBER_DIGITS}d}-{last:0{_NUMBER_DIGITS}d}"


def merge_into(
    writer: ArchiveFileWriter,
    files: FileSystem,
    directory: str,
    merged: Sequence[ParquetPart],
    columns: tuple[str, ...] = COLUMNS,
) -> tuple[str, int, str]:
    """Write the rows of files as one file, in order; return what `ArchiveFileWriter.finish` does.

    Raises `PipelineError` when a file is damaged.
    """
    try:
        for part in merged:
            for table in row_groups(files, directory, part, columns):
                for batch in table.to_batches():
                    writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def orphan_files(files: FileSystem, directory: str, manifest: BaseManifest) -> list[str]:
    """Return paths of files of failed attempts, which the manifest does not name."""
    named = {part.path for part in manifest.parts_named()}
    named |= {file.path for file in manifest.replaced}
    return [path for path in archive_files(files, directory) if path not in named]


def archive_files(files: FileSystem, directory: str, within: str = "") -> Iterator[str]:
    """Yield all files of an archive that lie in its directory or below, or `within` it.

    Only names that an archive gives are considered. Paths are relative to the directory.
    """
    for name in files.names(f"{directory}/{within}".rstrip("/")):
        if _NAME.fullmatch(name):
            yield within + name
        elif _DIRECTORY.fullmatch(name):
            yield from archive_files(files, directory, f"{within}{name}/")
