"""Store files against Parquet, read by Spark, as ratios measured in one run.

    python examples/measure_spark_store.py [MIB]

Writes a store of so many MiB (256) in bodies of 1 KiB and a Parquet file of the same rows, then
scans them in turn, each several times, in a local[2] session. Needs three times the room.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.spark import session
from quorumlog.storage.files import OsFileSystem
from quorumlog.storage.store import GroupStore, open_group

MIB = 1 << 20
BODY_BYTES = 1_024
BLOCK_ENTRIES = 1_024
ROUNDS = 5
PARQUET = "Parquet, sum(length(body))"
BODIES = "store, sum(length(body))"
HEADERS = "store, count() without bodies"


def write_store(directory: Path, mib: int) -> None:
    """Write a store of one group, all of it committed."""
    config = GroupConfig(group="g", peers="n0-127.0.0.1:1")
    group = open_group(OsFileSystem(), str(directory), config, Limits(), self_id="n0")
    store = GroupStore()
    for _ in range(mib * MIB // (BODY_BYTES * BLOCK_ENTRIES)):
        bodies = [os.urandom(BODY_BYTES // 2).hex().encode() for _ in range(BLOCK_ENTRIES)]
        data = memoryview(bytearray(encode_block(bodies)))
        plan, _ = group.log.append(
            parse_block(data, count=BLOCK_ENTRIES, entry_bytes_max=4 * MIB), 1
        )
        store.execute([plan], sync=False)
        plan.completed()
    group.log.note_committed(group.log.end_index)
    checkpoint = group.log.checkpoint()
    if checkpoint is not None:
        store.execute([checkpoint], sync=True)
        checkpoint.completed()
    group.close()


def scans(spark: SparkSession, store: Path, parquet: Path) -> dict[str, Callable[[], int]]:
    """Return what is measured, by name; each returns the number that the scan found."""

    def load(schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("quorumlog-store").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(store))

    def lengths(frame: DataFrame) -> int:
        (row,) = frame.selectExpr("sum(length(body)) AS bytes").collect()
        return int(row.bytes)

    return {
        PARQUET: lambda: lengths(spark.read.parquet(str(parquet))),
        BODIES: lambda: lengths(load("body binary")),
        f"{BODIES}, verifyCrc=none": lambda: lengths(load("body binary", verifyCrc="none")),
        f"{BODIES}, all columns": lambda: lengths(load()),
        HEADERS: lambda: load("index long").count(),
        f"{HEADERS}, includeAll": lambda: load("index long", includeAll="true").count(),
    }


def measure(cases: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Return the median seconds of each, run one after the other in every round."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(ROUNDS + 1):
        for name, scan in cases.items():
            begun = time.perf_counter()
            found = scan()
            if not found:
                raise SystemExit(f"{name}: found nothing")
            if number:  # the first round warms the JVM and the workers up
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Write, scan, print."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_store(root / "g", mib)
        spark = session("measure", output=root / "spark.log")
        source = spark.read.format("quorumlog-store").load(str(root / "g"))
        source.select("index", "term", "body").write.parquet(str(root / "parquet"))
        seconds = measure(scans(spark, root / "g", root / "parquet"))
        spark.stop()
    for case, median in seconds.items():
        print(f"{median:7.2f} s  {mib / median:7.0f} MiB/s  {case}")
    bodies = seconds[BODIES]
    print(f"\nbody scan: {seconds[PARQUET] / bodies:.2f} x the Parquet scan")
    print(f"count without bodies: {bodies / seconds[HEADERS]:.2f} x the body scan")


if __name__ == "__main__":
    main()
