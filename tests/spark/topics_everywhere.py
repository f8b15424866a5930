"""What Spark does with topics, as a program: for Spark Connect, and for clusters of other machines.

    python tests/spark/topics_everywhere.py MASTER_OR_REMOTE SERVERS DIRECTORY

The topics `everywhere-in` and `everywhere-out` are there and empty. Rows are written to the first
one, streamed into the second with a listener for lag, archived, audited, counted and replayed, in
the directory, which all machines share. It prints what it found as JSON, then the result of
`quorumlog pipeline stats`; each step is told on standard error.
"""

import io
import json
import sys
import threading
import time

from quorumlog.cli.main import main
from quorumlog.spark import (
    LagListener,
    archive_topics,
    audit_topics,
    read_archive,
    replay_topics,
    session,
    topic_stats,
)

ROWS, PARTITIONS = 300, 2
INPUT, OUTPUT, AGAIN = "everywhere-in", "everywhere-out", "everywhere-again"
EXPECTED = {
    "seen": ROWS,
    "archived": 2 * ROWS,
    "read": ROWS,
    "clean": True,
    "counted": ROWS,
    "replayed": ROWS,
}
LAG_S = 120.0
"""How long the listener may take to be told of the stream's progress and end."""


class EndingListener(LagListener):
    """Tells when it has been told that its query ended, of which nothing else is told then.

    Only then may it be removed: PySpark's listener over Spark Connect is never removed while an
    event is on its way (SPARK-59623).
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.ended = threading.Event()

    def onQueryTerminated(self, event):  # noqa: N802  (name of Spark)
        super().onQueryTerminated(event)
        self.ended.set()


def tell(text):
    print(f"{time.monotonic():.1f} {text}", file=sys.stderr, flush=True)


def write(spark, reached):
    """Write rows to the first topic."""
    rows = spark.range(ROWS).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    rows.write.format("quorumlog").options(**reached, topic=INPUT).mode("append").save()


def stream(spark, reached, base):
    """Stream all that is there into the second topic; the listener is told of each partition."""
    lines = io.StringIO()
    listener = EndingListener(output=lines)
    spark.streams.addListener(listener)
    reader = spark.readStream.format("quorumlog").option("startingOffsets", "earliest")
    rows = reader.options(**reached, subscribe=INPUT).load()
    rows = rows.selectExpr("concat('seen ', cast(value AS string)) AS value")
    writer = rows.writeStream.format("quorumlog").options(**reached, topic=OUTPUT)
    writer = writer.option("checkpointLocation", f"{base}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    tell("the stream has ended")
    assert listener.ended.wait(LAG_S), f"the end was not told, only {lines.getvalue()!r}"
    expected = {f"{INPUT}-{number}" for number in range(PARTITIONS)}
    assert expected <= set(lines.getvalue().split())
    spark.streams.removeListener(listener)


def run(spark, servers, base):
    """Return what was found, by the names in `EXPECTED`."""
    reached = {"kafka.bootstrap.servers": servers}
    write(spark, reached)
    tell("written")
    stream(spark, reached, base)
    tell("streamed")
    seen = spark.read.format("quorumlog").options(**reached, subscribe=OUTPUT).load()
    seen = seen.selectExpr("cast(value AS string) text").distinct().where("text like 'seen %'")
    found = {"seen": seen.count()}
    tell("read")
    found["archived"] = archive_topics(spark, servers, [INPUT, OUTPUT], f"{base}/archive").rows
    tell("archived")
    found["read"] = read_archive(spark, f"{base}/archive", topics=INPUT).count()
    found["clean"] = audit_topics(spark, f"{base}/archive", servers).is_clean
    tell("audited")
    found["counted"] = topic_stats(spark, servers, OUTPUT).records
    tell("counted")
    names = {INPUT: AGAIN}
    replayed = replay_topics(f"{base}/archive", servers, INPUT, names=names)
    found["replayed"] = replayed.produced_records
    tell("replayed")
    return found


def start():
    """Run all over the given master or remote."""
    where, servers, base = sys.argv[1:]
    is_remote = where.startswith("sc://")
    option = "remote" if is_remote else "master"
    spark = session("everywhere", **{option: where})
    tell("the session is there")
    print(json.dumps(run(spark, servers, base)), flush=True)
    spark.stop()
    arguments = ["pipeline", "stats", "--bootstrap-server", servers, "-t", AGAIN, "--json"]
    return main([*arguments, f"--{option}", where])


if __name__ == "__main__":
    sys.exit(start())
