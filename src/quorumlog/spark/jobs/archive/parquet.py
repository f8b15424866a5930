"""The Parquet files of an archive: writing one, reading one back, finding orphans."""

import hashlib
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.spark.jobs.archive.manifest import ArchivedFile, Manifest
from quorumlog.spark.jobs.output_files import TOKEN_BYTES, NewFile
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.storage.files.os_files import FileSystem

COLUMNS = ("index", "term", "channel", "body", "body_crc", "chain_crc")
ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Bytes of columns from which on a row group is complete: what reader and writer hold in memory."""
PAGE_BYTES = 4 * 1024 * 1024
"""Larger pages than usual compress faster and smaller: bodies are read whole, or not at all."""
_NUMBER_DIGITS = 20
_NAME = re.compile(r"\.?\d{20}-\d{20}-[0-9a-f]{8}\.parquet(\.tmp)?")
_DAY = re.compile(r"day=\d{4}-\d\d-\d\d")


class ArchiveFileWriter:
    """One file of rows of entries first … last; there is none if no row comes.

    Its name states the range, and every attempt at the range uses another name: a task that is
    repeated, or was thought dead, never touches a file that the manifest names.
    """

    def __init__(self, files: FileSystem, directory: str, first: int, last: int) -> None:
        self._files = files
        self._directory = directory
        token = files.random_bytes(TOKEN_BYTES).hex()
        width = _NUMBER_DIGITS
        self.name = f"{first:0{width}d}-{last:0{width}d}-{token}.parquet"
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._file: NewFile | None = None
        self._parquet: pq.ParquetWriter | None = None
        self.rows = 0
        self.body_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take more rows, in the order of their indexes."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        self.body_bytes += pc.sum(pc.binary_length(batch.column("body"))).as_py()
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._file is None:
            self._file = NewFile(self._files, self._directory, self.name)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                arrow_schema(COLUMNS),
                compression="zstd",
                compression_level=1,
                data_page_size=PAGE_BYTES,
                use_dictionary=["term", "channel"],
                column_encoding={"index": "DELTA_BINARY_PACKED"},
                write_statistics=["index", "term", "channel"],
            )
        self._parquet.write_table(table, row_group_size=table.num_rows)

    def finish(self) -> tuple[str, int, str]:
        """Publish it; return its name, size in bytes and SHA-256. Without rows: no name."""
        if self._waiting:
            self._write_row_group()
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
    files: FileSystem, directory: str, archived: ArchivedFile, columns: tuple[str, ...] = COLUMNS
) -> Iterator[pa.Table]:
    """Yield the row groups of a file, after comparing it with the manifest.

    Raises `PipelineError` when it is not the file that the manifest names.
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
    for number in range(parquet.num_row_groups):
        yield parquet.read_row_group(number, columns=list(columns))


def orphan_files(files: FileSystem, directory: str, manifest: Manifest) -> list[str]:
    """Return paths of files of failed attempts, which the manifest does not name.

    Only names that an archive gives are considered. Paths are relative to the directory.
    """
    named = {file.path for file in manifest.files} | {file.path for file in manifest.replaced}
    found = []
    for name in files.names(directory):
        if _NAME.fullmatch(name):
            found.append(name)
        elif _DAY.fullmatch(name):
            within = files.names(f"{directory}/{name}")
            found += [f"{name}/{inner}" for inner in within if _NAME.fullmatch(inner)]
    return [path for path in found if path not in named]
