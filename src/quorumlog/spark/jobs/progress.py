"""Running a pipeline's pieces as one Spark job, and telling meanwhile how far it is."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quorumlog.spark.jobs.tasks import (
    Piece,
    Progress,
    is_remote,
    no_progress,
    run_pieces,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.25


def run_with_progress(
    spark: "SparkSession", pieces: Sequence[Piece], progress: Progress = no_progress
) -> list[bytes]:
    """Carry out each piece in a task of its own; `progress` hears of tasks done, of so many.

    Raises `PipelineError` with the reason when a task fails for good.
    """
    if progress is no_progress:
        return run_pieces(spark, pieces)
    watch = _told if is_remote(spark) else _polled
    with watch(spark, len(pieces), progress):
        results = run_pieces(spark, pieces)
    progress(len(pieces), len(pieces))
    return results


@contextmanager
def _told(spark: "SparkSession", count: int, progress: Progress) -> Iterator[None]:
    """Have Spark Connect tell how many tasks of a job of so many are done."""

    def heard(stages: Iterable[Any] | None, *_: object, **__: object) -> None:
        for stage in stages or ():
            if stage.num_tasks == count:
                progress(stage.num_completed_tasks, count)

    remote: Any = spark  # only its sessions have handlers
    remote.registerProgressHandler(heard)
    try:
        yield
    finally:
        remote.removeProgressHandler(heard)


@contextmanager
def _polled(spark: "SparkSession", count: int, progress: Progress) -> Iterator[None]:
    """Look, now and then, how many tasks of a job of so many are done."""
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks == count:
                    progress(info.numCompletedTasks, count)

    watcher = threading.Thread(target=look, name="quorumlog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
