"""What commands look at before Spark, which takes a while to start: topics, archive, table.

The jobs check the same, as others call them too.
"""

from collections.abc import Callable
from pathlib import Path

from quorumlog.cli.pipeline_session import spark_needed
from quorumlog.client.contexts import Access
from quorumlog.storage.files.os_files import FileSystem


def check_topics(
    servers: str | Access, names: str | None, pattern: str | None, timeout_ms: int
) -> None:
    """Raise `UnknownTopicError` or `NetworkError` unless brokers know the topics."""
    with spark_needed():
        from quorumlog.spark.jobs.topics.source import topic_source  # noqa: PLC0415  (slow to load)
    topic_source(servers, names, pattern=pattern, timeout_ms=timeout_ms).parts()


def check_archive_of_topics(archive: Path, *, may_be_new: bool = False) -> None:
    """Raise `PipelineError` unless a directory has an archive of topics, or may get one."""
    with spark_needed():
        from quorumlog.spark.jobs.topics.manifest import load_topic_manifest  # noqa: PLC0415
    _check_archive(archive, load_topic_manifest, may_be_new=may_be_new)


def check_archive_of_group(archive: Path, *, may_be_new: bool = False) -> None:
    """Raise `PipelineError` unless a directory has an archive of a group, or may get one."""
    with spark_needed():
        from quorumlog.spark.jobs.archive.manifest import load_manifest  # noqa: PLC0415
    _check_archive(archive, load_manifest, may_be_new=may_be_new)


def _check_archive(
    archive: Path, load: Callable[[FileSystem, str], object], *, may_be_new: bool
) -> None:
    from quorumlog.spark.jobs.archive.manifest_file import manifest_path  # noqa: PLC0415
    from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path  # noqa: PLC0415

    files, directory = OutputFileSystem(), local_path(archive)
    if not may_be_new or files.exists(manifest_path(directory)):
        load(files, directory)


def check_table(archive: Path, table: str, catalog: str, catalog_name: str | None = None) -> None:
    """Raise `ConfigError` or `PipelineError` unless the catalog of a table can be opened.

    If it has the table, that must be an archive of topics which lies in the directory.
    """
    with spark_needed():
        from quorumlog.spark.jobs.output_files import local_path  # noqa: PLC0415
        from quorumlog.spark.jobs.topics.iceberg.archive import CATALOG_NAME  # noqa: PLC0415
        from quorumlog.spark.jobs.topics.iceberg.table import (  # noqa: PLC0415
            ArchiveTable,
            TableName,
        )
    name = TableName(catalog, table, catalog_name or CATALOG_NAME)
    with ArchiveTable(name, local_path(archive)) as opened:
        opened.load()
