"""Class data sharing: Spark's classes as the JVM has loaded them once, kept in a file.

Half of the time that Spark takes to start goes into loading and checking some ten thousand classes.
A JVM that is given such a file maps it instead (JEP 350).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark

from quorumlog.model.errors import ConfigError
from quorumlog.spark.runtime.java import JavaChoice

MAKE_SECONDS = 300.0
"""How long making the file may take; it is some 15 seconds of work."""
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
"""A file that does not fit is passed over; the JVM would warn on standard output."""


def class_archive_options(directory: Path, java: JavaChoice) -> str:
    """Return the Java options that use the file for this Java and this Spark; make it if need be.

    Raises `ConfigError` if it cannot be made.
    """
    path = directory / f"spark-{pyspark.__version__}-java-{java.version}.jsa"
    if any(character.isspace() for character in str(path)):
        raise ConfigError(f"Java takes no class archive with a blank in its path: '{path}'")
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _make(path)
    return f"-XX:SharedArchiveFile={path} {QUIET}"


def _make(path: Path) -> None:
    """Let another process start Spark, use it, and leave its classes; in place when complete."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        try:
            done = subprocess.run(  # noqa: S603  (this interpreter)
                [sys.executable, "-m", "quorumlog.spark.runtime.class_archive", str(made)],
                capture_output=True,
                text=True,
                timeout=MAKE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"making {path} took over {MAKE_SECONDS:g} seconds") from error
        if not made.exists():
            said = (done.stderr + done.stdout).strip()[-2000:]
            raise ConfigError(f"this Java made no class archive; leave it out. It said: {said}")
        made.replace(path)


def _use_spark(path: str) -> None:
    """Do once what sessions do, then end the JVM, which writes its classes to the path."""
    from quorumlog.spark.runtime.session import JAVA_OPTIONS, session  # noqa: PLC0415  (circle)

    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={path}"
    spark = session(spark_driver_extraJavaOptions=options)
    gateway: Any = spark.sparkContext._gateway
    with tempfile.TemporaryDirectory() as directory:
        spark.range(1000).selectExpr("id % 7 AS k", "id").groupBy("k").sum("id").write.parquet(
            f"{directory}/rows"
        )
        rows = spark.read.parquet(f"{directory}/rows").orderBy("k")
        rows.collect()
        stream = spark.readStream.schema(rows.schema).parquet(f"{directory}/rows")
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()
        spark.stop()
    gateway.proc.stdin.close()  # what ends a JVM that PySpark started
    gateway.proc.wait()
    os._exit(0)  # nothing is left to be told good-bye


if __name__ == "__main__":
    _use_spark(sys.argv[1])
