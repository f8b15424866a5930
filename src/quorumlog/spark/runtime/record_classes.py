"""Use Spark once and save the classes that the JVM loaded to a file; `class_archive` runs this."""

import os
import sys
import tempfile
from typing import Any

from quorumlog.spark.runtime.java import JAVA_OPTIONS
from quorumlog.spark.runtime.session import session


def record_classes(path: str) -> None:
    """Do once what sessions do, then end the JVM, which writes its classes to the path."""
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
    os._exit(0)  # the JVM that exit handlers would stop is gone


if __name__ == "__main__":
    record_classes(sys.argv[1])
