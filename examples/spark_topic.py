"""Read a topic with Spark: what it holds as a batch, then what is produced to it as a stream.

python examples/spark_topic.py 127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094 flights CHECKPOINT

The stream ends once it has read what is there; started again with the same directory CHECKPOINT,
it reads what was produced meanwhile.
"""

import sys

from pyspark.sql import functions as f

from quorumlog.spark import session

if len(sys.argv) != 4:
    raise SystemExit(__doc__)
servers, topic, checkpoint = sys.argv[1:]
spark = session("topic")
options = {"kafka.bootstrap.servers": servers, "subscribe": topic}

records = spark.read.format("quorumlog").options(**options).load()
records.agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes")).show()

stream = spark.readStream.format("quorumlog").options(**options)
stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10_000).load()
texts = stream.selectExpr("partition", "offset", "cast(value as string) as text")
query = (
    texts.writeStream.foreachBatch(lambda batch, _: batch.show())
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
