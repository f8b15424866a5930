"""Disks so small that a test can fill them: nodes whose files are there run out of room."""

import os
import subprocess
from contextlib import contextmanager

import pytest

DISK_BYTES = 160 << 20
LEFT_BYTES = 64 << 10


class SmallDisk:
    """A tmpfs below a directory; `fill` leaves almost nothing of it, `free` gives it back."""

    def __init__(self, directory, size_bytes=DISK_BYTES):
        self.directory = directory
        self.size_bytes = size_bytes
        self.filler = directory / "somebody-elses-file"

    def mount(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={self.size_bytes}", "tmpfs", self.directory],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pytest.skip("there is no mount command to make a small disk with")
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.directory], check=True)

    def free_bytes(self):
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def fill(self):
        with self.filler.open("ab") as file:
            while (wanted := self.free_bytes() - LEFT_BYTES) > 0:
                file.write(bytes(min(wanted, 1 << 20)))
                file.flush()

    def free(self):
        self.filler.unlink()


@contextmanager
def on_small_disks(cluster, size_bytes=DISK_BYTES):
    """Give every node of a cluster that is not started a small disk; return them by node."""
    mounted = {}
    try:
        for node_id in cluster.node_ids:
            disk = SmallDisk(cluster.directory / node_id, size_bytes)
            disk.mount()
            mounted[node_id] = disk
        yield mounted
    finally:
        cluster.down()
        for disk in mounted.values():
            disk.unmount()
