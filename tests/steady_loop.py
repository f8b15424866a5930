"""An event loop for tests whose time passes only while it turns.

A busy machine gives a process no time for a second or more. Time-outs that end then say nothing of
the program: what they wait for had no time, either. Here each turn takes `STEP_S` at most, so that
servers and clients of one loop have had hundreds of turns before a time-out of a second ends.
"""

import asyncio
import selectors
import time

STEP_S = 0.01


class _Selector(selectors.DefaultSelector):
    """Waits for `STEP_S` at most, and tells the loop of each turn."""

    def __init__(self):
        super().__init__()
        self.now = self._turned = time.monotonic()

    def select(self, timeout=None):
        found = super().select(STEP_S if timeout is None else min(timeout, STEP_S))
        self.now = self.time()
        self._turned = time.monotonic()
        return found

    def time(self):
        return self.now + min(time.monotonic() - self._turned, STEP_S)


class SteadyLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self):
        self._steady = _Selector()
        super().__init__(self._steady)

    def time(self):
        """Return seconds; the later, the more turns there were."""
        return self._steady.time()


def have_time_of_loop(monkeypatch):
    """Have nodes that are made from now on measure time by the running loop."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("quorumlog.node.node.monotonic_ms", lambda: int(loop.time() * 1_000))
    for module in ("node.node", "service.traced_requests"):
        name = f"quorumlog.{module}.monotonic_us"
        monkeypatch.setattr(name, lambda: int(loop.time() * 1_000_000))
