"""A node whose disk can lose power and be full, and whose wall clock steps.

Usage: node.py JOURNAL FAULTS quorumlog.service FILE

FAULTS is a file with the seconds by which the wall clock is wrong, and maybe the bytes that are
left of the disk; it may change at any time. The arguments end as those of every node that is
started for a run do, so that a guard knows it.
"""

import importlib
import sys
import threading
import time

from torture.lossy_files import Journal, LossyFileSystem

LOOK_SECONDS = 0.05


class Faults:
    """Does what a file says; replaces the functions of `time` that tell the calendar's time."""

    def __init__(self, path, room):
        self._path = path
        self._room = room
        self._told = None
        self._wrong_s = 0
        self._time, self._time_ns = time.time, time.time_ns
        self._localtime = time.localtime
        self._look()

    def install(self):
        time.time = lambda: self._time() + self._wrong_s
        time.time_ns = lambda: self._time_ns() + self._wrong_s * 1_000_000_000
        time.localtime = lambda seconds=None: self._localtime(
            time.time() if seconds is None else seconds
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _look(self):
        try:
            with open(self._path) as file:
                told = [int(word) for word in file.read().split()]
        except (OSError, ValueError):
            return  # it is being written
        if told and told != self._told:
            self._told = told
            self._wrong_s = told[0]
            self._room.left = told[1] if told[1:] else None

    def _watch(self):
        while True:
            self._look()
            time.sleep(LOOK_SECONDS)


def main():
    journal, faults, module, config = sys.argv[1:]
    from quorumlog.storage.files import os_files as files  # noqa: PLC0415  (the first to take it)

    LossyFileSystem.journal = Journal(journal)
    files.OsFileSystem = LossyFileSystem
    Faults(faults, LossyFileSystem.room).install()
    sys.argv = [module, config]
    sys.exit(importlib.import_module(f"{module}.__main__").main())


if __name__ == "__main__":
    main()
