"""Runs all tests, in parts side by side, and says at the end what failed and how long each took.

Tests that start processes mostly wait for them: beside them run two other parts at a time, the
longest first and those that compute last, so that two processors have work until the end. Those
that compute give way.
Usage: `scripts/test.sh`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, TextIO

PYTEST: Final = ".venv/bin/pytest"
STARTED: Final = ("tests/integration",)
SPARK: Final = ("tests/compat", "tests/spark")
SIMULATED: Final = ("tests/mutants", "tests/properties")
UNIT: Final = "tests/unit"
CLIENTS: Final = ("test_kafka_*.py", "test_brokers.py", "test_topics.py")
"""Tests with Kafka's clients, in `tests/integration`."""
LONG: Final = (
    "test_bench.py",
    "test_crash_loop.py",
    "test_follow_outages.py",
    "test_full_disk.py",
    "test_journal_process.py",
    "test_stop_process.py",
)
"""Tests in `tests/integration` that are a part of their own, so that all parts end together."""
PROGRAMS: Final = ("tests/clients",)
"""Tests with programs of their own, which `scripts/test-clients.sh` runs."""
BESIDE: Final = 2
"""Parts that run beside the first one."""
GIVING_WAY: Final = 19
"""Niceness of tests that compute: time counts for those that start processes."""
NONE_COLLECTED: Final = 5
"""What pytest returns if there is no test."""
SUMMARY: Final = ("FAILED ", "ERROR ")
"""How the lines begin that pytest ends with, one for each test that failed."""


class Part:
    """One run of pytest; `status` is what it returned, once it has ended."""

    def __init__(self, name: str, niceness: int, arguments: Sequence[str]) -> None:
        self.name = name
        self.status = 0
        self.has_tests = bool(arguments)
        self._words = ["nice", "-n", str(niceness), PYTEST, "-p", "no:cacheprovider", *arguments]
        self._begun = self._ended = 0.0
        self._is_ended = False
        self._process: subprocess.Popen[str] | None = None
        self._failures: list[str] = []
        self._last = ""

    def run(self, out: TextIO) -> None:
        """Run pytest and write what it says."""
        self._begun = time.monotonic()
        if self._is_ended:
            return
        self._process = subprocess.Popen(  # noqa: S603  (this project's pytest)
            self._words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in self._process.stdout or ():
            out.write(line)
            out.flush()
            self._last = line.strip() or self._last
            if line.startswith(SUMMARY):
                self._failures.append(line.rstrip())
        status = self._process.wait()
        self.status = 0 if status == NONE_COLLECTED else status
        self._ended = time.monotonic()

    def end(self) -> None:
        """Have pytest end, if it runs, and never start if it does not yet."""
        self._is_ended = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until pytest has ended, if it was started."""
        if self._process is not None:
            self._process.wait()

    def summary(self) -> str:
        """Return what failed, and in what time: a line each."""
        took_s = self._ended - self._begun
        result = "passed" if self.status == 0 else f"failed with status {self.status}"
        return "\n".join(
            [*self._failures, f"{self.name}: {result} in {took_s:.0f} s: {self._last}"]
        )


def main() -> int:
    """Run all parts. Return 0 if all passed, else 1."""
    clients, long = _found(CLIENTS), _found(LONG)
    half = [str(path) for path in sorted(Path(UNIT).glob("test_*.py"))[::2]]
    ignored = [f"--ignore={path}" for path in (*STARTED, *SPARK, *SIMULATED, *PROGRAMS, *half)]
    started = Part("started", 0, [*STARTED, *(f"--ignore={path}" for path in clients + long)])
    beside = [
        Part("others", GIVING_WAY, ignored),
        Part("with Spark", 0, SPARK),
        Part("with Kafka's clients", 0, clients),
        Part("simulated", GIVING_WAY, SIMULATED),
        Part("half of the unit tests", GIVING_WAY, half),
        Part("started, and long", 0, long),
    ]
    beside = [part for part in beside if part.has_tests]
    parts = [started, *beside]

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        for part in parts:
            part.end()
        for part in parts:
            part.wait()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    waiting = deque(beside)
    with tempfile.TemporaryDirectory() as said:
        run_waiting = partial(_run_quietly, waiting, Path(said))
        threads = [threading.Thread(target=run_waiting, daemon=True) for _ in range(BESIDE)]
        for thread in threads:
            thread.start()
        started.run(sys.stdout)
        run_waiting()
        for thread in threads:
            thread.join()
        for part in beside:
            sys.stdout.write((Path(said) / part.name).read_text())
    sys.stdout.write("\n" + "\n".join(part.summary() for part in parts) + "\n")
    return int(any(part.status for part in parts))


def _found(names: Sequence[str]) -> list[str]:
    """Return the files in `tests/integration` that have such names."""
    return [str(path) for name in names for path in sorted(Path(STARTED[0]).glob(name))]


def _run_quietly(waiting: deque[Part], said: Path) -> None:
    """Run the parts that wait, one after the other; what they say is for later."""
    while waiting:
        try:
            part = waiting.popleft()
        except IndexError:  # another thread was faster
            return
        with (said / part.name).open("w") as out:
            part.run(out)


if __name__ == "__main__":
    sys.exit(main())
