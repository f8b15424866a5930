"""`quorumlog pipeline` on topics: archive, replay, stats and audit by Kafka's protocol."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import find_brokers
from quorumlog.cli.kafka_reach import is_hopeless, reach_of, words_of
from quorumlog.cli.options import pairs_of
from quorumlog.cli.output import print_json, print_line, print_lines
from quorumlog.cli.pipeline_checks import check_archive_of_topics, check_table, check_topics
from quorumlog.cli.pipeline_session import spark_needed, spark_session
from quorumlog.cli.progress import progress_bar
from quorumlog.cli.target import for_jobs, opened
from quorumlog.client.contexts import Access
from quorumlog.model.wording import counted

if TYPE_CHECKING:
    from quorumlog.spark.jobs.topics.audit import TopicAudit
    from quorumlog.spark.jobs.topics.iceberg.run import IcebergArchiveResult
    from quorumlog.spark.jobs.topics.replay import TopicReplayResult
    from quorumlog.spark.jobs.topics.run import TopicArchiveResult

Topics = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="NAME,...",
        help="Topics, in the place of a group.",
        show_default=False,
    ),
]
TopicPattern = Annotated[
    str | None,
    typer.Option(
        "--topic-pattern",
        metavar="REGEX",
        help="The topics whose whole names match.",
        show_default=False,
    ),
]
Renames = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="Of topics: another name for one; repeatable.",
        show_default=False,
    ),
]
IcebergTable = Annotated[
    str | None,
    typer.Option(
        "--iceberg-table",
        metavar="NAMESPACE.NAME",
        help="Of topics: append to this Apache Iceberg table.",
        show_default=False,
    ),
]
IcebergCatalog = Annotated[
    str | None,
    typer.Option(
        "--iceberg-catalog",
        metavar="URI",
        help="The SQL catalog of the table, such as sqlite:////lake/c.db.",
        show_default=False,
    ),
]
IcebergCatalogName = Annotated[
    str | None,
    typer.Option(
        "--iceberg-catalog-name",
        metavar="NAME",
        help="The name under which the catalog's database keeps its tables.",
        show_default="default",
    ),
]

NOTHING_NEW = "nothing new"
"""What is printed of an archive that has all that there is already."""


class Wanted(NamedTuple):
    """Which topics a command is about, as its options say; `servers` say which cluster has them."""

    servers: str | Access
    names: str | None
    pattern: str | None

    @property
    def text(self) -> str:
        """The topics in words."""
        return self.names or (f"topics {self.pattern}" if self.pattern else "all topics")


def are_meant(
    topics: str | None,
    pattern: str | None,
    bootstrap_server: str | None,
    of_group: Mapping[str, Any],
) -> bool:
    """Whether options are about topics; `of_group` are those that only groups have, by name.

    Raises `typer.BadParameter` naming the first one that was given with topics.
    """
    if topics is None and pattern is None and bootstrap_server is None:
        return False
    for name, value in of_group.items():
        if value is None or value is False or value == []:
            continue
        if name == "--servers":
            raise typer.BadParameter(
                "--servers names nodes; for topics give --bootstrap-server (kafkaListen of nodes), "
                "or --dir"
            )
        raise typer.BadParameter(f"{name} is for groups, not for topics: leave it out")
    return True


def wanted_topics(
    directory: Path | None,
    bootstrap_server: str | None,
    context: str | None,
    topics: str | None = None,
    pattern: str | None = None,
) -> Wanted:
    """Return the topics, after a look whether brokers can be reached.

    Raises `CommandError` if none can, `typer.BadParameter`.
    """
    if topics is not None and pattern is not None:
        raise typer.BadParameter("give either --topic or --topic-pattern")
    access = find_brokers(directory, bootstrap_server, context)
    cluster = opened(access)
    servers = cluster.kafka
    found = reach_of(servers, cluster.security)
    if is_hopeless(found):
        raise CommandError(words_of(found, ""))
    return Wanted(for_jobs(access, servers), topics, pattern)


def iceberg_options(
    table: str | None, catalog: str | None, catalog_name: str | None
) -> dict[str, str]:
    """Return what a function is told of an Iceberg table; nothing if none is meant.

    Raises `typer.BadParameter` if something of it is missing.
    """
    if table is None and catalog is None and catalog_name is None:
        return {}
    if table is None or catalog is None:
        raise typer.BadParameter(
            "an Iceberg table needs both --iceberg-table and --iceberg-catalog"
        )
    named = {} if catalog_name is None else {"catalog_name": catalog_name}
    return {"table": table, "catalog": catalog, **named}


def archive_wanted_topics(
    wanted: Wanted,
    archive: Path,
    session: tuple[str, str | None],
    follow: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Archive topics, again and again with `follow`; `session`: master and remote.

    They become a table if `options` name one.
    """
    if wanted.names is None and wanted.pattern is None:
        raise typer.BadParameter("say which topics: --topic NAME,... or --topic-pattern REGEX")
    is_table = "table" in options
    with spark_needed():
        import quorumlog.spark as jobs  # noqa: PLC0415  (slow to load)

        archive_into: Callable[..., Any] = (
            jobs.archive_topics_to_iceberg if is_table else jobs.archive_topics
        )
    check_topics(*wanted, options["timeout_ms"])
    if is_table:
        check_table(archive, options["table"], options["catalog"], options.get("catalog_name"))
    else:
        check_archive_of_topics(archive, may_be_new=True)
    with spark_session("quorumlog archive", *session) as spark:
        while True:
            with progress_bar(f"archiving {wanted.text}") as progress:
                result = archive_into(
                    spark,
                    wanted.servers,
                    wanted.names,
                    archive,
                    pattern=wanted.pattern,
                    progress=progress,
                    **options,
                )
            if as_json:
                print_json(asdict(result))
            elif is_table:
                _print_appended(result)
            else:
                _print_archived(result)
            if follow is None:
                return
            time.sleep(follow)


