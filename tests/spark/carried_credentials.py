"""Reads and writes a secure cluster from executors that have no file of contexts.

    QUORUMLOG_CONTEXTS=contexts.toml python carried_credentials.py EVENTS

Spark starts its executors as processes of their own in another directory, where there is no such
file. While a stream runs, later.toml takes the place of the file, and the user whom it named is
removed. The program prints one object in JSON: what was read, and why it fails if each machine is
to read the context.
"""

import json
import shutil
import sys
from pathlib import Path

import pyspark

from quorumlog import SyncClient, find_context
from quorumlog.spark import session

ROWS = 100


def process(streams):
    """Wait until each has read what there is."""
    for stream in streams:
        stream.processAllAvailable()


def main():
    (events,) = map(Path, sys.argv[1:])
    spark = session(
        "credentials",
        master="local-cluster[1,2,1024]",
        output=events.parent / "spark.log",
        spark_eventLog_enabled="true",
        spark_eventLog_compress="false",
        spark_eventLog_dir=events.as_uri(),
        spark_authenticate="true",
        spark_authenticate_secret="of this test",
        spark_network_crypto_enabled="true",
    )
    options = {"context": "prod", "credentials": "driver"}

    def entries(**others):
        frame = spark.read.format("quorumlog").options(**{**options, **others})
        return frame.option("group", "default").load()

    rows = spark.range(ROWS).selectExpr("cast(id as string) body", "cast(id as string) value")
    to_group = rows.select("body").write.format("quorumlog").options(**options)
    to_group.option("group", "default").mode("append").save()
    to_topic = rows.select("value").write.format("quorumlog").options(**options)
    to_topic.option("topic", "carried").mode("append").save()
    topic = spark.read.format("quorumlog").options(**options).option("subscribe", "carried").load()
    follow = spark.readStream.format("quorumlog").options(**options, group="default")
    followed = follow.options(startingIndex="earliest", minPartitions=2).load()
    shown = followed.writeStream.format("memory").queryName("streamed")
    copied = followed.selectExpr("body value").writeStream.format("quorumlog")
    copied = copied.options(**options, topic="carried")
    streams = [
        one.option("checkpointLocation", str(events.parent / f"checkpoint{number}")).start()
        for number, one in enumerate((shown, copied))
    ]
    process(streams)
    with SyncClient(find_context("admin"), "default") as client:
        for number in range(ROWS, 3 * ROWS):
            if number == 2 * ROWS:
                Path("later.toml").replace("contexts.toml")
                process(streams)
                client.security.remove_user("alice")
            client.append(str(number).encode())
    process(streams)
    for stream in streams:
        stream.stop()
    frame = entries().selectExpr("cast(body as string) body")
    plan = frame._jdf.queryExecution().toString()
    found = {
        "group": sorted(int(row.body) for row in frame.collect()),
        "topic": topic.count(),
        "stream": spark.table("streamed").count(),
        "plan": plan,
    }
    try:
        entries(credentials="here").collect()
        found["here"] = "was read"
    except Exception as error:
        found["here"] = str(error)
    spark.stop()
    # where Spark runs executors of this kind
    shutil.rmtree(Path(pyspark.__file__).with_name("work"), ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
