"""Spark on the log against what Spark itself has, as ratios measured in one run.

    python benchmarks/measure_spark.py [MIB] [json|hex]           # default 1024 json

Three nodes and Spark (local[2]) on this machine. A group is filled with so many MiB, in bodies of
1 KiB: JSON that repeats itself, or random hexadecimal digits, each body another; the same rows are
written as Parquet. Then, several times in turn: scans of Parquet, of the leader's files and of the
live group, as it is and with all entries sent by the leader; the archive against Spark's own writer
(each codec at its defaults); the sink against the plain Producer; triggers of an idle stream, and
of one with a row now and then, against the rate source, and of one that some other Python source
has made: a row that says nothing. Needs a dozen times the room.
"""

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery

from quorumlog.client import SyncClient, SyncProducer
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.spark import archive, session

MIB = 1 << 20
BODY_BYTES = 1_024
DISTINCT = 8_192
ROUNDS = 5
WRITES = 3
TRIGGER_ROUNDS = 2
TRIGGERS_SKIPPED = 60
TRIGGERS_WITH_A_ROW = 10
"""Of each query; that many before the first that counts, with and without rows, warm it up."""

ARCHIVED = {
    "index": "long",
    "term": "long",
    "channel": "int",
    "body": "binary",
    "body_crc": "long",
    "chain_crc": "long",
}
"""The columns of an archive; Spark's own writer writes the same."""

PARQUET = "Parquet, sum(length(body))"
BODIES = "store, sum(length(body))"
HEADERS = "store, count() without bodies"
LIVE = "live group, sum(length(body))"
SENT = "live group with localReads=false, sum(length(body))"
SPARKS = "Spark's own writer to Parquet with zstd, from the live group"
SPARKS_SNAPPY = "Spark's own writer to Parquet with snappy, from the live group"
ARCHIVE = "archive to Parquet with zstd, from the live group"
PRODUCER = "Producer"
SINK = "sink, exactly once, from Parquet"


