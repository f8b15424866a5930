"""The Spark job: committed log → JSON → partitioned Parquet, mean delays, one chart."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from quorumlog.client import Context
from quorumlog.client.contexts import Access
from quorumlog.spark import session
from quorumlog.spark.access import options_of

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # the backend has to be chosen first

FLIGHT_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, "
    "arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time double, distance double, hour int, "
    "minute int, time_hour string"
)
CHART_INCHES = (11.0, 4.5)


@dataclass(frozen=True, slots=True)
class Delay:
    """Mean departure delay in minutes over `flights` flights of one key."""

    key: str
    minutes: float
    flights: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the job found and wrote."""

    by_carrier: list[Delay]
    by_hour: list[Delay]
    parquet: Path
    chart: Path
    job_seconds: float


@contextmanager
def started(output: Path, console: Console) -> Iterator[tuple[SparkSession, float]]:
    """Yield a session, which ends with the block, and in how many seconds it started."""
    before = time.monotonic()
    spark = session("quorumlog demo", output=output / "spark.log")
    seconds = time.monotonic() - before
    console.print(f"  Spark {spark.version} started in {seconds:.1f} s")
    try:
        yield spark, seconds
    finally:
        spark.stop()


def analyse(spark: SparkSession, cluster: Context, group: str, output: Path) -> Analysis:
    """Run the job against the live cluster; write under `output`."""
    ready = time.monotonic()
    parquet = output / "flights.parquet"
    where = options_of(Access(given=cluster), "servers")
    log = spark.read.format("quorumlog").options(**where).option("group", group).load()
    flights = log.select(
        "index", "body", f.from_json(f.col("body").cast("string"), FLIGHT_SCHEMA).alias("v")
    ).select("index", "body", "v.*")
    flights.write.mode("overwrite").partitionBy("month").parquet(str(parquet))
    by_carrier, by_hour = _delays(spark, parquet)
    chart = output / "delays.png"
    draw_chart(by_carrier, by_hour, chart)
    return Analysis(by_carrier, by_hour, parquet, chart, time.monotonic() - ready)


def _delays(spark: SparkSession, parquet: Path) -> tuple[list[Delay], list[Delay]]:
    # a record that was sent again after the kill counts once
    flights = spark.read.parquet(str(parquet)).dropDuplicates(["body"])
    flights = flights.where("dep_delay is not null").cache()
    return _mean_delay(flights, "carrier"), _mean_delay(flights, "hour")


def _mean_delay(flights: DataFrame, key: str) -> list[Delay]:
    rows = (
        flights.groupBy(key)
        .agg(f.avg("dep_delay").alias("minutes"), f.count("*").alias("flights"))
        .orderBy(key)
        .collect()
    )
    return [Delay(str(row[key]), float(row["minutes"]), int(row["flights"])) for row in rows]


def delay_table(title: str, key: str, delays: list[Delay]) -> Table:
    """Return a table for the terminal."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(key)
    table.add_column("mean delay, min", justify="right")
    table.add_column("flights", justify="right")
    for delay in delays:
        table.add_row(delay.key, f"{delay.minutes:.1f}", f"{delay.flights:,}")
    return table


def draw_chart(by_carrier: list[Delay], by_hour: list[Delay], path: Path) -> None:
    """Draw both groupings side by side as a PNG."""
    figure, (left, right) = plt.subplots(1, 2, figsize=CHART_INCHES, sharey=True)
    ordered = sorted(by_carrier, key=lambda delay: delay.minutes, reverse=True)
    left.bar(
        [delay.key for delay in ordered], [delay.minutes for delay in ordered], color="#33658a"
    )
    left.set_title("by carrier")
    left.set_xlabel("carrier")
    left.set_ylabel("mean departure delay (minutes)")
    right.bar(
        [delay.key for delay in by_hour], [delay.minutes for delay in by_hour], color="#f26419"
    )
    right.set_title("by scheduled hour")
    right.set_xlabel("hour of day")
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Departure delays, New York City airports, 2013")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
