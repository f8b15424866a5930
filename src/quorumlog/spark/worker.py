"""What is spared the Python processes in which Spark plans jobs and runs tasks."""

import gc
from functools import cache


@cache
def freeze_gc() -> None:
    """Leave what is loaded by now out of collections of garbage; once in a process.

    Spark's worker collects after each task, which looks at every object of every module: 20 to 40
    milliseconds that the next task waits. Called where a task or a plan begins, never on import.
    """
    gc.freeze()
