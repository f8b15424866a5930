"""`quorumlog pipeline`: Spark jobs on a group's log, and on topics."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quorumlog.cli.kafka_admin import Bootstrap
from quorumlog.cli.options import ContextName, FromDir, Group, Servers
from quorumlog.cli.output import print_json, print_line
from quorumlog.cli.pipeline_audit import audit_command, stats_command
from quorumlog.cli.pipeline_checks import check_archive_of_group
from quorumlog.cli.pipeline_session import (
    LOCAL_MASTER,
    OUTAGE_SECONDS,
    Master,
    OutageTimeout,
    Remote,
    ResultAsJson,
    pipeline_target,
    spark_needed,
    spark_session,
)
from quorumlog.cli.pipeline_topics import (
    NOTHING_NEW,
    IcebergCatalog,
    IcebergCatalogName,
    IcebergTable,
    Renames,
    TopicPattern,
    Topics,
    added_text,
    archive_wanted_topics,
    are_meant,
    iceberg_options,
    replay_wanted_topics,
    wanted_topics,
)
from quorumlog.cli.progress import progress_bar
from quorumlog.cli.target import Target
from quorumlog.model.wording import counted, entries_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorumlog.spark.jobs.archive.run import ArchiveResult
    from quorumlog.spark.jobs.export.export import ExportResult
    from quorumlog.spark.jobs.replay.replay import ReplayResult

MIB = 1024 * 1024

app = typer.Typer(
    help="Archive, replay, check, measure and export a group's log or topics, with Spark.",
    no_args_is_help=True,
)

Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    typer.Option(
        "--isolation",
        metavar="LEVEL",
        help="read_committed: only records of committed transactions; read_uncommitted: all.",
    ),
]
ReadFrom = Annotated[
    Literal["leader", "any"],
    typer.Option("--read-from", help="Which replicas are read."),
]
GroupReadFrom = Annotated[
    Literal["leader", "any"],
    typer.Option("--read-from", help="Groups only: which replicas are read."),
]
FileMib = Annotated[
    int, typer.Option("--file-mib", min=1, help="About how much of the log goes into one file.")
]
PartitionBy = Annotated[
    Literal["range", "day"] | None,
    typer.Option(
        "--partition-by",
        help="Groups only: files by index range, or in directories by the day they were archived "
        "(UTC). Default: as the archive is, a new one by range.",
        show_default=False,
    ),
]
Until = Annotated[
    int | None,
    typer.Option(
        "--to",
        metavar="INDEX",
        min=0,
        help="Groups only: last index to archive.",
        show_default="the end",
    ),
]
AllowDataLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss",
        help="Go on if retention removed entries first; the manifest records the gap.",
    ),
]
Follow = Annotated[
    float | None,
    typer.Option(
        "--follow",
        metavar="SECONDS",
        min=0.1,
        help="Repeat for new entries after this time, until Ctrl-C.",
        show_default=False,
    ),
]


@app.callback()
def _family() -> None:
    pass


@app.command(name="archive")
def archive_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    archive_directory: Annotated[
        Path,
        typer.Argument(
            metavar="ARCHIVE", help="Directory of the archive; made if it does not exist."
        ),
    ],
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    topic: Topics = None,
    topic_pattern: TopicPattern = None,
    bootstrap_server: Bootstrap = None,
    partition_by: PartitionBy = None,
    until: Until = None,
    follow: Follow = None,
    isolation: Isolation = "read_committed",
    read_from: GroupReadFrom = "leader",
    allow_data_loss: AllowDataLoss = False,
    no_compact: Annotated[
        bool, typer.Option("--no-compact", help="Leave small files as they are; else merge them.")
    ] = False,
    file_mib: FileMib = 128,
    iceberg_table: IcebergTable = None,
    iceberg_catalog: IcebergCatalog = None,
    iceberg_catalog_name: IcebergCatalogName = None,
    master: Master = LOCAL_MASTER,
    remote: Remote = None,
    timeout: OutageTimeout = OUTAGE_SECONDS,
    as_json: ResultAsJson = False,
) -> None:
    """Write a group's log, or topics, to Parquet files, each entry exactly once.

    A later run goes on where the last one ended, however that was. With --iceberg-table, topics
    become an Apache Iceberg table, which lies in ARCHIVE; then --iceberg-catalog is needed, too,
    and --iceberg-catalog-name unless that is `default`.
    """
    iceberg = iceberg_options(iceberg_table, iceberg_catalog, iceberg_catalog_name)
    options: dict[str, Any] = {
        "isolation": isolation,
        "fail_on_data_loss": not allow_data_loss,
        "compact": not no_compact,
        "file_bytes": file_mib * MIB,
        "timeout_ms": round(timeout * 1000),
    }
    of_group = {
        "--servers": servers,
        "--group": group,
        "--partition-by": partition_by,
        "--to": until,
        "--read-from any": read_from == "any",
    }
    if are_meant(topic, topic_pattern, bootstrap_server, of_group):
        wanted = wanted_topics(directory, bootstrap_server, context, topic, topic_pattern)
        session = (master, remote)
        if iceberg:
            options = {**options, **iceberg}
            del options["compact"]  # engines do that
        archive_wanted_topics(wanted, archive_directory, session, follow, as_json, **options)
        return
    if iceberg:
        raise typer.BadParameter("--iceberg-table is for topics: say which, with --topic")
    with spark_needed():
        from quorumlog.spark import archive  # noqa: F401, PLC0415  (slow to load)
    target = pipeline_target(directory, servers, group, timeout, context)
    check_archive_of_group(archive_directory, may_be_new=True)
    options |= {"partition_by": partition_by, "until": until, "leader_only": read_from == "leader"}
    with spark_session("quorumlog archive", master, remote) as spark:
        _archive_group(spark, target, archive_directory, follow, as_json, **options)


def _archive_group(
    spark: "SparkSession",
    target: Target,
    archive_directory: Path,
    follow: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    from quorumlog.spark import archive  # noqa: PLC0415  (slow to load)

    while True:
        with progress_bar(f"archiving {target.group}") as progress:
            result = archive(
                spark,
                target.where,
                target.group,
                archive_directory,
                progress=progress,
                **options,
            )
        _print_archived(result, as_json)
        if follow is None:
            return
        time.sleep(follow)


def _print_archived(result: "ArchiveResult", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
        return
    rows, sizes = entries_text(result.new_rows), (result.new_body_bytes, result.new_file_bytes)
    print_line(added_text(rows, *sizes, "bodies") if result.new_rows else NOTHING_NEW)
    if result.merged_files:
        print_line(f"{counted(result.merged_files, 'small file')} merged")
    if result.new_lost_entries:
        lost = entries_text(result.new_lost_entries)
        print_line(f"{lost} had been removed: the archive has a gap")
    if result.last_index is None:
        print_line(f"{result.directory} is empty, as the log is")
        return
    is_one = result.lost_entries == 1
    gaps = (
        f", {result.lost_entries} {'is' if is_one else 'are'} missing"
        if result.lost_entries
        else ""
    )
    print_line(
        f"{result.directory} holds {entries_text(result.rows)} in "
        f"{counted(result.files, 'file')}, indexes "
        f"{result.first_index} to {result.last_index}{gaps}"
    )


@app.command(name="replay")
def replay_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    archive_directory: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Directory of the archive.")
    ],
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    topic: Topics = None,
    bootstrap_server: Bootstrap = None,
    rename: Renames = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Write after records that others wrote; without it such topics are refused.",
        ),
    ] = False,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Also an archive in which entries are missing.")
    ] = False,
    timeout: OutageTimeout = OUTAGE_SECONDS,
    as_json: ResultAsJson = False,
) -> None:
    """Append an archive's entries to a group, or to topics, in order, once; prove it.

    The group must be empty or hold the first entries of the archive; the topics must be empty, or
    as an earlier run of this replay left them. A replay that was stopped goes on.
    """
    with spark_needed():
        from quorumlog.spark import replay  # noqa: PLC0415  (slow to load)
    of_group = {"--servers": servers, "--group": group}
    named = topic or (",".join(rename) if rename else None) or ("--append" if append else None)
    if are_meant(named, None, bootstrap_server, of_group):
        wanted = wanted_topics(directory, bootstrap_server, context, topic)
        options = {"append": append, "allow_gaps": allow_gaps}
        replay_wanted_topics(wanted, archive_directory, rename, timeout, as_json, **options)
        return
    target = pipeline_target(directory, servers, group, timeout, context)
    with progress_bar(f"replaying to {target.group}") as progress:
        result = replay(
            archive_directory,
            target.where,
            target.group,
            allow_gaps=allow_gaps,
            timeout_ms=target.timeout_ms,
            progress=progress,
        )
    _print_replayed(result, as_json)


def _print_replayed(result: "ReplayResult", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
        return
    print_line(
        f"{entries_text(result.appended_entries)} appended, {result.found_entries} "
        f"{'was' if result.found_entries == 1 else 'were'} there already"
    )
    held = entries_text(result.entries)
    print_line(f"group {result.group} holds the {held} of {result.directory}:")
    print_line(f"SHA-256 of both {result.digest}")


@app.command(name="export")
def export_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Directory to make; with --single-file a file.")
    ],
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    form: Annotated[
        Literal["json", "csv"], typer.Option("--format", help="JSON lines or CSV.")
    ] = "json",
    bodies: Annotated[
        Literal["text", "base64", "json"],
        typer.Option(
            "--bodies",
            help="text: UTF-8, what is none in base64; json: embed bodies that are JSON.",
        ),
    ] = "text",
    first: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="INDEX", min=0, help="First index.", show_default="the first kept"
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="INDEX", min=0, help="Last index.", show_default="the end"),
    ] = None,
    single_file: Annotated[bool, typer.Option("--single-file", help="Make one file.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file, or what an export made.")
    ] = False,
    isolation: Isolation = "read_committed",
    read_from: ReadFrom = "leader",
    file_mib: FileMib = 128,
    master: Master = LOCAL_MASTER,
    remote: Remote = None,
    timeout: OutageTimeout = OUTAGE_SECONDS,
    as_json: ResultAsJson = False,
) -> None:
    """Write entries as JSON lines or CSV; the path appears when all of them are there."""
    with spark_needed():
        from quorumlog.spark import export  # noqa: PLC0415  (slow to load)
    target = pipeline_target(directory, servers, group, timeout, context)
    with (
        spark_session("quorumlog export", master, remote) as spark,
        progress_bar(f"exporting {target.group}") as progress,
    ):
        result = export(
            spark,
            target.where,
            target.group,
            path,
            form,
            bodies=bodies,
            first=first,
            last=last,
            single_file=single_file,
            overwrite=overwrite,
            isolation=isolation,
            leader_only=read_from == "leader",
            file_bytes=file_mib * MIB,
            timeout_ms=target.timeout_ms,
            progress=progress,
        )
    _print_exported(result, as_json)


def _print_exported(result: "ExportResult", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
        return
    encoded = f", {result.base64_rows} of them in base64" if result.base64_rows else ""
    print_line(
        f"{result.path}: {entries_text(result.rows)}{encoded}, {counted(result.bytes, 'byte')}"
    )


app.command(name="audit")(audit_command)
app.command(name="stats")(stats_command)
