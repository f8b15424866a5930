"""Reads an archive as a DataFrame, whatever it is an archive of."""

import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.jobs.archive.archive import read_archive as read_group_archive
from quorumlog.spark.jobs.archive.manifest_file import archive_kind
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.topics.archive import read_topic_archive


def read_archive(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    first: int | None = None,
    last: int | None = None,
    topics: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows of an archive; exactly the files that the manifest names now are read.

    Of a group: the entries, those from index `first` to `last` if they are given, with the columns
    index, term, channel, body, body_crc, chain_crc; with archives by day also `day`. Of topics: the
    records, those of `topics` if they are given, with the columns of Spark's Kafka source (key,
    value, topic, partition, offset, timestamp, timestampType, headers) and the `day` of their
    timestamp (UTC). Rows come in no particular order.

    Raises `PipelineError` when there is no archive, `UnexpectedArgumentError` for an argument that
    is for archives of the other kind.
    """
    if archive_kind(OutputFileSystem(), local_path(directory)) == "group":
        if topics is not None:
            raise UnexpectedArgumentError(f"{directory} is an archive of a group: it has no topics")
        return read_group_archive(spark, directory, first=first, last=last)
    if first is not None or last is not None:
        raise UnexpectedArgumentError(
            f"{directory} is an archive of topics: it has no indexes; use where() on offset"
        )
    return read_topic_archive(spark, directory, topics)
