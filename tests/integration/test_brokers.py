"""Three nodes that hold topics, in one event loop: what one decides, all of them know."""

import asyncio
import os
from pathlib import Path

import pytest

from integration.conftest import free_ports, until
from partition_group import prepared
from quorumlog.broker import leaders, pace
from quorumlog.broker.broker import Broker
from quorumlog.client.client import Client
from quorumlog.machine.cluster.commands import (
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    TopicToDelete,
)
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.node.node import Node, monotonic_ms
from quorumlog.service.requests import ClientRequests
from small_files import SMALL_FILES, SMALL_SETTINGS

SECONDS = 60
AGAIN = {
    ResponseCode.NOT_LEADER,
    ResponseCode.LEADER_TRANSFERRING,
    ResponseCode.LEADER_NOT_READY,
}


class Brokers:
    """Nodes n0, n1 … that are brokers; each can be stopped and started again."""

    def __init__(self, directory, count=3, **options):
        ports = free_ports(2 * count)
        self.ids = [f"n{number}" for number in range(count)]
        peers = ";".join(
            f"{one}-127.0.0.1:{port}" for one, port in zip(self.ids, ports[:count], strict=True)
        )
        group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
        self.configs = {
            node_id: NodeConfig(
                self_id=node_id,
                store_base_dir=str(directory / node_id),
                groups=[group],
                kafka_listen=f"127.0.0.1:{port}",
                partition_groups=SMALL_SETTINGS,
                **options,
            )
            for node_id, port in zip(self.ids, ports[count:], strict=True)
        }
        self.nodes, self.brokers = {}, {}

    async def start(self, *node_ids):
        for node_id in node_ids or self.ids:
            broker = Broker(self.configs[node_id])
            node = Node(self.configs[node_id], ClientRequests, broker.attachments)
            await node.start()
            broker.start(node)
            self.nodes[node_id], self.brokers[node_id] = node, broker

    async def stop(self, *node_ids, clean=True):
        for node_id in node_ids or list(self.nodes):
            self.brokers.pop(node_id).stop()
            await self.nodes.pop(node_id).stop(clean=clean)

    async def execute(self, command, node_id=None, timeout_ms=SECONDS * 1000):
        broker = self.brokers[node_id or next(iter(self.brokers))]
        return await broker.execute(command, timeout_ms)

    async def create(self, name, partitions=3, node_id=None, **configs):
        """Make a topic; return its id once all nodes see all its partitions open and led."""
        topic_id = os.urandom(16)
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        command = CreateTopics([NewTopic(name, topic_id, partitions, configs=configs)])
        result = await self.execute(command, node_id)
        assert result.topics[0].code is ResponseCode.SUCCESS, result
        await self.see(name, topic_id)
        return topic_id

    async def see(self, name, topic_id):
        """Wait until all nodes know a topic, and who leads its partitions."""
        for broker in self.brokers.values():
            known = await broker.until(
                lambda broker=broker: (
                    name in broker.topics and broker.topics[name].topic_id == topic_id
                ),
                SECONDS * 1000,
            )
            assert known, f"{broker.config.self_id} does not know {name}"
            assert await broker.wait_open([topic_id], SECONDS * 1000), broker.topics[name]

    def controller(self):
        return next(
            node_id
            for node_id, node in self.nodes.items()
            if node.replicas[CLUSTER_GROUP].core.role is Role.LEADER
        )

    async def produce(self, name, number=0, **fields):
        """Produce a record, as clients do: at the leader, wherever that is; return its offset."""
        async with asyncio.timeout(SECONDS):
            while True:
                response, offset = await self._produce(name, number, fields)
                if response.code == ResponseCode.SUCCESS:
                    return offset
                assert response.code in AGAIN, response
                await asyncio.sleep(0.02)

    async def _produce(self, name, number, fields):
        broker = next(iter(self.brokers.values()))
        partition = broker.topics[name].partitions[number]
        await broker.until(
            lambda: broker.leader_of(partition.group).broker_id in broker.brokers, SECONDS * 1000
        )
        leader = broker.registered[broker.leader_of(partition.group).broker_id].node_id
        replica = self.brokers[leader].replica(partition.group)
        batch, block = prepared(partition.channel, **fields)
        answered = asyncio.get_running_loop().create_future()
        replica.propose(block, lambda *answer: answered.set_result(answer), batch)
        response, _ = await answered
        return response, batch.base_offset

    def leaders_of(self, name):
        """Return the brokers that lead partitions of a topic, as the first node knows them."""
        broker = next(iter(self.brokers.values()))
        return {broker.leader_of(one.group).broker_id for one in broker.topics[name].partitions}


