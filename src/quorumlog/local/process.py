"""One node process: started detached, found again later by pid and start time."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from quorumlog.client.contexts import without_passwords
from quorumlog.local.errors import LocalClusterError
from quorumlog.local.layout import POLL_SECONDS, Layout, write_private
from quorumlog.log_events import reason_of

LOG_TAIL_BYTES = 16 * 1024
LOG_TAIL_LINES = 5
KILL_SECONDS = 10.0
"""A process killed with SIGKILL is gone within this, or the system is stuck."""
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
LOG_MODE = 0o600


class ProcessId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pid with the start time of its process, which distinguishes it from a later one."""

    pid: int
    begun: str


_PROCESSES: Final = msgspec.json.Decoder(ProcessId)


class NodeProcess:
    """The process of one node of a local cluster, running or not."""

    def __init__(self, layout: Layout, node_id: str) -> None:
        self.node_id = node_id
        self._layout = layout
        self._log_size_at_start = 0
        self._child: int | None = None

    @property
    def pid(self) -> int | None:
        """The pid while the process runs, else None."""
        self._reap()
        known = self._known()
        if known is None or start_time_of(known.pid) != known.begun:
            return None
        return known.pid

    def start(self) -> None:
        """Start the process; it lives on when this one ends.

        Raises `LocalClusterError`, with the process ended, if its pid cannot be written: nobody
        would find it again.
        """
        log = self._layout.log(self.node_id)
        self._log_size_at_start = log.stat().st_size if log.exists() else 0
        config = str(self._layout.config(self.node_id))
        # -P: no module of the current directory may shadow one of ours
        arguments = [sys.executable, "-P", "-m", "quorumlog.service", config]
        pid = os.posix_spawn(
            sys.executable,
            arguments,
            without_passwords(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), LOG_FLAGS, LOG_MODE),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._child = pid
        path = self._layout.pid(self.node_id)
        beside = path.with_suffix(".pid.new")
        try:
            said = ProcessId(pid, start_time_of(pid) or "")
            write_private(beside, msgspec.json.encode(said))
            beside.replace(path)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with suppress(OSError):
                beside.unlink()
            raise LocalClusterError(
                f"{self.node_id} is not started: {path} cannot be written ({reason_of(error)}), so "
                "nobody would find its process again; mend that, then run the command again"
            ) from error

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process does not run."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """End the process with SIGKILL and wait until it is gone.

        Raises `LocalClusterError` when it does not go.
        """
        self.signal(signal.SIGKILL)
        if not self.wait_gone(KILL_SECONDS):
            raise LocalClusterError(f"{self.node_id}: process {self.pid} survives SIGKILL")
        self.forget()

    def wait_gone(self, seconds: float) -> bool:
        """Wait for the end of the process; False when it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def forget(self) -> None:
        """Remove the pid file of a process that is gone."""
        self._layout.pid(self.node_id).unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return why the process ended, from what it wrote since `start`."""
        log = self._layout.log(self.node_id)
        lines = _lines_since(log, self._log_size_at_start)
        reasons = [line for line in lines if line.startswith("quorumlog: ")]
        if reasons:
            return f"{reasons[-1].removeprefix('quorumlog: ')} (log: {log})"
        last_lines = "\n".join(lines[-LOG_TAIL_LINES:]) or "it wrote nothing"
        return f"{self.node_id} ended; the end of {log}:\n{last_lines}"

    def _reap(self) -> None:
        """Let the system forget a child of ours that has ended."""
        if self._child is None:
            return
        try:
            ended, _ = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:
            ended = self._child
        if ended:
            self._child = None

    def _known(self) -> ProcessId | None:
        try:
            raw = self._layout.pid(self.node_id).read_bytes()
            return _PROCESSES.decode(raw)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return None


def start_time_of(pid: int) -> str | None:
    """Return a mark of when a process started; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # a process whose first thread has ended keeps its sockets until the others have
    has_ended = state == "X" or (state == "Z" and threads <= 1)
    return None if has_ended else start_ticks


def _start_time_by_ps(pid: int) -> str | None:
    """Ask `ps`, on systems without /proc."""
    answer = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, start_time = answer.stdout.strip().partition(" ")
    return start_time.strip() if start_time and not state.startswith("Z") else None


def _lines_since(path: Path, offset: int) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(offset, size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()
