"""A guard for nodes that must not outlive the process that started them, however that one ended.

`LocalCluster` starts nodes that live on by themselves, which is what `quorumlog cluster up` is for.
Where they are only a part of a run (the bench, the demonstration, tests) a second process waits at
a pipe whose other end only the first one has. It reads the end of the file when that one is gone,
even by SIGKILL, and then kills all node processes whose configuration is below a directory. A
signal that a dying parent sends (PR_SET_PDEATHSIG) would not do: it is bound to the thread that
started the child, and nodes are started from threads that end.

The guard is this file run by itself, with the standard library only: it starts at once.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SERVICE = "quorumlog.service"
"""The module that a node's process runs (`NodeProcess.start`)."""
ROUNDS_WITHOUT_NODES = 3
"""Rounds that must find no node: one that was just being started appears only in a later one."""
ROUND_PAUSE_S = 0.05
KILL_SECONDS = 30.0
"""A process that survives SIGKILL for this long is stuck in the kernel; nothing can end it."""
REMOVE_SECONDS = 10.0
"""How long removing a directory is tried."""
KEEP = b"keep"
"""Written into the pipe: the directory is kept."""
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Guard:
    """The process that watches this one until `close`; see `guarded`."""

    def __init__(self, directory: str | Path, *, remove: bool = False) -> None:
        self.directory = Path(directory).absolute()
        arguments = [sys.executable, "-I", "-S", __file__, str(self.directory), str(int(remove))]
        # a session of its own: what ends this process' terminal or group must not end the guard
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, this file)
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def keep(self) -> None:
        """Keep the directory."""
        if self._process.stdin is not None:
            self._process.stdin.write(KEEP)

    def close(self) -> None:
        """End all nodes below the directory, and remove it if that was wanted.

        Takes `KILL_SECONDS` and `REMOVE_SECONDS` at most. Also a signal ends it only after that.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait()
        except KeyboardInterrupt:
            self._process.wait()
            raise


@contextmanager
def guarded(directory: str | Path, *, remove: bool = False) -> Iterator[Guard]:
    """Let no node whose configuration is below `directory` outlive this block, or this process.

    With `remove` the directory is removed with them, unless `Guard.keep` was called. Nodes that
    still run are killed; stop those whose files matter before the block ends.
    """
    guard = Guard(directory, remove=remove)
    try:
        yield guard
    finally:
        guard.close()


@contextmanager
def guarded_directory(prefix: str) -> Iterator[Guard]:
    """Make a temporary directory that is removed with all nodes below it; see `guarded`."""
    with guarded(tempfile.mkdtemp(prefix=prefix), remove=True) as guard:
        yield guard


@contextmanager
def ending_in_order() -> Iterator[None]:
    """In this context SIGTERM and SIGHUP interrupt the main thread as Ctrl-C does, then end it.

    So contexts that are open are closed first. A signal that is ignored stays ignored (nohup).
    """
    received: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        if not received:  # one is enough: the next must not interrupt what closes things
            received.append(number)
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in ENDING
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            os.kill(os.getpid(), received[0])


# -- the process that waits -------------------------------------------------------------------


def node_pids(directory: str) -> list[int]:
    """Return the node processes, whoever started them, whose configuration is below a directory."""
    below = os.path.join(directory, "")
    found = []
    for pid, arguments in _commands():
        if SERVICE in arguments and arguments[-1].startswith(below):
            found.append(pid)
    return found


def _commands() -> Iterator[tuple[int, list[str]]]:
    """Yield all processes with their arguments."""
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        parts = file.read().decode(errors="surrogateescape").split("\0")
                except OSError:  # it has ended
                    continue
                yield int(name), parts[:-1]
        return
    listed = subprocess.run(
        ["/bin/ps", "-axo", "pid=,args="], capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        before, found, path = command.strip().partition(f" {SERVICE} ")
        yield int(pid), [before, SERVICE, path] if found else [command]


def kill_nodes(directory: str) -> None:
    """End all nodes below a directory with SIGKILL, also those that are stopped."""
    without_nodes, deadline = 0, time.monotonic() + KILL_SECONDS
    while without_nodes < ROUNDS_WITHOUT_NODES and time.monotonic() < deadline:
        pids = node_pids(directory)
        without_nodes = 0 if pids else without_nodes + 1
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_PAUSE_S)


def _wait_and_end(directory: str, *, remove: bool) -> None:
    kept = b""
    while part := os.read(0, 64):
        kept += part
    kill_nodes(directory)
    if remove and not kept:
        _remove(directory)


def _remove(directory: str) -> None:
    """Remove a directory, although a killed node may still make a file there.

    A process that is killed while it waits for the disk is not listed any more, but ends its call.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    shutil.rmtree(directory, ignore_errors=True)
    while os.path.exists(directory) and time.monotonic() < deadline:
        time.sleep(ROUND_PAUSE_S)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    for _number in (signal.SIGINT, *ENDING):
        signal.signal(_number, signal.SIG_IGN)
    _wait_and_end(sys.argv[1], remove=sys.argv[2] == "1")