@pytest.fixture
async def brokers(tmp_path):
    made = Brokers(tmp_path)
    yield made
    await made.stop(clean=False)


async def test_a_topic_is_known_with_its_leaders_on_all_nodes_and_can_be_produced_to(brokers):
    await brokers.start()
    await brokers.create("orders", 6)
    views = [broker.topics["orders"] for broker in brokers.brokers.values()]
    assert views[0] == views[1] == views[2]
    n0 = brokers.brokers["n0"]
    assert sorted(n0.brokers) == [0, 1, 2]
    # each group has another preferred leader
    assert await n0.until(lambda: brokers.leaders_of("orders") == {0, 1, 2}, SECONDS * 1000)
    assert [await brokers.produce("orders", number) for number in range(6)] == [0] * 6
    assert await brokers.produce("orders", 5) == 1
    group = views[0].partitions[0].group
    assert sorted(n0.replicas_of(group)) == [0, 1, 2]
    assert await n0.until(lambda: sorted(n0.in_sync_of(group)) == [0, 1, 2], SECONDS * 1000)
    assert n0.controller_id == int(brokers.controller()[1:])


async def test_a_new_leader_says_so_at_once_although_brokers_look_seldom(brokers, monkeypatch):
    await brokers.start()
    await brokers.create("orders", 3)
    n0 = brokers.brokers["n0"]
    assert await n0.until(lambda: brokers.leaders_of("orders") == {0, 1, 2}, SECONDS * 1000)
    # soon nobody looks again before the test is over, unless it is told to
    monkeypatch.setattr(pace, "LATELY_MS", 0)
    monkeypatch.setattr(pace, "QUIET_LOOK_MS", 1_000 * SECONDS * 1000)
    monkeypatch.setattr(leaders, "SILENT_MS", 1_000 * SECONDS * 1000)
    timers = [broker._parts._pace._timer for broker in brokers.brokers.values()]
    seconds_ms = 1_000 * SECONDS
    await until(lambda: all(one.deadline_ms > monotonic_ms() + seconds_ms for one in timers))
    await brokers.stop("n2", clean=False)
    assert await n0.until(lambda: brokers.leaders_of("orders") == {0, 1}, SECONDS * 1000)
    n1 = brokers.brokers["n1"]
    groups = [one.group for one in n0.topics["orders"].partitions]
    assert await n1.until(
        lambda: [n1.leader_of(one) for one in groups] == [n0.leader_of(one) for one in groups],
        SECONDS * 1000,
    )


async def test_a_broker_keeps_its_number_at_another_address_and_after_a_restart(brokers):
    await brokers.start()
    n0, n1 = brokers.brokers["n0"], brokers.brokers["n1"]
    assert await n0.until(lambda: sorted(n0.brokers) == [0, 1, 2], SECONDS * 1000)
    n1.advertise("127.0.0.9", 9_999)
    assert await n0.until(lambda: n0.registered[1].port == 9_999, SECONDS * 1000)
    cluster_id = n0.cluster_id
    await brokers.stop("n1")
    await brokers.start("n1")
    n1, port = brokers.brokers["n1"], int(brokers.configs["n1"].kafka_listen.rpartition(":")[2])
    assert await n0.until(lambda: n0.registered[1].port == port, SECONDS * 1000)
    assert await n1.until(lambda: n1.is_complete and n1.broker_id == 1, SECONDS * 1000)
    assert n1.cluster_id == cluster_id


async def test_a_deleted_topic_is_gone_everywhere_and_its_name_is_free_at_once(brokers):
    await brokers.start()
    first = await brokers.create("orders", 3)
    places = [(one.group, one.channel) for one in brokers.brokers["n0"].topics["orders"].partitions]
    await brokers.produce("orders")
    outcome = (await brokers.execute(DeleteTopics([TopicToDelete("orders")]), "n1")).topics[0]
    assert (outcome.code, outcome.topic_id) == (ResponseCode.SUCCESS, first)
    second = await brokers.create("orders", 3, node_id="n2")
    assert second != first
    assert await brokers.produce("orders") == 0
    again = brokers.brokers["n0"].topics["orders"].partitions
    assert not {(one.group, one.channel) for one in again} & set(places)
    for group, channel in places:  # the logs close what the topic had
        for node in brokers.nodes.values():
            tables = node.replicas[group].tables
            await until(lambda tables=tables, channel=channel: channel not in known(tables))


