"""A local Spark session that starts quietly and finds everything it needs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from quorumlog.spark.java import JavaChoice, java_home
from quorumlog.spark.source import QuorumlogSource

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
LOOPBACK = "127.0.0.1"


def prepare_environment() -> JavaChoice:
    """Set what Spark's launcher and workers read from the environment; before the first session.

    Raises `ConfigError` when there is no Java.
    """
    choice = java_home()
    os.environ["JAVA_HOME"] = choice.home
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers would take python3 from PATH
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # a host name that does not resolve is fatal
    return choice


@contextmanager
def _standard_error_to(path: Path | None) -> Iterator[None]:
    """Let processes started meanwhile write their standard error to a file."""
    if path is None:
        yield
        return
    own = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def session(
    app_name: str = "quorumlog",
    *,
    master: str = "local[2]",
    output: Path | None = None,
    **settings: str,
) -> SparkSession:
    """Return a session with the data source registered.

    `output`: a file for what the JVM and Spark's workers write to standard error (None: this
    process's). `settings`: further Spark settings with `_` for `.`, such as
    spark_driver_memory="4g". Raises `ConfigError` when there is no Java.
    """
    prepare_environment()
    builder = (
        SparkSession.builder.appName(app_name)
        .master(master)
        .config("spark.driver.bindAddress", LOOPBACK)
        .config("spark.driver.host", LOOPBACK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG_CONFIGURATION}")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    with _standard_error_to(output):
        spark = builder.getOrCreate()
    spark.dataSource.register(QuorumlogSource)
    return spark
