"""A node with a full disk is killed, starts again, answers, refuses changes, removes entries."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog import KV, Client, Producer
from quorumlog.local.ports import free_ports
from quorumlog.model.config import GroupConfig, NodeConfig, dump_config
from quorumlog.model.errors import DeadlineExceededError, DiskFullError, Outcome

pytestmark = pytest.mark.processes

DISK_BYTES = 192 << 20
PIECE = bytes(64 << 10)
SECONDS = 30.0
KEYS = 40
BLOCKS, BODY = 1_000, 50_000
VALUE = "%d" + " is a value of which there is one for each key" * 20


def write_for_ever(file):
    while True:
        file.write(PIECE)


class SmallDisk:
    """A directory on a disk of its own, which only its node sees, and which goes with it."""

    def __init__(self, directory):
        directory.mkdir()
        mount = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs {directory} && echo && exec sleep 1000"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", mount], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said = self._holder.stdout.readline().strip()
        if said:
            self.remove()
            pytest.skip(f"no disk can be mounted here: {said.decode()}")
        self.inside = ["nsenter", "-t", str(self._holder.pid), "-m", "--"]
        self._ballast = Path(f"/proc/{self._holder.pid}/root{directory}/ballast")

    def fill(self, left):
        """Leave so many bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(file)
            file.truncate(file.seek(0, os.SEEK_END) - left)

    def empty(self):
        self._ballast.unlink()

    def remove(self):
        self._holder.kill()
        self._holder.communicate()


class OneNode:
    def __init__(self, directory, disk):
        (port,) = free_ports(1)
        self.server = f"127.0.0.1:{port}"
        self.disk = disk
        self._base = str(directory / "disk" / "n0")
        self._config, self._log = directory / "n0.toml", directory / "n0.log"
        self._process = None
        self.configure(state_machine="kv")

    def configure(self, **settings):
        """Write the configuration for the next start."""
        group = GroupConfig(
            group="g",
            peers=f"n0-{self.server}",
            mapped_file_size_for_entry_data=8 << 20,
            clean_interval=100,
            mapped_file_size_for_entry_index=32 * 4_096,
            **settings,
        )
        config = NodeConfig(self_id="n0", store_base_dir=self._base, groups=[group])
        self._config.write_bytes(dump_config(config))

    def start(self):
        command = [sys.executable, "-m", "quorumlog.service", self._config]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self.disk.inside, *command], stderr=log)

    def kill(self):
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def log(self):
        return self._log.read_text()

    @property
    def is_up(self):
        return self._process.poll() is None


@pytest.fixture
def node(tmp_path):
    if os.geteuid():
        pytest.skip("only root may mount a disk")
    disk = SmallDisk(tmp_path / "disk")
    made = OneNode(tmp_path, disk)
    yield made
    made.kill()
    disk.remove()
    print(made.log()[-2_000:])  # told where a test fails


async def refused(kv):
    """Whether a change is refused since the disk is full."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await kv.put("new", "1")
            except DiskFullError as error:
                return error.outcome is Outcome.DID_NOT_HAPPEN
            except DeadlineExceededError as late:
                if late.outcome is not Outcome.DID_NOT_HAPPEN:
                    raise
                continue  # a machine that stands still left it no time for the answer
            else:
                return False


async def until_noticed(client):
    async with asyncio.timeout(SECONDS):
        while not (await client.status())[0].disk_text:
            pass


async def read_all(node, count=KEYS):
    async with Client(node.server, "g", timeout_ms=20_000) as client:
        kv = KV(client)
        for number in range(count):
            assert await kv.get(f"{number}") == (VALUE % number).encode()
        stale = [item.value async for item in kv.scan(linearizable=False)]
        assert len([value for value in stale if value != b"1"]) == count


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("left", [0, 8 << 20])
async def test_a_key_value_node_restarts_on_a_full_disk(node, left, saves):
    node.start()
    async with Client(node.server, "g", timeout_ms=20_000) as client:
        kv = KV(client)
        for number in range(KEYS):
            await kv.put(f"{number}", VALUE % number)
            if saves and number == KEYS // 2:
                await client.admin.save_snapshot()
    node.disk.fill(left)
    async with Client(node.server, "g", timeout_ms=2_000) as client:
        await until_noticed(client)
        assert await refused(KV(client))
    await read_all(node)
    for _ in range(2):
        node.kill()
        node.disk.fill(left)
        node.start()
        await read_all(node)
        async with Client(node.server, "g", timeout_ms=2_000) as client:
            assert (await client.status())[0].disk_text
            assert await refused(KV(client))
    node.disk.empty()
    async with Client(node.server, "g", timeout_ms=20_000) as client:
        await KV(client).put(f"{KEYS}", VALUE % KEYS)
    await read_all(node, KEYS + 1)
    node.kill()
    node.start()
    await read_all(node, KEYS + 1)
    assert node.is_up


async def begin_of(client):
    return (await client.status())[0].begin_index


async def test_retention_frees_room_on_a_full_disk(node):
    """What producers stored last is saved first, though there is no byte left for it."""
    node.configure()
    node.start()
    async with Producer(node.server, "g") as producer:
        for _ in range(BLOCKS):
            await producer.send(bytes(BODY))
        await producer.flush()
    for _ in range(2):  # a start may remove what was not finished
        node.kill()
        node.disk.fill(0)
        node.start()
        async with Client(node.server, "g", timeout_ms=20_000) as client:
            assert await begin_of(client) <= 0
    node.kill()
    node.disk.fill(0)
    node.configure(retention_bytes=16 << 20)
    node.start()
    async with Client(node.server, "g", timeout_ms=20_000) as client, asyncio.timeout(SECONDS):
        while await begin_of(client) <= 0:
            assert node.is_up
    node.disk.empty()
    async with Producer(node.server, "g") as producer:
        await producer.send(b"more")
    assert node.is_up


async def test_a_node_killed_before_its_first_checkpoint_starts_on_a_full_disk(node):
    node.configure(check_point_interval=3_600_000)
    node.start()
    async with Client(node.server, "g", timeout_ms=20_000) as client:
        before = (await client.status())[0].end_index
    node.kill()
    for _ in range(2):
        node.disk.fill(0)
        node.start()
        async with Client(node.server, "g", timeout_ms=20_000) as client:
            assert (await client.status())[0].end_index >= before
        node.kill()
