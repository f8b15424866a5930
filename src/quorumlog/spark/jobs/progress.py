"""Runs the tasks of a job as one job of Spark, and reports progress meanwhile."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quorumlog.spark.jobs.tasks import (
    Progress,
    Task,
    is_remote,
    no_progress,
    run_tasks,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.25


def run_with_progress(
    spark: "SparkSession", tasks: Sequence[Task], progress: Progress = no_progress
) -> list[bytes]:
    """Run tasks; `progress` is called with the number of finished tasks and of all tasks.

    Raises `PipelineError` with the reason when a task fails permanently.
    """
    if progress is no_progress:
        return run_tasks(spark, tasks)
    watch = _by_notification if is_remote(spark) else _by_polling
    with watch(spark, len(tasks), progress):
        results = run_tasks(spark, tasks)
    progress(len(tasks), len(tasks))
    return results


@contextmanager
def _by_notification(spark: "SparkSession", count: int, progress: Progress) -> Iterator[None]:
    """Report the progress that Spark Connect reports of the job with `count` tasks."""

    def notified(stages: Iterable[Any] | None, *_: object, **__: object) -> None:
        for stage in stages or ():
            if stage.num_tasks == count:
                progress(stage.num_completed_tasks, count)

    remote: Any = spark  # only its sessions have handlers
    remote.registerProgressHandler(notified)
    try:
        yield
    finally:
        remote.removeProgressHandler(notified)


@contextmanager
def _by_polling(spark: "SparkSession", count: int, progress: Progress) -> Iterator[None]:
    """Poll Spark for the finished tasks of the job with `count` tasks, and report them."""
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks == count:
                    progress(info.numCompletedTasks, count)

    watcher = threading.Thread(target=poll, name="quorumlog-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
