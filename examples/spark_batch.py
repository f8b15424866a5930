"""Read a group with Spark as a batch, and append what was computed to another group.

python examples/spark_batch.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights totals
"""

import sys

from pyspark.sql import functions as f

from quorumlog.spark import session

if len(sys.argv) != 4:
    raise SystemExit(__doc__)
servers, group, target = sys.argv[1:]
spark = session("batch")

entries = (
    spark.read.format("quorumlog")
    .option("servers", servers)
    .option("group", group)
    .load()  # index, term, channel, body, body_crc: all that is committed now
)
totals = entries.groupBy("term").agg(
    f.count("*").alias("entries"), f.sum(f.length("body")).alias("bytes")
)
totals.orderBy("term").show()

(
    totals.select(f.to_json(f.struct("*")).alias("body"))
    .write.format("quorumlog")
    .option("servers", servers)
    .option("group", target)
    .mode("append")
    .save()  # as a whole, or not at all
)
spark.stop()
