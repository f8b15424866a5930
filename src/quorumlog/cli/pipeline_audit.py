"""`quorumlog pipeline audit` and `quorumlog pipeline stats`: read whole logs, or topics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from quorumlog.cli.kafka_admin import Bootstrap
from quorumlog.cli.options import ContextName, FromDir, Group, Servers
from quorumlog.cli.output import print_json, print_lines
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
    TopicPattern,
    Topics,
    are_meant,
    audit_archived_topics,
    stats_of_wanted_topics,
    wanted_topics,
)
from quorumlog.cli.progress import progress_bar
from quorumlog.cli.store import group_directory

EXIT_FOUND = 1

DataPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DIR=PATH,...",
        help="Directories of DIR's data files, if not DIR/data; repeatable.",
        show_default=False,
    ),
]

FirstIndex = Annotated[
    int, typer.Option("--from", metavar="INDEX", min=0, help="Groups only: first index.")
]
LastIndex = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="INDEX", min=0, help="Groups only: last index.", show_default="the end"
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="PATH",
        help="Write all findings there as Parquet.",
        show_default=False,
    ),
]


def audit_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR", help="The group's directory of each replica, ours or DLedger's."
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="ARCHIVE", help="Compare this archive, too.", show_default=False
        ),
    ] = None,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    output: Output = None,
    first: FirstIndex = 0,
    last: LastIndex = None,
    data: DataPaths = None,
    master: Master = LOCAL_MASTER,
    remote: Remote = None,
    as_json: ResultAsJson = False,
) -> None:
    """Compare the stores of all replicas of a group, entry by entry, or an archive with topics.

    Finds entries that are missing, differ or are damaged, breaks in the order of terms and indexes
    and in the chain of CRCs; with --archive also where archive and log differ. Exit status 1 if
    there is any. Of a group, files are read: no server is needed, and nodes may run meanwhile.
    Topics are read from their brokers.
    """
    if not directories:
        of_group = {"--output": output, "--data": data, "--from": first or None, "--to": last}
        _audit_topics(
            archive, directory, bootstrap_server, context, of_group, (master, remote), as_json
        )
        return
    if directory is not None or bootstrap_server is not None or context is not None:
        raise typer.BadParameter("give either directories of replicas, or a cluster with topics")
    with spark_needed():
        from quorumlog.spark import StoreDirectory, audit  # noqa: PLC0415  (slow to load)
    elsewhere = _elsewhere(data or [])
    stores = [StoreDirectory(*_files_of(path, elsewhere)) for path in directories]
    for unknown in elsewhere:
        raise typer.BadParameter(f"--data names {unknown}, which is none of the directories")
    if archive is not None:
        check_archive_of_group(archive)
    with (
        spark_session("quorumlog audit", master, remote) as spark,
        progress_bar("comparing") as progress,
    ):
        report = audit(
            spark,
            stores,
            archive=archive,
            output=output,
            first_index=first,
            last_index=last,
            progress=progress,
        )
    if as_json:
        print_json(report.to_object())
    else:
        print_lines(report.text())
    _exit_if_found(is_clean=report.is_clean)


def _exit_if_found(*, is_clean: bool) -> None:
    if not is_clean:
        raise typer.Exit(EXIT_FOUND)


def _files_of(path: Path, elsewhere: dict[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    """Return a group's directory, and where its data files are, taken out of `elsewhere`."""
    directory = group_directory(path, anywhere=str(path) in elsewhere)
    return directory, elsewhere.pop(str(path), ())


def _audit_topics(
    archive: Path | None,
    directory: Path | None,
    bootstrap_server: str | None,
    context: str | None,
    of_group: Mapping[str, Any],
    session: tuple[str, str | None],
    as_json: bool,
) -> None:
    """Compare an archive with topics; without a cluster to look at, say what is missing."""
    if archive is None:
        raise typer.BadParameter(
            "give the directories of a group's replicas, or --archive of topics with "
            "--context, --bootstrap-server or --dir of their cluster"
        )
    are_meant(None, None, bootstrap_server or str(directory), of_group)
    wanted = wanted_topics(directory, bootstrap_server, context)
    report = audit_archived_topics(wanted, archive, session, as_json)
    _exit_if_found(is_clean=report.is_clean)


def stats_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    store: Annotated[
        Path | None,
        typer.Argument(
            metavar="[STORE]", help="A group's directory; without it, a live group is counted."
        ),
    ] = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    topic: Topics = None,
    topic_pattern: TopicPattern = None,
    bootstrap_server: Bootstrap = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw a picture (PNG).", show_default=False),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Of a store: read its index files only; tells kinds less well."
        ),
    ] = False,
    data: DataPaths = None,
    master: Master = LOCAL_MASTER,
    remote: Remote = None,
    timeout: OutageTimeout = OUTAGE_SECONDS,
    as_json: ResultAsJson = False,
) -> None:
    """Count what a log holds: entries, bytes, sizes, terms, rates; of a group, a store or topics.

    Entries carry no time: rates over time are known only of a store whose data files tell when they
    were written, and of topics.
    """
    of_group = {"--servers": servers, "--group": group, "--quick": quick, "--data": data}
    if are_meant(topic, topic_pattern, bootstrap_server, {**of_group, "STORE": store}):
        wanted = wanted_topics(directory, bootstrap_server, context, topic, topic_pattern)
        stats_of_wanted_topics(wanted, (master, remote), plot, timeout, as_json)
        return
    with spark_needed():
        from quorumlog.spark import StoreDirectory, stats  # noqa: PLC0415  (slow to load)
        from quorumlog.spark.jobs.stats.plot import draw  # noqa: PLC0415
    if store is not None and (directory or servers or context):
        raise typer.BadParameter("give either a STORE, or --dir or --servers of a live group")
    of_log: dict[str, Any] = {}
    files = None
    if store is None:
        target = pipeline_target(directory, servers, group, timeout, context)
        of_log = {"servers": target.where, "group": target.group}
    else:
        elsewhere = _elsewhere(data or [])
        path = group_directory(store, anywhere=str(store) in elsewhere)
        files = StoreDirectory(path, elsewhere.get(str(store), ()))
    with (
        spark_session("quorumlog stats", master, remote) as spark,
        progress_bar("counting") as progress,
    ):
        found = stats(spark, **of_log, store=files, quick=quick, progress=progress)
    if as_json:
        print_json(found.to_object())
    else:
        print_lines(found.text())
    if plot is not None:
        draw(found, plot)


def _elsewhere(options: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the directories of data files, by group directory, that `--data` names."""
    found = {}
    for option in options:
        directory, separator, paths = option.partition("=")
        given = tuple(path.strip() for path in paths.split(",") if path.strip())
        if not separator or not given:
            raise typer.BadParameter(f"--data {option!r} is not DIR=PATH,PATH")
        found[str(Path(directory))] = given
    return found
