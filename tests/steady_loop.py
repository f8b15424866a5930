"""An event loop for tests whose time passes only while it turns.

A busy machine gives a process no time for a second or more. Time-outs that end then say nothing of
the program: what they wait for had no time, either. Here each turn takes `STEP_S` at most, so that
servers and clients of one loop have had hundreds of turns before a time-out of a second ends. Once
this module is imported, nodes that run in such a loop have its time, too.
"""

import asyncio
import selectors
import time

from quorumlog.node import node

STEP_S = 0.01


class _Selector(selectors.DefaultSelector):
    """Waits for `STEP_S` at most, and counts the time of turns."""

    def __init__(self):
        super().__init__()
        now = time.monotonic()
        self._turn = now, now
        """When the present turn began, in the loop's time and in the machine's."""

    def select(self, timeout=None):
        found = super().select(STEP_S if timeout is None else min(timeout, STEP_S))
        self._turn = self.time(), time.monotonic()
        return found

    def time(self):
        begun, begun_really = self._turn
        return begun + min(time.monotonic() - begun_really, STEP_S)


class SteadyLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self):
        self._steady = _Selector()
        super().__init__(self._steady)

    def time(self):
        """Return seconds; the later, the more turns there were."""
        return self._steady.time()


class _TimeOfNodes:
    """What nodes take for the module `time`: of its clocks, one is that of the loop they run in."""

    def __getattr__(self, name):
        return getattr(time, name)

    @staticmethod
    def monotonic():
        running = asyncio._get_running_loop()
        return running.time() if isinstance(running, SteadyLoop) else time.monotonic()

    @classmethod
    def monotonic_ns(cls):
        return int(cls.monotonic() * 1_000_000_000)


node.time = _TimeOfNodes()


def have_steady_time(item):
    """Return how the loop of an asynchronous test is made, as pytest-asyncio asks for it.

    Processes have the machine's time, so tests of them have it, too, as those marked `real_time`.
    """
    if item.get_closest_marker("processes") or item.get_closest_marker("real_time"):
        return {"real": asyncio.SelectorEventLoop}
    return {"steady": SteadyLoop}
