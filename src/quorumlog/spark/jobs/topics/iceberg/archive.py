"""Topics as an Apache Iceberg table, each record exactly once, for whatever engine reads it.

archive_topics_to_iceberg(
    *(spark, "h:p,h:p,h:p", "flights,landed", "/lake/flights"),
    catalog="sqlite:////lake/catalog.db",
    table="archive.flights",
)
"""

import os
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from quorumlog.client.results import Isolation
from quorumlog.model.errors import ConfigError
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.archive.state import FILE_BYTES, FILE_BYTES_MIN, RunOptions
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.tasks import Progress, cores_of, no_progress, run_tasks
from quorumlog.spark.jobs.topics.iceberg.run import IcebergArchiveResult, IcebergArchiveRun
from quorumlog.spark.jobs.topics.iceberg.table import ArchiveTable, TableName
from quorumlog.spark.jobs.topics.source import topic_source

CATALOG_NAME = "default"


def archive_topics_to_iceberg(  # noqa: PLR0913  (named options of a public entry point)
    spark: SparkSession,
    servers: AnyAccess,
    topics: str | Sequence[str] | None,
    directory: str | os.PathLike[str],
    *,
    catalog: str,
    table: str,
    catalog_name: str = CATALOG_NAME,
    pattern: str | None = None,
    isolation: Isolation = "read_committed",
    fail_on_data_loss: bool = True,
    file_bytes: int = FILE_BYTES,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> IcebergArchiveResult:
    """Append to a table what topics have up to the ends of their partitions as they are now.

    `table` is NAMESPACE.NAME in the SQL catalog at `catalog`, a URI as SQLAlchemy has them; its
    database keeps tables under `catalog_name`. The table is made if it does not exist, and lies in
    `directory`, which must be seen by driver and executors under the same path. `servers`,
    `topics`, `pattern`, `isolation`, `fail_on_data_loss`, `file_bytes` (bytes of keys and values),
    `timeout_ms` (milliseconds) and `progress` are those of `archive_topics`.

    Raises `ConfigError` without the extra `iceberg` or for what cannot be, `PipelineError` when the
    table is not one of this archive, the directory has files of another table, another run has
    appended meanwhile, the catalog fails, a topic was made again, or a task fails,
    `UnknownTopicError`, `NetworkError` when no broker answers, `StorageError` when files
    cannot be written, `StoreLockedError` while another run is under way.
    """
    if file_bytes < FILE_BYTES_MIN:
        raise ConfigError(f"file_bytes {file_bytes} is below {FILE_BYTES_MIN}")
    source = topic_source(
        servers, topics, pattern=pattern, isolation=isolation, timeout_ms=timeout_ms
    )
    source.parts()  # says soon that no broker answers
    options = RunOptions(
        fail_on_data_loss=fail_on_data_loss, file_bytes=file_bytes, cores=cores_of(spark)
    )
    name = TableName(catalog, table, catalog_name)
    with ArchiveTable(name, local_path(directory)) as opened:
        return IcebergArchiveRun(
            source, OutputFileSystem(), opened, options, partial(run_tasks, spark), progress
        ).run()
