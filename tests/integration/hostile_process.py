"""A node in a process of its own, with few descriptors if wanted, and strangers who connect."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

from quorumlog.model.config import GroupConfig, NodeConfig, dump_config
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello
from quorumlog.wire.frame import encode_frame
from small_files import SMALL_FILES

CLIENT_HELLO = b"".join(encode_frame(Hello(cluster="", node_id="", role="client")))
START_SECONDS = 120.0
FILES = {**SMALL_FILES, "mapped_file_size_for_entry_index": 32 * 8192}


class NodeProcess:
    """One node that is a group by itself."""

    def __init__(self, directory: Path, port: int, *, descriptors=None, state_machine="", **limits):
        self.address = ("127.0.0.1", port)
        self.server = f"127.0.0.1:{port}"
        group = GroupConfig(
            group="g", peers=f"n0-{self.server}", state_machine=state_machine, **FILES
        )
        config = NodeConfig(
            self_id="n0",
            store_base_dir=str(directory / "n0"),
            groups=[group],
            limits=Limits(**limits),
        )
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "n0.toml"
        file.write_bytes(dump_config(config))
        self.log = directory / "log"

        def restrict():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "quorumlog.service", str(file)],
                stderr=log,
                preexec_fn=restrict,  # noqa: PLW1509
                env=os.environ,
            )
        self._await_start()

    def _await_start(self):
        """Wait until it listens: a client's time is for what it asks."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(self.address, START_SECONDS).close()
            except ConnectionRefusedError:
                assert self.is_alive(), self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.02)
            else:
                return

    @property
    def rss_mib(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def is_alive(self):
        return self.process.poll() is None

    def stop(self):
        if self.is_alive():
            self.process.terminate()
        return self.process.wait(30)


class Strangers:
    """Sockets that connect, say something, and stay."""

    def __init__(self, address):
        self.address = address
        self.sockets = []

    def connect(self, count, first=b"", seconds=30.0):
        """Connect so many; what cannot is left out."""
        deadline = time.monotonic() + seconds
        for _ in range(count):
            made = socket.socket()
            made.settimeout(5)
            try:
                made.connect(self.address)
                if first:
                    made.sendall(first)
            except OSError:
                made.close()
            else:
                self.sockets.append(made)
            if time.monotonic() > deadline:
                break

    def close(self):
        for one in self.sockets:
            one.close()


async def shout(address, raw, *, seconds):
    """Send bytes on a connection for as long as it takes them, then stay silent until it ends."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(raw)
            await writer.drain()
            await reader.read()
    except (OSError, TimeoutError):
        pass


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shout_together(address, raw, count):
    """In a process of its own: `count` connections that shout, each made again when it ends."""

    async def on_and_on():
        while True:
            await shout(address, raw, seconds=60)
            await asyncio.sleep(0.01)

    async def all_of_them():
        await asyncio.gather(*(on_and_on() for _ in range(count)))

    asyncio.run(all_of_them())