def known(tables):
    return tables.partitions.partitions


async def test_the_leader_of_the_cluster_group_may_be_killed_while_topics_are_made(brokers):
    await brokers.start()
    await brokers.create("before")
    victim = brokers.controller()
    others = [node_id for node_id in brokers.ids if node_id != victim]
    ids = {f"t{number}": os.urandom(16) for number in range(40)}
    commands = [CreateTopics([NewTopic(name, topic_id, 2)]) for name, topic_id in ids.items()]
    making = [
        asyncio.create_task(brokers.execute(command, others[number % 2]))
        for number, command in enumerate(commands)
    ]
    await asyncio.sleep(0)
    await brokers.stop(victim, clean=False)
    for result in await asyncio.gather(*making):
        assert result.topics[0].code is ResponseCode.SUCCESS, result
    for name, topic_id in ids.items():
        await brokers.see(name, topic_id)
    await brokers.produce("t39", 1)
    await brokers.start(victim)
    back = brokers.brokers[victim]
    assert await back.until(lambda: back.is_complete, SECONDS * 1000)
    assert set(back.topics) == {"before", *ids}
    assert await back.wait_open(ids.values(), SECONDS * 1000)
    assert all(broker.topics == back.topics for broker in brokers.brokers.values())


async def test_202_topics_and_what_is_in_them_outlive_a_restart_of_all_nodes(brokers):
    await brokers.start()
    topic_id = await brokers.create("orders", 3, retention_ms="1000")
    assert await brokers.produce("orders", 2) == 0
    before = brokers.brokers["n0"].view
    await brokers.stop()
    await brokers.start()
    await brokers.see("orders", topic_id)
    for broker in brokers.brokers.values():
        assert await broker.until(lambda broker=broker: broker.is_complete, SECONDS * 1000)
        assert broker.cluster_id == before.cluster_id
        assert broker.topics == before.topics
    assert await brokers.produce("orders", 2) == 1


async def test_nothing_appends_to_the_cluster_group_but_brokers(brokers):
    await brokers.start()
    servers = ",".join(node.config.listen_address for node in brokers.nodes.values())
    async with Client(servers, CLUSTER_GROUP) as client:
        with pytest.raises(UnexpectedArgumentError, match="belongs to the brokers"):
            await client.append(b"x")


async def test_retention_follows_the_configs_of_topics_and_of_the_cluster(brokers):
    await brokers.start()
    await brokers.create("short", 1, retention_bytes="1")
    for _ in range(3):
        await brokers.produce("short")
    n0 = brokers.brokers["n0"]
    partition = n0.topics["short"].partitions[0]

    def log_starts():
        found = [node.replicas[partition.group] for node in brokers.nodes.values()]
        return {one.partition_reads.partition(partition.channel).log_start for one in found}

    await until(lambda: log_starts() == {2}, seconds=SECONDS)
    change = ConfigChange("delete", "retention.bytes")
    await brokers.execute(AlterConfigs([AlterResource("short", [change])]))
    default = ConfigChange("set", "log.retention.ms", "0")
    await brokers.execute(AlterConfigs([AlterResource(None, [default])]))
    await until(lambda: log_starts() == {3}, seconds=SECONDS)


async def test_b9_a_topic_that_keeps_little_shares_no_files_with_one_that_keeps_all(brokers):
    await brokers.start()
    await brokers.create("all", 1, retention_ms="-1")
    await brokers.create("little", 1, retention_ms="-1", retention_bytes="1")
    n0 = brokers.brokers["n0"]
    group = n0.topics["little"].partitions[0].group
    assert n0.topics["all"].partitions[0].group != group
    for _ in range(3):
        await brokers.produce("all")
        for _ in range(8):
            await brokers.produce("little", value=bytes(1 << 20))

    def are_freed():
        """Whether all replicas have removed the first data files of the topic that keeps little."""
        stores = [Path(config.store_base_dir) / group for config in brokers.configs.values()]
        names = [{file.name for file in (store / "data").iterdir()} for store in stores]
        return all(each and "0" * 20 not in each for each in names)

    await until(are_freed, seconds=SECONDS)
    assert await brokers.produce("all") == 3
    partition = n0.topics["all"].partitions[0]
    for node in brokers.nodes.values():
        kept = node.replicas[partition.group].partition_reads.partition(partition.channel)
        assert kept.log_start == 0
