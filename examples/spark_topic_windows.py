"""Count the records of a topic by windows of a minute with Spark, into another topic, each once.

python examples/spark_topic_windows.py 127.0.0.1:9092,127.0.0.1:9093 flights counts CHECKPOINT

A window is written when it is closed: once records are there that are two minutes newer. Start it
again with the same directory CHECKPOINT: it goes on with what was produced meanwhile, and whoever
reads committed records sees each window once, even if it was killed.
"""

import sys

from pyspark.sql import functions as f

from quorumlog.spark import session

if len(sys.argv) != 5:
    raise SystemExit(__doc__)
servers, source, target, checkpoint = sys.argv[1:]
spark = session("windows")
records = (
    spark.readStream.format("quorumlog")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
)
counts = (
    records.withWatermark("timestamp", "2 minutes")
    .groupBy(f.window("timestamp", "1 minute"), "key")
    .count()
    .select(
        "key", f.to_json(f.struct(f.col("window.start").alias("since"), "count")).alias("value")
    )
)
query = (
    counts.writeStream.format("quorumlog")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