def _print_archived(result: "TopicArchiveResult") -> None:
    _print_added(result)
    if result.merged_files:
        print_line(f"{counted(result.merged_files, 'small file')} merged")
    print_line(
        f"{result.directory} holds {_held(result)}, in {counted(result.files, 'file')}"
        f"{_gaps(result)}"
    )


def _print_appended(result: "IcebergArchiveResult") -> None:
    _print_added(result)
    new = counted(result.new_files, "new file")
    print_line(f"table {result.table} was given {_held(result)}{_gaps(result)}; {new}")


def _print_added(result: "TopicArchiveResult | IcebergArchiveResult") -> None:
    rows, sizes = counted(result.new_rows, "record"), (result.new_body_bytes, result.new_file_bytes)
    print_line(added_text(rows, *sizes, "keys and values") if result.new_rows else NOTHING_NEW)
    if result.new_lost_offsets:
        print_line(f"{counted(result.new_lost_offsets, 'offset')} removed by retention first")


def added_text(rows: str, body_bytes: int, file_bytes: int, bodies: str) -> str:
    """Return how many rows an archive got, and their bytes, which are those of `bodies`."""
    before, after = counted(body_bytes, "byte"), counted(file_bytes, "byte")
    return f"{rows} added ({before} of {bodies}; {after} of Parquet)"


def _held(result: "TopicArchiveResult | IcebergArchiveResult") -> str:
    return (
        f"{counted(result.rows, 'record')} of {counted(result.topics, 'topic')}, "
        f"{counted(result.partitions, 'partition')}"
    )


def _gaps(result: "TopicArchiveResult | IcebergArchiveResult") -> str:
    return f", {counted(result.lost_offsets, 'offset')} missing" if result.lost_offsets else ""


def replay_wanted_topics(
    wanted: Wanted,
    archive: Path,
    renames: list[str] | None,
    timeout: float,
    as_json: bool,
    **options: bool,
) -> None:
    """Produce an archive of topics again."""
    with spark_needed():
        from quorumlog.spark import replay_topics  # noqa: PLC0415  (slow to load)
    names = pairs_of(renames, "flights=flights-again")
    try:
        with progress_bar(f"replaying {archive}") as progress:
            result = replay_topics(
                archive,
                wanted.servers,
                wanted.names,
                names=names,
                timeout_ms=round(timeout * 1000),
                progress=progress,
                **options,
            )
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this needs {error.name}, which is not installed; pip install 'quorumlog[spark]'"
        ) from error
    _print_replayed(result, as_json)


def _print_replayed(result: "TopicReplayResult", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
        return
    were = "was" if result.found_records == 1 else "were"
    print_line(
        f"{counted(result.produced_records, 'record')} produced, {result.found_records:,} {were} "
        "there already"
    )
    but = ", except for timestamps" if result.changed_timestamps else ""
    for topic, name in result.topics.items():
        print_line(
            f"topic {name} has what {result.directory} holds of {topic}{but}, as was read back"
        )
    if result.first_changed is not None:
        topic, partition, offset = result.first_changed
        print_line(
            f"{counted(result.changed_timestamps, 'record')} got another timestamp than in the "
            f"archive, the first of which is at offset {offset} of partition {partition} of {topic}"
        )


def stats_of_wanted_topics(
    wanted: Wanted,
    session: tuple[str, str | None],
    plot: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Count topics."""
    with spark_needed():
        from quorumlog.spark import topic_stats  # noqa: PLC0415  (slow to load)
        from quorumlog.spark.jobs.topics.plot import draw_topics  # noqa: PLC0415
    timeout_ms = round(timeout * 1000)
    check_topics(*wanted, timeout_ms)
    with (
        spark_session("quorumlog stats", *session) as spark,
        progress_bar("counting") as progress,
    ):
        found = topic_stats(
            spark,
            wanted.servers,
            wanted.names,
            pattern=wanted.pattern,
            timeout_ms=timeout_ms,
            progress=progress,
        )
    if as_json:
        print_json(found.to_object())
    else:
        print_lines(found.text())
    if plot is not None:
        draw_topics(found, plot)


def audit_archived_topics(
    wanted: Wanted, archive: Path, session: tuple[str, str | None], as_json: bool
) -> "TopicAudit":
    """Compare an archive with its topics, print and return what was found."""
    with spark_needed():
        from quorumlog.spark import audit_topics  # noqa: PLC0415  (slow to load)
    check_archive_of_topics(archive)
    with (
        spark_session("quorumlog audit", *session) as spark,
        progress_bar("comparing") as progress,
    ):
        report = audit_topics(spark, archive, wanted.servers, progress=progress)
    if as_json:
        print_json(report.to_object())
    else:
        print_lines(report.text())
    return report
