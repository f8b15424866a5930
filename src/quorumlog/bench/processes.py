"""Processor time and memory of the processes of nodes, read from /proc."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from quorumlog.bench.figures import Sample

RESET_PEAK = "5"
"""Written to clear_refs, it resets VmHWM (proc(5))."""


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has taken, 0 if it is gone or /proc is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Return the most memory a process held since `reset_peak`; 0 where nobody knows."""
    return _status_bytes(pid, "VmHWM:")


def resident_bytes(pid: int) -> int:
    """Return the memory a process holds, mapped files included; 0 where nobody knows."""
    return _status_bytes(pid, "VmRSS:")


def reset_peak(pid: int) -> None:
    """Reset the peak memory of a process, where that is allowed."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)


def _status_bytes(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1_024 for line in lines if line.startswith(name))


class Usage:
    """What nodes and this process use from now on; `pids` by node."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        for pid in self._pids.values():
            reset_peak(pid)
        self._nodes = {node: cpu_seconds(pid) for node, pid in self._pids.items()}
        self._own = time.process_time()

    def into(self, sample: Sample) -> Sample:
        """Return the sample with what was used since."""
        sample.client_cpu_seconds = time.process_time() - self._own
        sample.node_cpu_seconds = {
            node: round(cpu_seconds(pid) - self._nodes[node], 3) for node, pid in self._pids.items()
        }
        sample.memory_bytes = max(map(peak_bytes, self._pids.values()), default=0)
        return sample
