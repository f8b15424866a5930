"""Topics as Parquet files, each record exactly once, and a DataFrame of them.

    archive_topics(spark, "h:p,h:p,h:p", "flights,landed", "/archive/topics")
    read_archive(spark, "/archive/topics").where("topic = 'flights' AND day = '2026-03-01'")

Files lie in `topic=…/day=…`, by the day (UTC) of their records' timestamps (decision 0055). What
the archive holds is in its manifest.
"""

import os
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, StructField, StructType

from quorumlog.client.results import Isolation
from quorumlog.model.errors import ConfigError
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.archive.archive import parquet_frame
from quorumlog.spark.jobs.archive.state import (
    FILE_BYTES,
    FILE_BYTES_MIN,
    KEEP_REPLACED_S,
    RunOptions,
)
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.tasks import PipelineError, Progress, cores_of, no_progress, run_tasks
from quorumlog.spark.jobs.topics.manifest import load_topic_manifest
from quorumlog.spark.jobs.topics.run import TopicArchiveResult, TopicArchiveRun
from quorumlog.spark.jobs.topics.source import topic_source
from quorumlog.spark.topics.schema import topic_schema


def archive_topics(  # noqa: PLR0913  (named options of a public entry point)
    spark: SparkSession,
    servers: AnyAccess,
    topics: str | Sequence[str] | None,
    directory: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    isolation: Isolation = "read_committed",
    fail_on_data_loss: bool = True,
    compact: bool = True,
    file_bytes: int = FILE_BYTES,
    keep_replaced_s: int = KEEP_REPLACED_S,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> TopicArchiveResult:
    """Archive topics up to the ends of their partitions as they are now.

    `servers` are addresses of brokers. `topics` are names, or `pattern` is a regular expression for
    whole names; each run may be of other topics of the same cluster. `directory` must be seen by
    driver and executors under the same path. A file has about `file_bytes` of keys and values;
    with `compact`, small files of a partition and day are merged, and a run that comes
    `keep_replaced_s` later removes the old ones. Records that retention removed first are an error
    or, with `fail_on_data_loss=False`, a gap in the manifest. Outages of up to `timeout_ms` are
    waited for; `progress` is called after each round with the number of offsets done and of all.

    Raises `PipelineError` when the directory holds something else, a topic was made again, or a
    task fails, `UnknownTopicError`, `NetworkError` when no broker answers, `StorageError` when
    files cannot be written, `StoreLockedError` while another run is under way.
    """
    if file_bytes < FILE_BYTES_MIN:
        raise ConfigError(f"file_bytes {file_bytes} is below {FILE_BYTES_MIN}")
    source = topic_source(
        servers, topics, pattern=pattern, isolation=isolation, timeout_ms=timeout_ms
    )
    source.parts()  # says soon that no broker answers
    options = RunOptions(
        fail_on_data_loss=fail_on_data_loss,
        compact=compact,
        file_bytes=file_bytes,
        cores=cores_of(spark),
        keep_replaced_s=keep_replaced_s,
    )
    return TopicArchiveRun(
        source,
        OutputFileSystem(),
        local_path(directory),
        options,
        partial(run_tasks, spark),
        progress,
    ).run()


def read_topic_archive(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the records of an archive, of some topics if they are named; see `read_archive`."""
    root = local_path(directory)
    manifest = load_topic_manifest(OutputFileSystem(), root)
    names = topics.split(",") if isinstance(topics, str) else topics
    known = {one.topic for one in manifest.partitions}
    wanted = known if names is None else {name.strip() for name in names}
    if missing := sorted(wanted - known):
        raise PipelineError(f"{root} has nothing of {', '.join(missing)}")
    paths = [file.path for file in manifest.files if file.topic in wanted]
    schema = topic_schema(include_headers=True)
    with_day = StructType([*schema.fields, StructField("day", DateType())])
    return parquet_frame(spark, root, paths, with_day).select(with_day.names)