def hex_bodies(count: int) -> Iterator[bytes]:
    """Yield bodies that compress to half their size, and in which nothing is found twice."""
    chance = random.Random(1)  # noqa: S311  (the same bodies in every run)
    for _ in range(count):
        yield chance.randbytes(BODY_BYTES // 2).hex().encode()


def json_bodies(count: int) -> Iterator[bytes]:
    """Yield bodies of JSON, of which Parquet and zstd make about what they make of events."""
    chance = random.Random(1)  # noqa: S311  (the same bodies in every run)
    words = [f"{chance.getrandbits(40):x}" for _ in range(5_000)]
    some = [
        json.dumps({"at": number, "values": chance.sample(words, 90)}).encode()[:BODY_BYTES]
        for number in range(DISTINCT)
    ]
    for number in range(count):
        yield some[number % DISTINCT].ljust(BODY_BYTES)


BODIES_OF = {"json": json_bodies, "hex": hex_bodies}


def fill(servers: str, group: str, bodies: Iterator[bytes]) -> None:
    """Append with a Producer."""
    with SyncProducer(servers, group, batch_bytes=MIB, buffer_bytes=64 * MIB) as producer:
        for body in bodies:
            producer.send(body)


def lengths(frame: DataFrame) -> int:
    """Scan all bodies."""
    (row,) = frame.selectExpr("sum(length(body)) AS bytes").collect()
    return int(row.bytes)


class OneRow(DataSource, DataSourceStreamReader):
    """A stream of Python with a row a second: what Spark needs for any source in Python."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "one-row"

    def schema(self) -> str:
        """Return the columns."""
        return "second long"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
        """Return who reads."""
        return self

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where it begins."""
        return {"second": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where it ends."""
        return {"second": int(time.time())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one task."""
        return [InputPartition(end["second"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield a row."""
        yield (partition.value,)


class Bench:
    """A cluster, a session and the files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = LocalCluster.create(
            root / "nodes", groups=("log", "plain", "rows", "slow"), data_file_bytes=256 * MIB
        )
        self.cluster.up()
        self.spark: SparkSession = session(
            "measure",
            output=root / "spark.log",
            spark_sql_streaming_noDataProgressEventInterval="0",
            spark_sql_streaming_numRecentProgressUpdates="2000",
        )
        self.spark.dataSource.register(OneRow)
        self.parquet = str(root / "parquet")

    def log(self, schema: str, *, local_reads: bool = True) -> DataFrame:
        """Return the live group."""
        reader = self.spark.read.format("quorumlog").option("servers", self.cluster.servers)
        reader = reader.option("group", "log").option("localReads", local_reads)
        return reader.schema(schema).load()

    def store(self, schema: str) -> DataFrame:
        """Return what the leader's files hold."""
        directory = self.cluster.group_directory(self.cluster.leader("log"), "log")
        return self.spark.read.format("quorumlog-store").schema(schema).load(str(directory))

    def scans(self) -> dict[str, Callable[[], object]]:
        """Return what is scanned."""
        return {
            PARQUET: lambda: lengths(self.spark.read.parquet(self.parquet)),
            BODIES: lambda: lengths(self.store("body binary")),
            HEADERS: lambda: self.store("index long").count(),
            LIVE: lambda: lengths(self.log("body binary")),
            SENT: lambda: lengths(self.log("body binary", local_reads=False)),
        }

    def writers(self) -> dict[str, Callable[[], object]]:
        """Return what writes Parquet; each run into a directory that is not there."""

        def fresh(name: str) -> Path:
            shutil.rmtree(self.root / name, ignore_errors=True)
            return self.root / name

        def rows() -> DataFrame:
            return self.log(", ".join(f"{name} {kind}" for name, kind in ARCHIVED.items()))

        return {
            SPARKS: lambda: rows().write.parquet(str(fresh("spark")), compression="zstd"),
            SPARKS_SNAPPY: lambda: rows().write.parquet(str(fresh("spark"))),
            ARCHIVE: lambda: archive(self.spark, self.cluster.servers, "log", fresh("archive")),
        }

    def appenders(
        self, bodies_of: Callable[[int], Iterator[bytes]], count: int
    ) -> dict[str, Callable[[], object]]:
        """Return what appends so many rows to a group."""

        def sink() -> None:
            rows = self.spark.read.parquet(self.parquet).where(f"index < {count}").select("body")
            writer = rows.write.format("quorumlog").option("servers", self.cluster.servers)
            writer.option("group", "rows").mode("append").save()

        return {
            PRODUCER: lambda: fill(self.cluster.servers, "plain", bodies_of(count)),
            SINK: sink,
        }

    def triggers(self, source: str) -> tuple[list[int], list[int]]:
        """Return the milliseconds of triggers without rows, and with one."""
        reader = self.spark.readStream.format(source)
        if source == "quorumlog":
            reader = reader.option("servers", self.cluster.servers).option("group", "slow")
        elif source == "rate":
            reader = reader.option("rowsPerSecond", 1)
        checkpoint = tempfile.mkdtemp(dir=self.root)
        writer = reader.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).start()
        with SyncClient(self.cluster.servers, "slow") as client:
            return self._watched(query, client)

    def _watched(self, query: StreamingQuery, client: SyncClient) -> tuple[list[int], list[int]]:
        found: tuple[list[int], list[int]] = ([], [])
        try:
            while len(found[1]) < TRIGGERS_WITH_A_ROW:
                client.append(b"a row now and then")
                time.sleep(1)
                found = ([], [])
                for progress in query.recentProgress[TRIGGERS_SKIPPED:]:
                    milliseconds = int(progress["durationMs"]["triggerExecution"])
                    found[int(progress["numInputRows"]) > 0].append(milliseconds)
        finally:
            query.stop()
        return found

    def close(self) -> None:
        """End all."""
        self.spark.stop()
        self.cluster.down()


def measure(cases: dict[str, Callable[[], object]], rounds: int, mib: float) -> dict[str, float]:
    """Return the median seconds of each, run in turn; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            if number:
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{median:7.2f} s  {mib / median:7.0f} MiB/s  {name}", flush=True)
    return medians


def watch_triggers(bench: Bench) -> dict[str, tuple[list[int], list[int]]]:
    """Return, by source, what `Bench.triggers` does of queries in turn; the first ones warm up."""
    found: dict[str, tuple[list[int], list[int]]] = {
        name: ([], []) for name in ("quorumlog", "rate", OneRow.name())
    }
    for number in range(TRIGGER_ROUNDS + 1):
        for name, (all_idle, all_busy) in found.items():
            idle, busy = bench.triggers(name)
            if number:
                all_idle.extend(idle)
                all_busy.extend(busy)
    return found


def main() -> None:
    """Fill, measure, print."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1_024
    bodies_of = BODIES_OF[sys.argv[2] if len(sys.argv) > 2 else "json"]
    count = mib * MIB // BODY_BYTES
    with guarded_directory("quorumlog-measure-") as guard:
        bench = Bench(guard.directory)
        try:
            fill(bench.cluster.servers, "log", bodies_of(count))
            bench.log("index long, term long, body binary").write.parquet(bench.parquet)
            took = measure(bench.scans(), ROUNDS, mib) | measure(bench.writers(), WRITES, mib)
            took |= measure(bench.appenders(bodies_of, count // 4), WRITES, mib / 4)
            triggers = watch_triggers(bench)
        finally:
            bench.close()
    print(f"\nstore scan            {took[PARQUET] / took[BODIES]:5.2f} x the Parquet scan")
    print(f"count without bodies  {took[BODIES] / took[HEADERS]:5.2f} x the store scan")
    print(
        f"live scan             {took[BODIES] / took[LIVE]:5.2f} x the store scan, "
        f"{took[BODIES] / took[SENT]:.2f} x where the leader sends all"
    )
    print(
        f"archive               {took[SPARKS] / took[ARCHIVE]:5.2f} x Spark's writer with zstd, "
        f"{took[SPARKS_SNAPPY] / took[ARCHIVE]:.2f} x with snappy"
    )
    print(f"sink                  {took[PRODUCER] / took[SINK]:5.2f} x the Producer")
    ours = statistics.median(triggers["quorumlog"][1])
    for name, (idle, busy) in triggers.items():
        print(
            f"trigger of {name:10} {statistics.median(busy):5.0f} ms with one row, "
            f"ours {ours / statistics.median(busy):4.2f} x (medians of {len(busy)}); "
            f"{statistics.fmean(idle):4.1f} ms without rows (mean of {len(idle)})"
        )


if __name__ == "__main__":
    main()
