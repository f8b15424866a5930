"""Finds calls that block the event loop, with their place in the code. For tests and debugging.

A machine that is busy with other things makes a loop late as well, and that is no finding. So a
turn of the loop is one in two cases only:

- Its thread computed that long itself: by the processor time of the thread, without what the
  hypervisor took away meanwhile, and at least half of it outside the kernel, where page faults are.
- It waited within a call that blocks while nothing kept it from going on: in several samples in a
  row no thread of the process waited for a processor or for a page of memory, none computed, and
  this watcher's own thread was on time. Whoever waits for the interpreter's lock, or for a thread
  that has still to start, waits for a thread that is seen then.

A thread that waits in code of the event loop itself may just be idle, so there only processor time
counts.
"""

import asyncio
import os
import resource
import sys
import threading
import time
import traceback

VARIABLE = "QUORUMLOG_LOOP_WATCHDOG"
"""Environment variable that names a file to append findings to; unset: there is no watchdog."""
STALL_S = 0.1
HEARTBEAT_S = 0.02
"""Interval at which the loop shows that it is running."""
SAMPLE_S = 0.025
LATE_S = 0.01
"""How much longer than `SAMPLE_S` this watcher's own thread may have slept."""
COMPUTED_MAX_S = 0.005
"""Processor time of the other threads between two samples, above which they are computing."""
BLOCKED_SAMPLES = 4
"""Samples in a row within a call before it counts as blocked: `STALL_S` of them."""
SAMPLES_MAX = 40
TASKS = "/proc/self/task"
_IDLE = ("uvloop/__init__.py", "asyncio/runners.py", "selectors.py", "asyncio/base_events.py")
"""Where the loop's thread is while it waits for something to happen."""


class Watchdog:
    """Watches the event loop on whose thread it is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._loop = loop
        self._path = path
        self._thread_id = threading.get_ident()
        self._is_running = True
        self._heartbeat_at = time.monotonic()
        self._used_at_heartbeat = _used_s()
        self._stolen_before = _stolen_s()
        self._samples: list[str] = []
        self._timer = loop.call_soon(self._heartbeat)
        self._thread = threading.Thread(target=self._watch, name="quorumlog-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._is_running = False
        self._timer.cancel()

    def _heartbeat(self) -> None:
        """Check what was computed since the last heartbeat; on the loop's thread."""
        used, before = _used_s(), self._used_at_heartbeat
        self._used_at_heartbeat = used
        samples, self._samples = self._samples, []
        self._heartbeat_at = time.monotonic()
        all_s, outside_kernel_s = used[0] - before[0], used[1] - before[1]
        limit_s = STALL_S + HEARTBEAT_S
        if all_s >= limit_s and outside_kernel_s >= all_s / 2:
            all_s -= _stolen_s() - self._stolen_before
            if all_s >= limit_s:
                self._report(f"used the processor for {all_s:.3f} s in one turn", samples)
        if self._is_running:
            self._timer = self._loop.call_later(HEARTBEAT_S, self._heartbeat)

    def _report(self, text: str, samples: list[str]) -> None:
        places = dict.fromkeys(samples)
        with open(self._path, "a", encoding="utf-8") as file:
            who = f"process {os.getpid()} ({sys.argv[-1]})"
            file.write(f"{who}: the loop {text}\n" + "\n".join(places) + "\n")

    def _watch(self) -> None:
        """Sample where the loop's thread is while it is late, and whether anything excuses it."""
        own = threading.get_native_id()
        last, others_last = time.monotonic(), _used_by_others_s()
        blocked: list[str] = []
        turn = reported = 0.0
        while self._is_running:
            time.sleep(SAMPLE_S)
            slept_s, computed_s = time.monotonic() - last, _used_by_others_s() - others_last
            last, others_last = last + slept_s, others_last + computed_s
            if turn != self._heartbeat_at:
                turn = self._heartbeat_at
                blocked = []
            if last - turn < 2 * HEARTBEAT_S:
                self._stolen_before = _stolen_s()
                continue
            place = self._place()
            if place and len(self._samples) < SAMPLES_MAX:
                self._samples.append(place)
            is_excused = (
                not place
                or slept_s > SAMPLE_S + LATE_S
                or computed_s > COMPUTED_MAX_S
                or _is_a_thread_wanting(own)
            )
            blocked = [] if is_excused else [*blocked, place]
            is_over = turn != self._heartbeat_at  # it went on while this thread looked
            if len(blocked) >= BLOCKED_SAMPLES and not is_over and turn != reported:
                reported = turn
                self._report(f"was blocked for {last - turn:.3f} s in one turn", blocked)

    def _place(self) -> str:
        """Return where in the code the loop's thread is; empty while it may be idle."""
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or frame.f_code.co_filename.endswith(_IDLE):
            return ""
        return "".join(traceback.format_stack(frame, limit=12))


def _used_s() -> tuple[float, float]:
    """Return the processor time of the calling thread: all of it, and that outside the kernel."""
    return time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_utime


def _used_by_others_s() -> float:
    """Return the processor time of all threads of this process but the calling one."""
    return time.process_time() - time.thread_time()


def _is_a_thread_wanting(own: int) -> bool:
    """Return whether a thread, other than `own`, runs or would if it had a processor and its pages.

    The interpreter's lock is free while the files are read: a thread that waits for it runs then.
    """
    for task in os.listdir(TASKS):
        if int(task) == own:
            continue
        state = _read(f"{TASKS}/{task}/stat").rpartition(")")[2].split()[:1]
        if state == ["R"]:
            return True
        if state == ["D"] and not _read(f"{TASKS}/{task}/syscall")[:1].isdigit():
            return True  # it waits for the disk, but in no call: for a page of memory
    return False


def _read(path: str) -> str:
    """Return what is in a file of the system about a thread; nothing if the thread has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _stolen_s() -> float:
    """Return for how long the hypervisor has kept the processors for others, all summed up."""
    counts = _read("/proc/stat").partition("\n")[0].split()
    return int(counts[8]) / os.sysconf("SC_CLK_TCK") if len(counts) > 8 else 0.0


def watchdog_if_wanted() -> Watchdog | None:
    """Return a running watchdog if the environment asks for one."""
    path = os.environ.get(VARIABLE)
    return Watchdog(asyncio.get_running_loop(), path) if path else None
