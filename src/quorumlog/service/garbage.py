"""When a node's process collects garbage: reference cycles, which nothing else frees.

A collection of the young generations takes a millisecond. A full collection takes 1 ms for 1,000 to
2,000 objects, while nobody is answered: 100 to 200 ms with 4,000 connections (measured). Python
runs one whenever the number of objects has grown by a quarter, and so most often while clients
connect. Nothing in a node needs it: connections, requests and entries are freed as soon as they are
not used any more. So a full collection runs once a minute at most, in case something makes cycles
after all.
"""

import asyncio
import gc

YOUNG_OBJECTS = 7_000
"""The youngest objects are looked at when there are so many more of them than at the last time.
With Python's 700 a node does so after every twenty appends, mostly in vain: what they made is freed
when they are answered. It is 5 % of a Produce."""
COLLECT_S = 60.0
"""Pause between two full collections."""
_NEVER = 1 << 30


class GarbageCollection:
    """Decides, in place of the interpreter, when a full collection runs; one per process.

    All methods run on the event loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Take over, before anybody waits for an answer: it collects all garbage, once."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, self._thresholds[1], _NEVER)
        self._later()

    def started(self) -> None:
        """The node has started: no collection visits what it has by now."""
        gc.freeze()

    def stop(self) -> None:
        """Let Python decide again."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._thresholds)

    def _later(self) -> None:
        self._timer = self._loop.call_later(COLLECT_S, self._collect)

    def _collect(self) -> None:
        if gc.get_count()[2]:  # objects have grown old since
            gc.collect()
        self._later()
