"""Every node process of a test is watched: a loop that stands still fails the test.

Nodes find the file to write to in their environment, whatever starts them: a fixture, the command
line, a program of the test. What is a stall, and what only a machine that is busy with other
things, is for the node's watchdog to tell (`quorumlog.service.watchdog`): it looks at the loop's
thread.

Not watched: nodes within the loop of a test (`make_cluster`), since what the test itself computes
stands in their way, too; and a wait inside the event loop's own code, which looks like idleness.
"""

import os

from quorumlog.service.watchdog import VARIABLE


class LoopWatch:
    """The findings of all processes that were started since `begin`."""

    def __init__(self, path):
        self._path = path
        self._read = 0
        self._before = None

    def begin(self):
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self._path)

    def end(self):
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before

    def fresh(self):
        """Return what was found since the last time."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._read)
            found = file.read()
        self._read += len(found)
        return found.decode(errors="replace")

    def check(self):
        """Fail if anything was found since the last time."""
        found = self.fresh()
        assert not found, f"an event loop stood still:\n{found}"
