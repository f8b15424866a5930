"""Write what is new in a group to Parquet, each entry exactly once; run it as often as you like.

    python examples/spark_stream.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights /tmp/out

The checkpoint below the directory remembers the position. `.trigger(processingTime="1 second")` in
place of `availableNow` makes a query that never ends.
"""

import sys

from pyspark.sql import functions as f

from quorumlog.spark import LagListener, session

if len(sys.argv) != 4:
    raise SystemExit(__doc__)
servers, group, directory = sys.argv[1:]
spark = session("stream")
spark.streams.addListener(LagListener())  # prints the lag of the query, in entries

query = (
    spark.readStream.format("quorumlog")
    .option("servers", servers)
    .option("group", group)
    .option("startingOffsets", "earliest")  # counts only for a new checkpoint
    .load()
    .select("index", "term", f.col("body").cast("string").alias("text"))
    .writeStream.format("parquet")
    .queryName("to parquet")
    .option("checkpointLocation", f"{directory}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{directory}/entries")
)
query.awaitTermination()

written = spark.read.parquet(f"{directory}/entries")
print(f"{written.count()} entries, {written.select('index').distinct().count()} indexes")
spark.stop()
