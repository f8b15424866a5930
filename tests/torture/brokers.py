"""Brokers in processes and networks of their own, for programs that hurt them.

Their disks can lose power and fill up, their clocks can be wrong. The end of a run judges their
files and logs.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from integration.network import PORT, PREFIX, Network, NotPermittedError
from quorumlog import Client
from quorumlog.local.guard import SERVICE
from quorumlog.local.ports import free_ports
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig, dump_config
from quorumlog.model.errors import QuorumlogError
from quorumlog.model.limits import Limits
from small_files import SMALL_FILES, SMALL_SETTINGS
from torture.lossy_files import lose_power

TESTS = Path(__file__).parents[1]
SETTLE_S = 120.0
KAFKA_PORT = 9_092
ENTRY_BYTES_MAX = 512 << 10
DATA_FILE_BYTES = 1 << 20
TINY = {**SMALL_SETTINGS, "mappedFileSizeForEntryData": DATA_FILE_BYTES, "cleanInterval": 500}


class Brokers:
    """Node processes whose disks can lose power and whose clocks can be wrong.

    `settings` are those of partition groups, by their keys in configuration files. Clients are told
    the addresses `advertised`, where proxies must listen if it `has_proxies`.
    """

    def __init__(self, directory, count, network, *, has_proxies=True, settings=None):
        self.directory = directory
        self.network = network
        self.ids = [f"n{number}" for number in range(count)]
        self.addresses, self.kafka, self.advertised = self._places()
        if not has_proxies:
            self.advertised = self.kafka
        self.processes = {}
        self.log_sizes = {}
        self._faults = {node_id: [0] for node_id in self.ids}
        self._configure({**TINY, **(settings or {})})

    def _places(self):
        """Return the addresses of nodes for each other, for Kafka's clients, and of proxies."""
        count = len(self.ids)
        if self.network is None:
            places = [f"127.0.0.1:{port}" for port in free_ports(2 * count)]
        else:
            hosts = [self.network.address(node_id) for node_id in self.ids]
            places = [f"{host}:{port}" for port in (PORT, KAFKA_PORT) for host in hosts]
        proxies = [f"127.0.0.1:{port}" for port in free_ports(count)]
        parts = places[:count], places[count:], proxies
        return [dict(zip(self.ids, part, strict=True)) for part in parts]

    def _configure(self, settings):
        peers = ";".join(f"{node_id}-{place}" for node_id, place in self.addresses.items())
        group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
        for node_id in self.ids:
            config = NodeConfig(
                self_id=node_id,
                store_base_dir=str(self.directory / node_id),
                cluster=PREFIX,
                groups=[group],
                kafka_listen=self.kafka[node_id],
                kafka_advertised=self.advertised[node_id],
                partition_groups=settings,
                insecure=self.network is not None,
                limits=Limits(entry_bytes_max=ENTRY_BYTES_MAX),
            )
            (self.directory / f"{node_id}.toml").write_bytes(dump_config(config))
            self._tell(node_id)

    @property
    def servers(self):
        return ",".join(self.addresses.values())

    @property
    def bootstrap_servers(self):
        return ",".join(self.advertised.values())

    @property
    def groups(self):
        return [CLUSTER_GROUP, *self.partition_groups]

    @property
    def partition_groups(self):
        """The groups that topics are in, one for each broker."""
        return [f"pg-{number}" for number in range(len(self.ids))]

    def store(self, node_id, group):
        return self.directory / node_id / group

    def members(self, group):
        """Return the nodes that have a replica of a group."""
        return [node_id for node_id in self.ids if self.store(node_id, group).exists()]

    def log(self, node_id):
        return (self.directory / f"{node_id}.log").read_text()

    # -- processes ------------------------------------------------------------------------------

    def start(self, node_id):
        where = self.directory
        program = [sys.executable, "-m", "torture.node", self._journal(node_id)]
        serve = [where / f"{node_id}.faults", SERVICE, where / f"{node_id}.toml"]
        space = [] if self.network is None else ["ip", "netns", "exec"]
        space += [] if self.network is None else [self.network.namespace(node_id)]
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1"}
        with (where / f"{node_id}.log").open("ab") as log:
            self.log_sizes[node_id] = log.tell()
            # as if brokers had machines of their own: only root may take priority over clients
            first = ["nice", "-n", "-5"] if self.network is not None else []
            command = [*first, *space, *program, *serve]
            self.processes[node_id] = subprocess.Popen(command, stderr=log, env=env)

    def has_started(self, node_id):
        """Whether the node's process runs and has said that it is up."""
        if not self.is_up(node_id):
            return False
        return '"node started"' in self.log(node_id)[self.log_sizes[node_id] :]

    def is_up(self, node_id):
        process = self.processes.get(node_id)
        return process is not None and process.poll() is None

    def check_runs(self, node_id):
        status = self.processes[node_id].poll()
        if status is not None:
            text = self.log(node_id)[-3000:]
            raise AssertionError(f"{node_id} ended by itself with status {status}: {text}")

    def kill(self, node_id):
        self.check_runs(node_id)
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def signal(self, node_id, number):
        if self.is_up(node_id):
            self.processes[node_id].send_signal(number)

    def stop_one(self, node_id):
        """Stop a node cleanly; return a function that waits until it has ended."""
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGCONT)
        process.terminate()

        def ended():
            if process.wait(SETTLE_S):
                raise AssertionError(f"{node_id} stopped with status {process.returncode}")

        return ended

    def stop(self):
        """Stop all cleanly, at the same time."""
        for ended in [self.stop_one(node_id) for node_id in list(self.processes)]:
            ended()

    def end(self):
        """End all, whatever they do."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    # -- disks and clocks -----------------------------------------------------------------------

    def _journal(self, node_id):
        return self.directory / f"{node_id}.journal"

    def lose_power(self, node_id, generator):
        """Undo some of what a killed node had not made durable."""
        return lose_power(self._journal(node_id), generator)

    def wrong_by(self, node_id, seconds):
        """Set a node's wall clock."""
        self._faults[node_id][:1] = [seconds]
        self._tell(node_id)

    def fill_disk(self, node_id, left):
        """Leave so many bytes of a node's disk."""
        self._faults[node_id][1:] = [left]
        self._tell(node_id)

    def empty_disk(self, node_id):
        self._faults[node_id][1:] = []
        self._tell(node_id)

    def _tell(self, node_id):
        text = " ".join(map(str, self._faults[node_id]))
        (self.directory / f"{node_id}.faults").write_text(text)


