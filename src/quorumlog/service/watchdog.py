"""Finds calls that block the event loop, with their place in the code. For tests and debugging.

A machine that is busy with other things makes a loop late as well. So a turn of the loop is a
finding only if its thread used that much processor time itself, or if it was seen within a call
that blocks, and was not merely waiting for a processor. The time that the scheduler reports as
waiting for one is subtracted. It is summed over all threads of the process, since the waiting
thread may hold the interpreter's lock. The time in which this watcher's own thread did not run is
subtracted, too, as in a stopped process. A thread that waits in code of the event loop itself may
just be idle, so there only processor time counts.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from pathlib import Path

VARIABLE = "QUORUMLOG_LOOP_WATCHDOG"
"""Environment variable that names a file to append findings to; unset: there is no watchdog."""
STALL_S = 0.1
HEARTBEAT_S = 0.02
"""Interval at which the loop shows that it is running."""
SAMPLE_S = 0.025
SAMPLES_MIN = 3
"""Samples of a thread within a call before it counts as blocked."""
SAMPLES_MAX = 40
_IDLE = ("uvloop/__init__.py", "asyncio/runners.py", "selectors.py", "asyncio/base_events.py")
"""Where the loop's thread is while it waits for something to happen."""


class Watchdog:
    """Watches the event loop on whose thread it is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._loop = loop
        self._path = path
        self._thread_id = threading.get_ident()
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._is_running = True
        self._heartbeat_at = time.monotonic()
        self._cpu_at_heartbeat = time.thread_time()
        self._starved_at_heartbeat = self._starved_s()
        self._late_s = 0.0
        self._samples: list[str] = []
        self._all_starved_before = 0.0
        self._timer = loop.call_soon(self._heartbeat)
        self._thread = threading.Thread(target=self._watch, name="quorumlog-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._is_running = False
        self._timer.cancel()

    def _starved_s(self) -> float:
        """Return for how long the loop's thread has waited for a processor."""
        return _waited_s(self._schedstat)

    def _all_starved_s(self) -> float:
        """Return the same of all threads together."""
        threads = Path("/proc/self/task").iterdir()
        return sum(_waited_s(thread / "schedstat") for thread in threads)

    def _heartbeat(self) -> None:
        """Check the time since the last heartbeat; on the loop's thread."""
        now, cpu, starved = time.monotonic(), time.thread_time(), self._starved_s()
        wall_s, used_s = now - self._heartbeat_at, cpu - self._cpu_at_heartbeat
        waited_s = wall_s - (starved - self._starved_at_heartbeat) - self._late_s
        samples, self._samples, self._late_s = self._samples, [], 0.0
        self._heartbeat_at, self._cpu_at_heartbeat, self._starved_at_heartbeat = now, cpu, starved
        if used_s >= STALL_S + HEARTBEAT_S:
            self._report(f"used the processor for {used_s:.3f} s in one turn", samples)
        elif (
            len(samples) >= SAMPLES_MIN
            and waited_s >= STALL_S + HEARTBEAT_S
            and wall_s - (self._all_starved_s() - self._all_starved_before) >= STALL_S + HEARTBEAT_S
        ):
            self._report(f"was blocked for {waited_s:.3f} s in one turn", samples)
        if self._is_running:
            self._timer = self._loop.call_later(HEARTBEAT_S, self._heartbeat)

    def _report(self, text: str, samples: list[str]) -> None:
        places = dict.fromkeys(samples)
        with open(self._path, "a", encoding="utf-8") as file:
            who = f"process {os.getpid()} ({sys.argv[-1]})"
            file.write(f"{who}: the loop {text}\n" + "\n".join(places) + "\n")

    def _watch(self) -> None:
        """Sample where the loop's thread is while it is late."""
        last = time.monotonic()
        while self._is_running:
            time.sleep(SAMPLE_S)
            now = time.monotonic()
            # this thread did not run either: then nobody knows what the other one waited for
            self._late_s += max(0.0, now - last - 2 * SAMPLE_S)
            last = now
            if now - self._heartbeat_at < 2 * HEARTBEAT_S or len(self._samples) >= SAMPLES_MAX:
                continue
            if not self._samples:
                self._all_starved_before = self._all_starved_s()
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None and not frame.f_code.co_filename.endswith(_IDLE):
                self._samples.append("".join(traceback.format_stack(frame, limit=12)))


def _waited_s(schedule: Path) -> float:
    """Return how long a thread has waited for a processor; 0 if it has ended or nobody counts."""
    try:
        return int(schedule.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def watchdog_if_wanted() -> Watchdog | None:
    """Return a running watchdog if the environment asks for one."""
    path = os.environ.get(VARIABLE)
    return Watchdog(asyncio.get_running_loop(), path) if path else None
