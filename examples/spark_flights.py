"""Flights as a stream: delays by hour with a watermark, to the console, to Parquet, and back.

    python examples/spark_flights.py [RECORDS]        # default 20000

A cluster of three processes is started in a temporary directory. Flights of 2013 go into its group
`flights`; one streaming query reads them, and writes mean delays of each airport and six hours to
Parquet, and as JSON into the group `delays`, each row once; a batch reads those back at the end.
"""

# %% A cluster with two groups, and real flights in one of them
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from quorumlog import SyncProducer
from quorumlog.demo.analyse import FLIGHT_SCHEMA
from quorumlog.demo.flights import flight_bodies
from quorumlog.local import Guard, LocalCluster
from quorumlog.spark import LagListener, session

records = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
directory = Path(tempfile.mkdtemp(prefix="quorumlog-flights-"))
guard = Guard(directory)  # ends the nodes if this script does not come to its end
cluster = LocalCluster.create(directory / "nodes", groups=("flights", "delays"))
cluster.up()
with SyncProducer(cluster.servers, "flights") as producer:
    for body in flight_bodies(records):
        producer.send(body)
print(f"{records:,} flights are in the log; everything is below {directory}")

# %% A stream of flights
spark = session("flights")
spark.streams.addListener(LagListener())
flights = (
    spark.readStream.format("quorumlog")
    .option("servers", cluster.servers)
    .option("group", "flights")
    .option("startingOffsets", "earliest")
    .option("maxEntriesPerTrigger", 5_000)
    .load()
    .select(f.from_json(f.col("body").cast("string"), FLIGHT_SCHEMA).alias("flight"))
    .select("flight.*", f.to_timestamp("flight.time_hour").alias("at"))
)

# %% Mean delays of windows of six hours; a flight that is over a week late is left out
delays = (
    flights.where("dep_delay is not null")
    .withWatermark("at", "7 days")
    .groupBy(f.window("at", "6 hours"), "origin")
    .agg(f.avg("dep_delay").alias("minutes"), f.count("*").alias("flights"))
    .select(f.col("window.start").alias("since"), "origin", "minutes", "flights")
)


# %% Written to Parquet and, as JSON, into the second group: each window once, when it is closed
def write(batch: DataFrame, batch_id: int) -> None:
    """Write a batch to both; a batch that is done again changes neither."""
    batch.persist()
    batch.write.mode("overwrite").parquet(str(directory / "delays" / f"batch={batch_id}"))
    (
        batch.select(f.to_json(f.struct("*")).alias("body"))
        .write.format("quorumlog")
        .option("servers", cluster.servers)
        .option("group", "delays")
        .option("transactionalId", "flights to delays")
        .option("batchId", batch_id)
        .mode("append")
        .save()
    )
    batch.orderBy(f.desc("minutes")).show(3, truncate=False)
    batch.unpersist()


query = (
    delays.writeStream.outputMode("append")
    .queryName("delays")
    .option("checkpointLocation", str(directory / "checkpoint"))
    .foreachBatch(write)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% What is in the second group
written = (
    spark.read.format("quorumlog")
    .option("servers", cluster.servers)
    .option("group", "delays")
    .load()
    .select(f.from_json(f.col("body").cast("string"), delays.schema).alias("delay"))
    .select("delay.*")
)
written.groupBy("origin").agg(
    f.count("*").alias("windows"),
    f.sum("flights").alias("flights"),
    f.max("minutes").alias("worst"),
).orderBy("origin").show()
spark.stop()
cluster.down()
guard.close()
