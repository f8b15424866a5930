"""Nodes in the program of a test that serve Kafka clients, with topics that the test made.

Each node has a listener for Kafka's clients and a broker that knows what the test says: which
topics there are, and which of their partitions are on which channels of one group. Who leads comes
from the replicas of all nodes.
"""

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from uuid import uuid4

from quorumlog.broker.broker import GroupLeader
from quorumlog.kafka.listener import KafkaListener
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.transactions import TransactionView
from quorumlog.model.block import parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.node.node import Node
from quorumlog.service.requests import ClientRequests
from quorumlog.sessions.entries import decode_system_entry
from quorumlog.topics.entries import PartitionOpened
from small_files import SMALL_FILES, directory_in_memory

GROUP = "pg-1"
OPENED_TOGETHER = 500


class TopicsOfTest:
    """What all brokers of a test know."""

    def __init__(self):
        self.topics = {}
        self.channels = itertools.count(1)
        self.producer_ids = itertools.count(1_000, 1_000)
        self.kafka = {}
        """All nodes that run, by their number."""
        self.watchers = []

    def changed(self):
        for call in list(self.watchers):
            call()

    def replicas(self):
        return {number: one.node.replicas.get(GROUP) for number, one in self.kafka.items()}


class BrokerOfTest:
    """The broker of one node."""

    def __init__(self, known, number, node):
        self._known, self._node = known, node
        self.broker_id = self.controller_id = number
        self.cluster_id = "cluster-of-test"
        self.is_complete = True
        self.coordinator_term = -1
        self.consumer_groups = {}
        self.transactions = TransactionView()
        self.sinks = {}
        self.refusal = self.makes = ""
        self.version = 1
        self.defaults = {"auto.create.topics.enable": "false"}

    @property
    def topics(self):
        return self._known.topics

    @property
    def topics_by_id(self):
        return {one.topic_id: one for one in self._known.topics.values()}

    @property
    def brokers(self):
        return {
            number: SimpleNamespace(
                broker_id=number, host="127.0.0.1", port=one.listener.port, rack=None
            )
            for number, one in self._known.kafka.items()
        }

    @property
    def registered(self):
        return self.brokers

    @property
    def replicas_at_least(self):
        return len(self._known.kafka)

    def in_sync_of(self, group):
        return tuple(self._known.kafka)

    def replicas_of(self, group):
        return tuple(self._known.kafka)

    def is_made(self, group):
        return self.makes != group

    def leader_of(self, group):
        leaders = [
            (replica.core.term, number)
            for number, replica in self._known.replicas().items()
            if replica is not None and replica.core.role is Role.LEADER
        ]
        term, number = max(leaders, default=(-1, -1))
        return GroupLeader(number, term)

    def replica(self, group):
        return self._node.replicas.get(group)

    def when_changed(self, call):
        self._known.watchers.append(call)
        return lambda: self._known.watchers.remove(call)

    async def wait_elected(self):
        pass

    def ask_barrier(self, timeout_ms, done):
        done(True)

    async def execute(self, command, timeout_ms):
        raise AssertionError(command)


class KafkaNode:
    """A node that serves Kafka clients."""

    def __init__(self, known, number, config):
        self.node = Node(config, ClientRequests)
        self.broker = BrokerOfTest(known, number, self.node)
        self._known, self._number = known, number
        self.listener = KafkaListener(
            "127.0.0.1",
            0,
            config,
            self.broker,
            self._allocate,
            self.node.executor,
            self.node.turn.at_end,
        )

    async def _allocate(self, count):
        return next(self._known.producer_ids)

    async def start(self):
        await self.node.start()
        self._known.kafka[self._number] = self
        await self.listener.start()

    async def stop(self, *, clean=True):
        """End it, unless it has ended."""
        if self._known.kafka.pop(self._number, None) is None:
            return
        await self.listener.stop()
        await self.node.stop(clean=clean)


class KafkaCluster:
    """Nodes that serve Kafka clients, and the topics that a test makes."""

    def __init__(self, known):
        self.known = known

    @property
    def nodes(self):
        return self.known.kafka

    @property
    def servers(self):
        return ",".join(f"127.0.0.1:{one.listener.port}" for one in self.nodes.values())

    async def leader(self):
        """Return the number of the node that leads, once it is ready."""
        while True:
            number = next(iter(self.nodes.values())).broker.leader_of(GROUP).broker_id
            if number in self.nodes and self.nodes[number].node.replicas[GROUP].core.is_ready:
                return number
            await asyncio.sleep(0.01)

    async def create_topic(self, name, partitions=1, **configs):
        """Open a topic's partitions; `configs` have underscores for dots."""
        topic_id = uuid4().bytes
        opened = [
            PartitionOpened(next(self.known.channels), number, topic_id, name)
            for number in range(partitions)
        ]
        for first in range(0, partitions, OPENED_TOGETHER):
            entries = [one.encode() for one in opened[first : first + OPENED_TOGETHER]]
            # a leader that is alone steps down while the disk of a busy machine stalls; a partition
            # that was opened all the same is not opened again
            while not await self._append(entries):
                await self.leader()
        self.known.topics[name] = SimpleNamespace(
            name=name,
            topic_id=topic_id,
            partitions=tuple(
                SimpleNamespace(number=one.number, group=GROUP, channel=one.channel, is_open=True)
                for one in opened
            ),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        self.known.changed()

    async def _append(self, entries):
        replica = self.nodes[await self.leader()].node.replicas[GROUP]
        block = parse_block(
            memoryview(bytearray(b"".join(entries))), count=len(entries), entry_bytes_max=4_096
        )
        first = decode_system_entry(block.data[48 : block.sizes[0]])
        answered = asyncio.get_running_loop().create_future()
        replica.propose(block, lambda response, _: answered.set_result(response), first)
        return (await answered).code == ResponseCode.SUCCESS


@asynccontextmanager
async def kafka_cluster(directory, count=1, **limits):
    """Run nodes that serve Kafka clients; their data is in memory where that can be."""
    ids = [f"n{number}" for number in range(count)]
    peers = ";".join(
        f"{node_id}-127.0.0.1:{port}" for node_id, port in zip(ids, free_ports(count), strict=True)
    )
    group = GroupConfig(group=GROUP, peers=peers, kind="partitions", **SMALL_FILES)
    known = TopicsOfTest()
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(directory_in_memory(directory))
        for number, node_id in enumerate(ids):
            config = NodeConfig(
                self_id=node_id, store_base_dir=str(directory / node_id), groups=[group], **limits
            )
            one = KafkaNode(known, number, config)
            await one.start()
            stack.push_async_callback(one.stop)
        yield KafkaCluster(known)
