"""Saves time in the Python processes in which Spark plans jobs and runs tasks."""

import gc
from functools import cache


@cache
def freeze_gc() -> None:
    """Exclude all objects that are loaded now from garbage collection; once in a process.

    Spark's worker collects after each task, which visits every object of every module: 20 to 40
    milliseconds that the next task waits. It is called where a task or a plan starts, never on
    import.
    """
    gc.freeze()
