"""A Spark session that starts quietly and finds everything it needs."""

import atexit
import os
import shutil
import socket
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakSet

from pyspark.sql import SparkSession

from quorumlog.log_events import reason_of
from quorumlog.model.errors import ConfigError
from quorumlog.spark.data_source import register
from quorumlog.spark.runtime.class_archive import class_archive_options
from quorumlog.spark.runtime.java import JAVA_OPTIONS, JavaChoice, java_home
from quorumlog.spark.source.listener import PositionListener

LOOPBACK = "127.0.0.1"
CONNECT_PORT = 15_002
CONNECT_SECONDS = 5.0
PANDAS_WARNING = "PySpark does not yet fully support pandas"
"""What PySpark says of pandas 3 on loading; it says so again where it uses pandas."""
_reporting: WeakSet[SparkSession] = WeakSet()
"""Sessions that have a listener for positions already."""
SOCKET_PATH_MAX = 107
"""Bytes in the path of a Unix domain socket (unix(7))."""
SOCKET_DIRECTORY = "quorumlog-"
SOCKET_NAME_BYTES = len(f"/{SOCKET_DIRECTORY}12345678") + len(f"/.{uuid.UUID(int=0)}.sock")
"""What is added to the temporary directory: a directory, and in it names that Spark gives."""


def session(
    app_name: str = "quorumlog",
    *,
    master: str = "local[2]",
    remote: str | None = None,
    output: str | Path | None = None,
    class_archive: str | Path | None = None,
    **settings: str,
) -> SparkSession:
    """Return a session with both data sources registered and their filters pushed down.

    Streaming queries that read from a log report to it how far they are (`PositionListener`).

    `master`: with any but a local one, this process listens at SPARK_LOCAL_IP, or else at the
    address of this machine's name, where executors must reach it; locally at the loopback address.
    `remote`: `sc://host:port` of a Spark Connect server instead; nothing is started, and `master`,
    `output` and `class_archive` mean nothing. Its Python workers need quorumlog.
    `output`: a file for what the JVM and Spark's workers write to standard error (None: this
    process's). `class_archive`: a directory that keeps Spark's loaded classes, which halves the
    JVM's start; filled on the first use (half a minute). `settings`: further Spark settings with
    `_` for `.`, such as spark_driver_memory="4g". Where a session exists already it is returned,
    with the settings that can still be changed. Raises `ConfigError` when there is no Java, or no
    address.
    """
    if remote is not None:
        return _connected(app_name, remote, settings)
    local = master.startswith("local")
    address = LOOPBACK if local else own_address()
    choice = prepare_environment(address, own_python=local)
    java_options = JAVA_OPTIONS
    if class_archive is not None:
        java_options += " " + class_archive_options(Path(class_archive), choice)
    builder = (
        SparkSession.builder.appName(app_name)
        .master(master)
        .config("spark.driver.bindAddress", address)
        .config("spark.driver.host", address)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.driver.extraJavaOptions", java_options)
    )
    if local:
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        for name, value in socket_settings().items():
            builder = builder.config(name, value)
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    with _standard_error_to(output), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=PANDAS_WARNING)
        spark = builder.getOrCreate()
    register(spark)
    if spark not in _reporting:
        spark.streams.addListener(PositionListener())
        _reporting.add(spark)
    return spark


def _connected(app_name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect.

    Nothing is registered: the server finds the data sources by the names of their modules. Nor is a
    listener for positions added, for which Spark Connect keeps a call open. Raises `ConfigError`
    when nobody listens at the address, which Spark would try for ten minutes.
    """
    check_remote(remote)
    builder = SparkSession.builder.appName(app_name).remote(remote)
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=PANDAS_WARNING)
        return builder.getOrCreate()


def check_remote(remote: str) -> None:
    """Raise `ConfigError` unless somebody listens at an address of Spark Connect."""
    found = urlsplit(remote)
    try:
        port = found.port or CONNECT_PORT
    except ValueError:
        port = 0
    if found.scheme != "sc" or not found.hostname or not port:
        raise ConfigError(f"remote {remote!r} is not sc://host:port of a Spark Connect server")
    try:
        socket.create_connection((found.hostname, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"no Spark Connect server answers at {remote} ({reason_of(error)}); is the address "
            "right, and does it run (start-connect-server.sh)?"
        ) from error


def prepare_environment(address: str = LOOPBACK, *, own_python: bool = True) -> JavaChoice:
    """Set what Spark's launcher and workers read from the environment; before the first session.

    `own_python`: workers run this process's interpreter, not what PYSPARK_PYTHON names. Raises
    `ConfigError` when there is no Java.
    """
    choice = java_home()
    os.environ["JAVA_HOME"] = choice.home
    if own_python:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else python3 of PATH
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", address)  # a host name that does not resolve is fatal
    return choice


def socket_settings() -> dict[str, str]:
    """Return settings by which Spark and its Python workers use Unix domain sockets.

    A scan takes a quarter less time than over TCP. The sockets lie in a directory of their own,
    which goes with this process. None where the path of the temporary directory is too long.
    """
    if len(os.fsencode(tempfile.gettempdir())) > SOCKET_PATH_MAX - SOCKET_NAME_BYTES:
        return {}
    directory = tempfile.mkdtemp(prefix=SOCKET_DIRECTORY)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def own_address() -> str:
    """Return the address at which executors on other machines find this process.

    Raises `ConfigError` if this machine's own name has none.
    """
    named = os.environ.get("SPARK_LOCAL_IP")
    if named:
        return named
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ConfigError(
            "this machine's own name has no address; set SPARK_LOCAL_IP to one that Spark's "
            f"executors can reach: {reason_of(error)}"
        ) from error


@contextmanager
def _standard_error_to(path: str | Path | None) -> Iterator[None]:
    """Let processes started meanwhile write their standard error to a file."""
    if path is None:
        yield
        return
    own = os.dup(2)
    with Path(path).open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
