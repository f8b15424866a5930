"""The Spark session of a command: loaded only by commands that need it, quiet, and ended."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.target import Target, find_access, find_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Spark's master; local[*]: all cores of this machine."
    ),
]
LOCAL_MASTER = "local[*]"
Remote = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="sc://HOST:PORT",
        envvar="SPARK_REMOTE",
        help="Use this Spark Connect server instead of a --master.",
        show_default=False,
    ),
]
OutageTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        help="Ride out outages, such as a change of leaders, for this time.",
    ),
]
OUTAGE_SECONDS = 120.0
ResultAsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
CHECK_SECONDS = 5.0
"""A cluster that does not answer for this long is reported before Spark is started."""


def pipeline_target(
    directory: Path | None,
    servers: str | None,
    group: str | None,
    timeout_s: float,
    context: str | None = None,
) -> Target:
    """Return the cluster and the group that a job is about, after a check that they are there.

    Starting Spark takes a while, and its tasks would wait for the end of an outage. Raises what
    `find_target` raises, `NetworkError` naming the servers, `UnknownGroupError`.
    """
    from quorumlog.spark.source.clusters import check_cluster  # noqa: PLC0415  (loads numpy)

    check_s = min(CHECK_SECONDS, timeout_s)
    if directory is None and group is None:
        check_cluster(find_access(directory, servers, context), None, round(check_s * 1000))
    target = find_target(directory, servers, group, check_s, context)
    check_cluster(target.where, target.group, target.timeout_ms)
    return replace(target, timeout_ms=max(1, round(timeout_s * 1000)))


@contextmanager
def spark_needed() -> Iterator[None]:
    """Import what needs Spark within; if it is missing, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "quorumlog":
            raise
        raise CommandError(
            f"this needs {error.name}, which is not installed; pip install 'quorumlog[spark]'"
        ) from error


@contextmanager
def spark_session(
    app_name: str, master: str, remote: str | None = None
) -> Iterator["SparkSession"]:
    """Start Spark and end it again; if this process has a session already, that one is used.

    With `remote` it is a session of that Spark Connect server.

    What Spark's processes write to standard error goes to a file, which is named when Spark fails.
    Raises `CommandError` then, and without Spark or Java.
    """
    with spark_needed():
        # loading Spark takes longer than most commands
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from quorumlog.spark import session  # noqa: PLC0415
        from quorumlog.spark.jobs.tasks import reason_of  # noqa: PLC0415
    if remote is not None and master != LOCAL_MASTER:
        raise typer.BadParameter("give either --master or --remote")
    if remote is not None:
        from pyspark.logger import PySparkLogger  # noqa: PLC0415

        # it would print pages of JSON before the one line that this command prints
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    descriptor, name = tempfile.mkstemp(prefix="quorumlog-spark-", suffix=".log")
    os.close(descriptor)
    output = Path(name)
    try:
        spark = session(app_name, master=master, remote=remote, output=output)
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError) as error:
        reason = reason_of(str(error))
        raise CommandError(f"Spark failed: {reason}; its output is in {name}") from error
    except BaseException:
        output.unlink()
        raise
    output.unlink()
