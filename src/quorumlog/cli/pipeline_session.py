"""The Spark session of a command: loaded only by commands that need it, quiet, and ended."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Spark's master; local[*]: all cores of this machine."
    ),
]
LOCAL_MASTER = "local[*]"


@contextmanager
def spark_needed() -> Iterator[None]:
    """Import what needs Spark within; a user without it is told what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "quorumlog":
            raise
        raise CommandError(
            f"this needs {error.name}, which is not installed; pip install 'quorumlog[spark]'"
        ) from error


@contextmanager
def spark_session(app_name: str, master: str) -> Iterator["SparkSession"]:
    """Start Spark and end it again; if this process has a session already, that one is used.

    What Spark's processes write to standard error goes to a file, which is named when Spark fails.
    Raises `CommandError` then, and without Spark or Java.
    """
    with spark_needed():
        # loading Spark takes longer than most commands
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from quorumlog.spark import session  # noqa: PLC0415
        from quorumlog.spark.pipelines.running import reason_of  # noqa: PLC0415
    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    descriptor, name = tempfile.mkstemp(prefix="quorumlog-spark-", suffix=".log")
    os.close(descriptor)
    output = Path(name)
    try:
        spark = session(app_name, master=master, output=output)
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
