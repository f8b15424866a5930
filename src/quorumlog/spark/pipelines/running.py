"""What the pipelines share: work in independent pieces, carried out by Spark's tasks."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.worker import spare_collections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

Piece: TypeAlias = Callable[[], bytes]
"""Work of one task; it can be pickled and repeated, and returns what the driver must know."""
RunPieces: TypeAlias = Callable[[Sequence[Piece]], list[bytes]]
"""Carries out pieces, in any order; returns what each returned, in the order of the pieces."""
Progress: TypeAlias = Callable[[int, int], None]
"""Told of entries done, of so many."""

ROUND_PIECES_PER_CORE = 4
"""Pieces a core of one round; after each round the pipeline tells, and keeps, how far it is."""
_RAISED = re.compile(
    r"^(?:: )?(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)$"
)


class PipelineError(QuorumlogError):
    """A pipeline cannot do, or did not do, what was asked; the message says what to do."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def run_pieces(spark: "SparkSession", pieces: Sequence[Piece]) -> list[bytes]:
    """Carry out each piece in a task of its own, without a query that Spark would have to plan.

    Raises `PipelineError` with the reason when a task fails for good.
    """
    # an extra, needed from here on only
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if not pieces:
        return []
    work = tuple(pieces)

    def done(number: int) -> bytes:
        spare_collections()
        return work[number]()

    numbers = spark.sparkContext.parallelize(range(len(work)), len(work))
    try:
        return numbers.map(done).collect()
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineError(f"a task failed: {reason_of(str(error))}") from error


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
