"""Running a pipeline's pieces as one Spark job, and telling meanwhile how far it is."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumlog.spark.pipelines.running import Piece, Progress, no_progress, run_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.25


def run_watched(
    spark: "SparkSession", pieces: Sequence[Piece], progress: Progress = no_progress
) -> list[bytes]:
    """Carry out each piece in a task of its own; `progress` hears of tasks done, of so many.

    Raises `PipelineError` with the reason when a task fails for good.
    """
    if progress is no_progress:
        return run_pieces(spark, pieces)
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks == len(pieces):
                    progress(info.numCompletedTasks, len(pieces))

    watcher = threading.Thread(target=look, name="quorumlog-progress", daemon=True)
    watcher.start()
    try:
        results = run_pieces(spark, pieces)
    finally:
        ended.set()
        watcher.join()
    progress(len(pieces), len(pieces))
    return results
