"""A table of all flights, read from the log once each, and delays written back to it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
SERVERS = spark.conf.get("spark.quorumlog.servers")
SCHEMA = (
    "time_hour string, carrier string, flight int, origin string, dest string, dep_delay double"
)

dp.create_sink(
    "late_flights_log",
    "quorumlog",
    {"servers": SERVERS, "group": "late", "transactionTimeoutMs": "1m"},
)


@dp.table
def flights() -> DataFrame:
    """Return the flights of the log; each update of the pipeline reads what is new."""
    return (
        spark.readStream.format("quorumlog")
        .option("servers", SERVERS)
        .option("group", "flights")
        .option("startingOffsets", "earliest")
        .load()
        .select("index", f.from_json(f.col("body").cast("string"), SCHEMA).alias("flight"))
        .select("index", "flight.*", f.to_timestamp("flight.time_hour").alias("at"))
    )


@dp.append_flow(target="late_flights_log")
def late_flights() -> DataFrame:
    """Return flights over two hours late, for the second group: every row once."""
    late = spark.readStream.table("flights").where("dep_delay > 120")
    return late.select(f.to_json(f.struct("carrier", "flight", "at", "dep_delay")).alias("body"))


@dp.materialized_view
def delays() -> DataFrame:
    """Return the mean delay of each airport."""
    return (
        spark.read.table("flights")
        .groupBy("origin")
        .agg(f.count("*").alias("flights"), f.round(f.avg("dep_delay"), 1).alias("minutes"))
    )
