"""Reads and writes a secure cluster from executors that have no file of contexts.

    QUORUMLOG_CONTEXTS=FILE python carried_credentials.py EVENTS

Spark starts its executors as processes of their own, which know another file of contexts, an empty
one. The program prints one object in JSON: what was read, and why it fails if each machine is to
read the context.
"""

import json
import os
import sys
from pathlib import Path

from quorumlog.spark import session

ROWS = 100


def main():
    (events,) = map(Path, sys.argv[1:])
    empty = events.parent / "empty.toml"
    empty.touch(0o600)
    # the name of this setting is not one that `session` could be given
    setting = f"spark.executorEnv.QUORUMLOG_CONTEXTS={empty}"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf {setting} pyspark-shell"
    spark = session(
        "credentials",
        master="local-cluster[1,2,1024]",
        output=events.parent / "spark.log",
        spark_eventLog_enabled="true",
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
    stream = (
        spark.readStream.format("quorumlog")
        .options(**options, group="default", startingIndex="earliest")
        .load()
        .writeStream.format("memory")
        .queryName("streamed")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(events.parent / "checkpoint"))
        .start()
    )
    stream.awaitTermination()
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
    print(json.dumps(found))


if __name__ == "__main__":
    main()
