"""A group's log as Parquet files, each entry exactly once, and a DataFrame of them.

    archive(spark, "h:p,h:p,h:p", "flights", "/archive/flights")
    read_archive(spark, "/archive/flights").where("day = '2026-03-01'")

A run fetches what is missing, in tasks that each write a file of their own, and can be stopped at
any point and started again. What the archive holds is in its manifest (`archive_manifest`).
"""

import os
import re
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, StructField, StructType

from quorumlog.client.results import Isolation
from quorumlog.model.errors import ConfigError
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.archive.manifest import PartitionBy, load_manifest
from quorumlog.spark.jobs.archive.parquet import COLUMNS
from quorumlog.spark.jobs.archive.run import ArchiveOptions, ArchiveResult, ArchiveRun
from quorumlog.spark.jobs.archive.state import FILE_BYTES, FILE_BYTES_MIN, KEEP_REPLACED_S
from quorumlog.spark.jobs.log_source import TIMEOUT_MS, ClusterSource
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.tasks import Progress, cores_of, no_progress, run_tasks
from quorumlog.spark.source.schema import default_schema

_GLOB = re.compile(r"([\\{}\[\]*?])")


def archive(  # noqa: PLR0913  (named options of a public entry point)
    spark: SparkSession,
    servers: AnyAccess,
    group: str,
    directory: str | os.PathLike[str],
    *,
    partition_by: PartitionBy | None = None,
    until: int | None = None,
    isolation: Isolation = "read_committed",
    leader_only: bool = True,
    fail_on_data_loss: bool = True,
    compact: bool = True,
    file_bytes: int = FILE_BYTES,
    keep_replaced_s: int = KEEP_REPLACED_S,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> ArchiveResult:
    """Archive a group's entries up to its end as it is now, or up to index `until`.

    `directory` must be seen by driver and executors under the same path. `partition_by`: "day" puts
    files into `day=YYYY-MM-DD` (UTC, when they were archived), "range" names them by their indexes
    only; an archive keeps the choice of its first run. A file has about `file_bytes` of entries
    before compression; with `compact`, neighbouring small files are merged, and a run that comes
    `keep_replaced_s` later removes the old ones. With `leader_only=False` any replica is read.
    Entries that retention removed first are an error or, with `fail_on_data_loss=False`, a gap in
    the manifest. Outages of up to `timeout_ms` are waited for; `progress` is called after each
    round with the number of entries done and of all.

    Raises `PipelineError` when the directory holds something else or a task fails, `RequestError`
    when no server answers, `StorageError` when files cannot be written, `StoreLockedError` while
    another run is under way.
    """
    if file_bytes < FILE_BYTES_MIN:
        raise ConfigError(f"file_bytes {file_bytes} is below {FILE_BYTES_MIN}")
    source = ClusterSource(servers, group, isolation, leader_only, timeout_ms)
    source.check()
    options = ArchiveOptions(
        partition_by=partition_by,
        until=until,
        fail_on_data_loss=fail_on_data_loss,
        compact=compact,
        file_bytes=file_bytes,
        cores=cores_of(spark),
        keep_replaced_s=keep_replaced_s,
    )
    return ArchiveRun(
        source,
        OutputFileSystem(),
        local_path(directory),
        options,
        partial(run_tasks, spark),
        progress,
    ).run()


def read_archive(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    first: int | None = None,
    last: int | None = None,
) -> DataFrame:
    """Return the entries of an archive, those from index `first` to `last` if they are given.

    Exactly the files that the manifest names now are read, of them those that hold such entries.
    Columns: index, term, channel, body, body_crc, chain_crc; with archives by day also `day`.
    Rows come in no particular order. Raises `PipelineError` when there is no archive.
    """
    root = local_path(directory)
    manifest = load_manifest(OutputFileSystem(), root)
    paths = [
        file.path
        for file in manifest.files
        if file.path
        and (first is None or file.last >= first)
        and (last is None or file.first <= last)
    ]
    known = {field.name: field for field in default_schema(include_headers=True).fields}
    fields = [known[name] for name in COLUMNS]
    if manifest.partition_by == "day":
        fields.append(StructField("day", DateType()))
    frame = parquet_frame(spark, root, paths, StructType(fields))
    if first is not None:
        frame = frame.where(f"index >= {first}")
    if last is not None:
        frame = frame.where(f"index <= {last}")
    return frame


def parquet_frame(
    spark: SparkSession, root: str, paths: Sequence[str], schema: StructType
) -> DataFrame:
    """Return the rows of files of an archive, with what the names of their directories say."""
    if not paths:
        return spark.createDataFrame([], schema)
    return (
        spark.read.schema(schema)
        .option("basePath", f"file://{root}")
        .parquet(*(_GLOB.sub(r"\\\1", f"file://{root}/{path}") for path in paths))
    )