@contextlib.contextmanager
def network_of(count):
    """Make a network of namespaces; None without the right to."""
    network = Network([f"n{number}" for number in range(count)])
    try:
        try:
            network.make()
        except NotPermittedError as error:
            print(f"no links are cut: {error}")
            network.remove()
            yield None
        else:
            yield network
    finally:
        network.remove()


def admin_of(servers):
    return AdminClient({"bootstrap.servers": servers, "log_level": 2})


def create_topics(brokers, topics):
    """Create topics, given as (name, partitions, configs), once all brokers are there."""
    admin = admin_of(brokers.bootstrap_servers)
    deadline = time.monotonic() + SETTLE_S
    while len(admin.list_topics(timeout=SETTLE_S).brokers) < len(brokers.ids):
        assert time.monotonic() < deadline, "not all brokers are known"
        time.sleep(0.1)
    made = [NewTopic(name, partitions, config=configs) for name, partitions, configs in topics]
    for future in admin.create_topics(made, operation_timeout=SETTLE_S).values():
        future.result(SETTLE_S)


# -- judgement -----------------------------------------------------------------------------------


async def caught_up(brokers, seconds=SETTLE_S):
    """Wait until all replicas are equal, by their chain CRCs, and whole."""
    async with asyncio.timeout(seconds):
        for group in filter(brokers.members, brokers.groups):
            members = brokers.members(group)
            servers = ",".join(brokers.addresses[one] for one in members)
            async with Client(servers, group, timeout_ms=10_000) as client:
                while not await _are_equal(client, len(members)):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)


async def _are_equal(client, count):
    with contextlib.suppress(QuorumlogError):
        states = [
            (s.end_index, s.end_chain_crc, s.committed_index, s.damaged_entries)
            for s in await client.status()
        ]
        end, _, committed, damaged = states[0]
        is_whole = end == committed and not damaged
        return len(states) == count and len(set(states)) == 1 and is_whole
    return False


async def spread_leaders(brokers, shift):
    """Have other nodes lead the partition groups."""
    for number, group in enumerate(brokers.partition_groups):
        members = brokers.members(group)
        async with Client(brokers.servers, group, timeout_ms=10_000) as client:
            with contextlib.suppress(QuorumlogError):
                await client.admin.transfer(members[(number + shift) % len(members)])


def store_command(*arguments):
    command = [sys.executable, "-m", "quorumlog", "store", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"'store {' '.join(arguments)}': {done.stdout}{done.stderr}")
    return done.stdout


def check_stores(brokers):
    """All stores verify; return their partitions by group, which all replicas have alike."""
    stored = {}
    for group in brokers.groups:
        for node_id in brokers.members(group):
            store = str(brokers.store(node_id, group))
            store_command("verify", store)
            if group != CLUSTER_GROUP:
                partitions = json.loads(store_command("partitions", "--json", store))["partitions"]
                if partitions != stored.setdefault(group, partitions):
                    raise AssertionError(
                        f"replicas of {group} differ: {stored[group]}, on {node_id} {partitions}"
                    )
    return stored


def check_logs(brokers):
    for node_id in brokers.ids:
        log = brokers.log(node_id)
        if "Traceback" in log:
            at = log.index("Traceback")
            raise AssertionError(f"{node_id} logged {log[max(0, at - 500) : at + 3000]}")


def counted(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing"
