"""A group's entries as JSON lines or CSV, in one file or in several.

export(spark, "h:p,h:p,h:p", "flights", "/tmp/flights.jsonl", single_file=True)
"""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from quorumlog.client.results import Isolation
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    UnexpectedArgumentError,
)
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.export.output import ExportOutput
from quorumlog.spark.jobs.export.rows import (
    BASE64,
    COLUMNS,
    SUFFIX,
    WRITERS,
    Bodies,
    Format,
    csv_header,
    rows_of,
)
from quorumlog.spark.jobs.history_check import HistoryCheck
from quorumlog.spark.jobs.log_source import TIMEOUT_MS, ClusterSource, LogSource, plan_ranges
from quorumlog.spark.jobs.output_files import local_path
from quorumlog.spark.jobs.tasks import (
    ROUND_TASKS_PER_CORE,
    Progress,
    RunTasks,
    cores_of,
    no_progress,
    run_tasks,
)
from quorumlog.spark.source.arrow import decode_block

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024 * 1024
"""Bytes of entries that go into one file."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported: entries first_index … last_index (None: there are none), as `rows`.

    `base64_rows` of them have bodies that could not be, or were not to be, written as text.
    """

    path: str
    group: str
    format: str
    bodies: str
    first_index: int | None
    last_index: int | None
    rows: int
    base64_rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to export; see `export`."""

    format: Format = "json"
    bodies: Bodies = "text"
    first: int | None = None
    last: int | None = None
    single_file: bool = False
    overwrite: bool = False
    file_bytes: int = FILE_BYTES
    cores: int = 1

    def check(self) -> None:
        """Raise `UnexpectedArgumentError` for values that do not exist or go together."""
        if self.format not in SUFFIX:
            raise UnexpectedArgumentError(f"format {self.format!r} is neither json nor csv")
        if self.bodies not in {"text", "base64", "json"}:
            raise UnexpectedArgumentError(f"bodies {self.bodies!r} is not text, base64 or json")
        if self.format == "csv" and self.bodies == "json":
            raise UnexpectedArgumentError("bodies 'json' goes with format 'json' only")


def export(  # noqa: PLR0913  (named options of a public entry point)
    spark: "SparkSession",
    servers: AnyAccess,
    group: str,
    path: str | os.PathLike[str],
    format: Format = "json",  # noqa: A002  (Spark's word)
    *,
    bodies: Bodies = "text",
    first: int | None = None,
    last: int | None = None,
    single_file: bool = False,
    overwrite: bool = False,
    isolation: Isolation = "read_committed",
    leader_only: bool = True,
    file_bytes: int = FILE_BYTES,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> ExportResult:
    """Export entries `first` … `last` (None: from the first kept, to the end as it is now).

    `path` becomes a directory of files in the order of their names, of about `file_bytes` of
    entries each, or one file; driver and executors must see it under the same name. It appears
    whole or not at all. An existing path is an error, unless `overwrite`: then a file, or a
    directory that an export made, is replaced. Columns are index, term, channel, body,
    body_encoding; for `bodies` see `encoded_body`. `progress` is called with the entries
    done and all.

    Raises `UnexpectedArgumentError`, `IndexRemovedError` or `IndexOutOfRangeError` before anything
    is written, `PipelineError` when the path is taken or a task fails.
    """
    options = ExportOptions(
        format=format,
        bodies=bodies,
        first=first,
        last=last,
        single_file=single_file,
        overwrite=overwrite,
        file_bytes=file_bytes,
        cores=cores_of(spark),
    )
    options.check()
    source = ClusterSource(servers, group, isolation, leader_only, timeout_ms)
    source.check()
    return export_with(source, path, options, partial(run_tasks, spark), progress)


def export_with(
    source: LogSource,
    path: str | os.PathLike[str],
    options: ExportOptions,
    carry_out: RunTasks,
    progress: Progress = no_progress,
) -> ExportResult:
    """Export from any source, with any function that runs tasks; see `export`."""
    options.check()
    first, last = _range(source, options)
    target = Path(local_path(path))
    with ExportOutput(
        target, single_file=options.single_file, overwrite=options.overwrite
    ) as output:
        parts = _write_parts(
            source, str(output.directory), first, last, options, carry_out, progress
        )
        result = ExportResult(
            path=str(target),
            group=source.group,
            format=options.format,
            bodies=options.bodies,
            first_index=first if first <= last else None,
            last_index=last if first <= last else None,
            rows=sum(part.rows for part in parts),
            base64_rows=sum(part.base64_rows for part in parts),
            files=1 if options.single_file else len(parts),
            bytes=sum(part.bytes for part in parts),
        )
        names = [part.name for part in parts]
        if not options.single_file:
            output.publish_directory(names, msgspec.json.encode(result))
            return result
        header = csv_header() if options.format == "csv" else b""
        size = output.publish_file(header, names)
        return replace(result, bytes=size)


def _range(source: LogSource, options: ExportOptions) -> tuple[int, int]:
    """Return first and last index to export. Raises unless the log has them all."""
    begin, end = source.bounds()
    available = f"{source.group} has {begin} to {end}"
    first = begin if options.first is None else options.first
    last = end if options.last is None else options.last
    if first < begin:
        raise IndexRemovedError(f"first index {first} is no longer kept: {available}")
    if last < first - 1:
        raise UnexpectedArgumentError(f"last index {last} is below first index {first}")
    if last > end:
        raise IndexOutOfRangeError(f"last index {last} is beyond the end: {available}")
    return first, last


def _write_parts(
    source: LogSource,
    directory: str,
    first: int,
    last: int,
    options: ExportOptions,
    carry_out: RunTasks,
    progress: Progress,
) -> list["ExportedPart"]:
    """Write one file a range, round by round; return those that have rows, in order."""
    if first > last:
        return []
    ranges = plan_ranges(source, first, last, options.file_bytes, options.cores)
    round_size = options.cores * ROUND_TASKS_PER_CORE
    parts: list[ExportedPart] = []
    for start in range(0, len(ranges), round_size):
        of_round = ranges[start : start + round_size]
        tasks = [ExportRange(source, directory, *one, options) for one in of_round]
        parts += [_PARTS.decode(raw) for raw in carry_out(tasks)]
        progress(of_round[-1][1] - first + 1, last - first + 1)
    return [part for part in parts if part.rows]


class ExportedPart(msgspec.Struct, frozen=True):
    """One file of an export."""

    name: str
    rows: int
    base64_rows: int
    bytes: int


_PARTS: Final = msgspec.json.Decoder(ExportedPart)


@dataclass(frozen=True, slots=True)
class ExportRange:
    """Write entries first … last as one file into `directory`."""

    source: LogSource
    directory: str
    first: int
    last: int
    options: ExportOptions

    def __call__(self) -> bytes:
        """Return an `ExportedPart`. Raises what fetching and writing raise."""
        options = self.options
        name = f"part-{self.first:020d}-{self.last:020d}.{SUFFIX[options.format]}"
        path = f"{self.directory}/{name}"
        temporary = f"{path}.{os.urandom(4).hex()}"  # a task may run twice
        history = HistoryCheck(self.first, None)
        count = base64_count = 0
        with open(temporary, "wb") as file:
            if options.format == "csv" and not options.single_file:
                file.write(csv_header())
            for fetched in self.source.blocks(self.first, self.last):
                block, words = history.take(fetched)
                for batch in decode_block(block, words, COLUMNS, rejected=fetched.rejected):
                    rows = rows_of(batch, options.bodies)
                    file.write(WRITERS[options.format](rows))
                    count += len(rows)
                    base64_count += sum(row.body_encoding == BASE64 for row in rows)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if count:
            os.replace(temporary, path)
        else:
            os.unlink(temporary)
        return msgspec.json.encode(ExportedPart(name, count, base64_count, size))
