"""What the jobs share: work that is divided into tasks, each run as a task of Spark."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.worker import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

Task: TypeAlias = Callable[[], bytes]
"""Work of one task; it can be pickled and repeated, and returns what the driver must know."""
RunTasks: TypeAlias = Callable[[Sequence[Task]], list[bytes]]
"""Runs tasks, in any order, and returns their results in the order of the tasks."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of entries (or tasks) that are done, and with the total."""

ROUND_TASKS_PER_CORE = 4
"""Tasks per core in one round; after each round the job reports, and saves, its progress."""
RANGE_TO_COUNT = 65_536
"""Numbers enough for each partition of a range to have some."""
_RAISED = re.compile(
    r"^(?:: )?(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)$"
)


class PipelineError(QuorumlogError):
    """A pipeline cannot do, or did not do, what was asked; the message says what to do."""


def no_progress(done: int, total: int) -> None:
    """Report to nobody."""


def is_remote(spark: "SparkSession") -> bool:
    """Whether a session is one of Spark Connect: it has no Spark in this process, and no RDDs."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def cores_of(spark: "SparkSession") -> int:
    """Return how many tasks Spark runs at a time by default."""
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    # a client of Spark Connect cannot ask for it, but a range without a number of partitions has
    # exactly as many
    numbers = spark.range(RANGE_TO_COUNT).selectExpr("spark_partition_id() AS partition")
    return numbers.distinct().count()


def run_tasks(spark: "SparkSession", tasks: Sequence[Task]) -> list[bytes]:
    """Run tasks with Spark and return their results in order.

    Raises `PipelineError` with the reason when a task fails permanently.
    """
    if not tasks:
        return []
    work = tuple(tasks)
    return _by_query(spark, work) if is_remote(spark) else _by_rdd(spark, work)


def _by_rdd(spark: "SparkSession", work: tuple[Task, ...]) -> list[bytes]:
    """Run tasks without a query that Spark would have to plan."""
    # an extra, needed from here on only
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    def done(number: int) -> bytes:
        freeze_gc()
        return work[number]()

    numbers = spark.sparkContext.parallelize(range(len(work)), len(work))
    try:
        return numbers.map(done).collect()
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineError(f"a task failed: {reason_of(str(error))}") from error


def _by_query(spark: "SparkSession", work: tuple[Task, ...]) -> list[bytes]:
    """Run tasks by a query with a partition for each: Spark Connect has nothing else."""
    import pyarrow as pa  # noqa: PLC0415  (an extra)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    def done(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_gc()
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            results = [work[number]() for number in numbers]
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(results, pa.binary())],
                names=["number", "result"],
            )

    numbers = spark.range(0, len(work), 1, len(work))
    try:
        rows = numbers.mapInArrow(done, "number long, result binary").collect()
    except PySparkException as error:
        raise PipelineError(f"a task failed: {reason_of(str(error))}") from error
    return [bytes(row.result) for row in sorted(rows, key=lambda row: row.number)]


def reason_of(text: str) -> str:
    """Return what was raised in a task, out of the text that Spark makes of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [match for line in lines if (match := _RAISED.match(line))]
    if raised:
        return f"{raised[-1][1]}: {raised[-1][2]}"
    return lines[0] if lines else "no reason was given"


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items of an iterator whose next one is made in a thread meanwhile."""

    def following() -> list[T]:
        return list(islice(items, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="quorumlog-read-ahead") as threads:
        ahead = threads.submit(following)
        while item := ahead.result():
            ahead = threads.submit(following)
            yield item[0]
