"""Nodes in the program of a test that serve Kafka clients as brokers, in a thread of their own.

Clients that block, as Kafka's admin clients do, run in the test's own thread.
"""

import asyncio
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from quorumlog.broker.broker import Broker
from quorumlog.kafka.groups.log_consumers import LogConsumers
from quorumlog.kafka.listener import KafkaListener
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.commands import AllocateProducerIds
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.node.node import Node, wall_ms
from quorumlog.service.consumers import ConsumerService
from quorumlog.service.requests import ClientRequests
from quorumlog.service.security import SecurityService
from small_files import SMALL_FILES, SMALL_SETTINGS, directory_in_memory
from steady_loop import SteadyLoop

SECONDS = 60
QUICK = {
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
}
"""So that nobody waits for the next heartbeat, or the end of a session."""


class KafkaNode:
    """One node, its broker and the listener for Kafka's clients."""

    def __init__(self, config):
        self.is_stopped = False
        self.broker = Broker(config)
        self.consumers = ConsumerService(config, lambda: self.broker.view, wall_ms)
        self.security = SecurityService(config)
        requests = partial(ClientRequests, consumers=self.consumers, security=self.security)
        self.node = Node(config, requests, self.broker.attachments)
        host, _, port = config.kafka_listen.rpartition(":")
        self.listener = KafkaListener(
            host,
            int(port),
            config,
            self.broker,
            self._allocate,
            self.node.executor,
            self.node.turn.at_end,
        )

    async def _allocate(self, count):
        found = await self.broker.execute(AllocateProducerIds(count), SECONDS * 1000)
        return found.first

    async def start(self):
        await self.node.start()
        self.broker.start(self.node)
        self.security.broker = self.broker
        coordinator, replica = self.listener.coordinator, self.node.replicas[CLUSTER_GROUP]
        self.consumers.coordinator = LogConsumers(
            coordinator, self.listener.commits, self.broker, lambda: replica.core.leader_id
        )
        await self.listener.start()

    async def stop(self):
        if self.is_stopped:
            return
        self.is_stopped = True
        self.consumers.coordinator = self.security.broker = None
        await self.listener.stop()
        self.broker.stop()
        await self.node.stop(clean=False)


class KafkaNodes:
    """The nodes of a cluster by number, and how to do something in their event loop.

    `servers` are for Kafka's clients, `addresses` for quorumlog's own.
    """

    def __init__(self, loop, nodes, configs):
        self._loop = loop
        self.nodes = nodes
        self.servers = ",".join(one.kafka_listen for one in configs)
        self.addresses = ",".join(configs[0].cluster_group.members.values())

    def run(self, coroutine):
        """Return what a coroutine returns that runs in the nodes' event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    def settle(self):
        """Wait until all nodes know what one of them knows, and preferred leaders lead.

        Those of new partition groups take over soon after the first election.
        """
        self.run(self._settled())

    async def _settled(self):
        async with asyncio.timeout(SECONDS):
            while True:
                if self._is_settled():
                    return
                await asyncio.sleep(0.01)

    def _is_settled(self):
        brokers = [one.broker for one in self.nodes]
        known = [(one.view.topics, one.view.defaults, one.security.version) for one in brokers]
        return known.count(known[0]) == len(known) and all(
            partition.is_open
            and broker.leader_of(partition.group).broker_id
            == broker.view.groups[partition.group].members[0]
            for broker in brokers
            for topic in broker.topics.values()
            for partition in topic.partitions
        )

    def leader_of(self, topic, number=0):
        """Return the node that leads a partition."""
        broker = self.nodes[0].broker
        return self.nodes[broker.leader_of(broker.topics[topic].partitions[number].group).broker_id]


def _configs(directory, count, logs, options):
    ports = free_ports(2 * count)
    ids = [f"n{number}" for number in range(count)]
    peers = ";".join(
        f"{node_id}-127.0.0.1:{port}" for node_id, port in zip(ids, ports[:count], strict=True)
    )
    groups = [GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)]
    groups += [GroupConfig(group=name, peers=peers, **SMALL_FILES) for name in logs]
    return [
        NodeConfig(
            self_id=node_id,
            store_base_dir=str(directory / node_id),
            groups=groups,
            kafka_listen=f"127.0.0.1:{port}",
            partition_groups=SMALL_SETTINGS,
            **options,
        )
        for node_id, port in zip(ids, ports[count:], strict=True)
    ]


async def _start(configs):
    nodes = [KafkaNode(config) for config in configs]
    for one in nodes:
        await one.start()
    for broker in (one.broker for one in nodes):

        def knows_all(broker=broker):
            return len(broker.brokers) == len(configs) and broker.is_complete

        assert await broker.until(knows_all, SECONDS * 1000)
    return nodes


@contextmanager
def kafka_nodes(directory, count=1, logs=(), **options):
    """Run nodes that serve Kafka clients, until all of them know each other.

    `logs`: plain groups that they have, too.
    """
    place = directory_in_memory(directory) if count == 1 else nullcontext(directory)
    with place as found, _running(found, count, logs, options) as nodes:
        yield nodes


@contextmanager
def _running(directory, count, logs, options):
    configs = _configs(directory, count, logs, options)
    loop = SteadyLoop()
    thread = threading.Thread(target=loop.run_forever, name="nodes of the test")
    thread.start()
    try:
        started = asyncio.run_coroutine_threadsafe(_start(configs), loop)
        nodes = started.result(SECONDS)
        yield KafkaNodes(loop, nodes, configs)
        for one in nodes:
            asyncio.run_coroutine_threadsafe(one.stop(), loop).result(SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()


def files_with(cluster, *secrets):
    """Return the files of all nodes that have one of some bytes."""
    found = []
    for node in cluster.nodes:
        for file in Path(node.node.config.store_base_dir).rglob("*"):
            try:
                data = file.read_bytes() if file.is_file() else b""
            except FileNotFoundError:
                continue
            found += [str(file)] if any(one in data for one in secrets) else []
    return found


def idempotent_producer(servers, **options):
    """Return a producer whose records are there once, though leaders change on a busy machine."""
    return Producer({"bootstrap.servers": servers, "enable.idempotence": True, **options})


def hasten(servers, session_ms=QUICK["group.consumer.session.timeout.ms"]):
    """Have members of consumer groups say more often that they are alive.

    `session_ms`: after how long a silent one is removed. By default it is so short that those whose
    machine is busy may be removed, too.
    """
    configs = QUICK | {"group.consumer.session.timeout.ms": session_ms}
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(SECONDS)
