"""A cluster of real nodes in one event loop: real sockets on loopback, real files."""

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest

from loop_watch import LoopWatch
from quorumlog.client.client import Client
from quorumlog.local import LocalCluster
from quorumlog.local.ports import free_ports
from quorumlog.model.codes import Role
from quorumlog.model.config import GroupConfig, NodeConfig, dump_config, load_config
from quorumlog.model.limits import Limits
from quorumlog.node.node import Node
from quorumlog.service.requests import ClientRequests
from small_files import SMALL_FILES
from steady_loop import have_steady_time

DATA_FILE_BYTES = 1 << 20
STANDING = 4
"""Seconds of the machine for one of a loop, on a machine that stands still (`until`)."""
PATIENCE = {"election_timeout_min_ms": 4_000, "election_timeout_max_ms": 4_500}
SMALL_LIMITS = {
    "entry_bytes_max": 256 * 1024,
    "block_bytes_max": 512 * 1024,
    "push_bytes_max": 128 * 1024,
    "push_window_bytes": 512 * 1024,
}


def pytest_asyncio_loop_factories(config, item):
    """A busy machine brings about no election in nodes of this process, and ends no time-outs."""
    return have_steady_time(item)


@pytest.fixture(scope="session", autouse=True)
def _watched_loops(tmp_path_factory):
    """All node processes of these tests say where their loops stood still."""
    watch = LoopWatch(tmp_path_factory.mktemp("loops") / "findings")
    watch.begin()
    yield watch
    watch.end()
    watch.check()  # of nodes that outlived the last test


@pytest.fixture(autouse=True)
def _no_loop_stands_still(_watched_loops):
    """Set up before whatever starts nodes for one test, so that it looks after they have ended."""
    yield
    _watched_loops.check()


class Cluster:
    """Nodes n0, n1 … with the same groups; each can be stopped and started again."""

    def __init__(self, directory, count=3, groups=("g",), limits=None, **group_options):
        self.ids = [f"n{number}" for number in range(count)]
        ports = dict(zip(self.ids, free_ports(count), strict=True))
        self.addresses = {node_id: f"127.0.0.1:{port}" for node_id, port in ports.items()}
        peers = ";".join(f"{node_id}-{address}" for node_id, address in self.addresses.items())
        options = {**SMALL_FILES, "mapped_file_size_for_entry_data": DATA_FILE_BYTES}
        options |= group_options
        configs = [GroupConfig(group=group, peers=peers, **options) for group in groups]
        bounds = Limits(**{**SMALL_LIMITS, **(limits or {})})
        self.configs = {
            node_id: NodeConfig(
                self_id=node_id,
                store_base_dir=str(directory / node_id),
                groups=configs,
                limits=bounds,
            )
            for node_id in self.ids
        }
        self.nodes = {}

    @property
    def servers(self):
        return ",".join(self.addresses.values())

    def client(self, group="g", **options):
        return Client(self.servers, group, **options)

    async def start(self, *node_ids):
        for node_id in node_ids or self.ids:
            node = Node(self.configs[node_id], ClientRequests)
            await node.start()
            self.nodes[node_id] = node

    async def stop(self, *node_ids, clean=True):
        for node_id in node_ids or list(self.nodes):
            await self.nodes.pop(node_id).stop(clean=clean)

    def replica(self, node_id, group="g"):
        return self.nodes[node_id].replicas[group]

    def moves(self, node_id):
        """Give a stopped node another port; the others' configurations keep the old one."""
        config, before = self.configs[node_id], self.addresses[node_id]
        self.addresses[node_id] = after = f"127.0.0.1:{free_ports(1)[0]}"
        groups = [
            msgspec.structs.replace(group, peers=group.peers.replace(before, after))
            for group in config.groups
        ]
        self.configs[node_id] = msgspec.structs.replace(config, groups=groups)

    def leader_id(self, group="g"):
        leaders = [
            node_id
            for node_id in self.nodes
            if self.replica(node_id, group).core.role is Role.LEADER
        ]
        return leaders[0] if len(leaders) == 1 else None

    def logs(self, group="g"):
        """Per running node: end index, committed index and the chain CRC there."""
        logs = {}
        for node_id in self.nodes:
            replica = self.replica(node_id, group)
            committed = replica.core.committed_index
            chain = replica.log.chain_crc_at(committed) if committed >= 0 else 0
            logs[node_id] = (replica.log.end_index, committed, chain)
        return logs


@pytest.fixture
def make_cluster(tmp_path):
    """`async with make_cluster(...) as cluster`: made, not started; stopped at the end."""

    @asynccontextmanager
    async def make(directory=tmp_path, **options):
        cluster = Cluster(directory, **options)
        try:
            yield cluster
        finally:
            await cluster.stop(clean=False)

    return make


async def until(condition, *, seconds=60.0, what="the expected state"):
    """Wait for something that the cluster brings about by itself; bounded.

    `seconds` are those of the loop; on a machine that stands still they take `STANDING` times as
    long at most.
    """
    loop = asyncio.get_running_loop()
    deadline, at_most = loop.time() + seconds, time.monotonic() + STANDING * seconds
    while not condition():
        if loop.time() > deadline or time.monotonic() > at_most:
            raise AssertionError(f"{what} did not come about in {seconds} s")
        await asyncio.sleep(0.01)


@pytest.fixture(name="until")
def until_fixture():
    return until


@pytest.fixture
def cluster(tmp_path):
    """Three processes on this machine; those that a test stopped go on at its end."""
    with _up(
        LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=8 << 20)
    ) as one:
        yield one


@pytest.fixture
def patient_cluster(tmp_path):
    """Such a cluster that has no election because a busy machine stands still for some seconds.

    For tests of what is promised as long as nobody is missed.
    """
    made = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=8 << 20)
    have_patience(made)
    with _up(made) as one:
        yield one


def have_patience(made):
    """Have the nodes of a cluster that does not run yet miss a leader after four seconds only."""
    for node_id in made.node_ids:
        path = made.directory / f"{node_id}.toml"
        config = load_config(path)
        groups = [msgspec.structs.replace(group, **PATIENCE) for group in config.groups]
        path.write_bytes(dump_config(msgspec.structs.replace(config, groups=groups)))


@contextmanager
def _up(made):
    made.up()
    yield made
    for node_id in made.running():
        made.resume(node_id)
    made.down()
