"""The port for Kafka clients of a node that is a broker: real topics, in one event loop."""

import asyncio
import dataclasses
import os
from contextlib import suppress

import pytest

import quorumlog
from kafka_client import connected_to
from quorumlog.broker.broker import Broker
from quorumlog.kafka.requests import ApiKey
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.commands import (
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreateTopics,
    NewTopic,
)
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.node.node import Node
from quorumlog.service.kafka_clients import KafkaService, kafka_listener, serve_kafka
from quorumlog.service.metrics import NodeMetrics
from quorumlog.service.requests import ClientRequests
from record_batches import batch_of
from small_files import SMALL_FILES, SMALL_SETTINGS

WITHIN_MS = 60_000
METADATA_OF_ALL = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


@pytest.fixture
async def served(memory_path):
    """A node that is the only broker, and its listener."""
    config = broker_config(memory_path, "127.0.0.1:0")
    broker = Broker(config)
    node = Node(config, ClientRequests, broker.attachments)
    await node.start()
    broker.start(node)
    listener = kafka_listener(node, broker)
    await serve_kafka(node, broker, listener)
    yield node, broker, listener
    await listener.stop()
    broker.stop()
    await node.stop()


async def test_a_node_serves_topics_to_kafka_clients(served):
    node, broker, listener = served
    assert broker.advertised == f"127.0.0.1:{listener.port}"
    topic_id = os.urandom(16)
    assert await broker.until(lambda: broker.broker_id >= 0, WITHIN_MS)
    await broker.execute(CreateTopics([NewTopic("t", topic_id, 2)]), WITHIN_MS)
    assert await broker.wait_open([topic_id], WITHIN_MS)
    async for client in connected_to(listener.port):
        values = {"transactional_id": None, "transaction_timeout_ms": 1}
        values |= {"producer_id": -1, "producer_epoch": -1}
        ids = [await client.ask(ApiKey.INIT_PRODUCER_ID, 4, **values) for _ in range(2)]
        assert [one.error_code for one in ids] == [0, 0]
        assert ids[0].producer_id != ids[1].producer_id
        found = await client.produce(batch_of(range(3)), batch_of(range(2)))
        assert [(one.error_code, one.base_offset) for one in found] == [(0, 0), (0, 0)]
        assert (await client.fetch(0, wait_ms=10_000)).high_watermark == 3
        change = ConfigChange("set", "message.max.bytes", "100")
        await broker.execute(AlterConfigs([AlterResource(None, [change])]), WITHIN_MS)
        found = await client.produce(batch_of(range(50)))
        assert [one.error_code for one in found] == [10]
    value = NodeMetrics(node, listener.counters).registry.get_sample_value
    labels = {"request": "PRODUCE", "error": "NONE"}
    assert value("quorumlog_kafka_requests_total", labels) == 1
    assert value("quorumlog_kafka_requests_total", labels | {"error": "MESSAGE_TOO_LARGE"}) == 1
    assert value("quorumlog_kafka_produce_seconds_count") == 2


async def test_connections_beyond_the_node_s_descriptors_are_closed(served):
    node, _, listener = served
    node.descriptors = dataclasses.replace(node.descriptors, kafka_connections=1)
    async for client in connected_to(listener.port):
        await client.ask(ApiKey.METADATA, 12, **METADATA_OF_ALL)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert (await client.ask(ApiKey.METADATA, 12, **METADATA_OF_ALL)).topics == []


async def test_the_first_client_of_a_new_cluster_is_told_of_a_broker_and_a_controller(served):
    _, broker, listener = served
    async for client in connected_to(listener.port):
        found = await client.ask(ApiKey.METADATA, 8, topics=[], allow_auto_topic_creation=False)
    assert [one.node_id for one in found.brokers] == [0]
    assert found.controller_id == 0
    assert broker.is_complete


async def test_without_a_known_leader_of_the_cluster_a_broker_names_itself_controller(served):
    _, broker, _ = served
    assert await broker.until(lambda: broker.is_complete, WITHIN_MS)
    broker._parts.leader = lambda: None
    assert broker.controller_id == broker.broker_id == 0


async def test_a_node_whose_kafka_port_is_taken_does_not_start(served):
    node, broker, listener = served
    taken = NodeConfig(
        self_id="n0",
        store_base_dir=node.config.store_base_dir,
        groups=node.config.groups,
        kafka_listen=f"127.0.0.1:{listener.port}",
    )
    node.config = taken
    with pytest.raises(ConfigError, match="cannot listen"):
        await serve_kafka(node, broker, kafka_listener(node, broker))


async def test_a_node_that_stops_while_its_kafka_port_is_opened_leaves_it_closed(
    memory_path, caplog
):
    config = broker_config(memory_path, f"localhost:{free_ports(1)[0]}")
    kafka = KafkaService(config)
    node = Node(config, ClientRequests, kafka.attachments)
    await node.start()
    starting = asyncio.create_task(kafka.start(node))
    await asyncio.sleep(0)  # it looks up the name of the host
    await kafka.stop()
    await starting
    await node.stop()
    assert "serves Kafka clients" not in caplog.messages
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(*config.kafka_listen.split(":"))


def broker_config(directory, kafka_listen):
    peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
    group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
    return NodeConfig(
        self_id="n0",
        store_base_dir=str(directory),
        groups=[group],
        kafka_listen=kafka_listen,
        partition_groups=SMALL_SETTINGS,
    )


async def test_a_node_in_a_program_serves_topics_and_creates_those_that_are_produced_to(
    memory_path,
):
    (port,) = free_ports(1)
    config = broker_config(memory_path, f"127.0.0.1:{port}")
    async with quorumlog.Node(config):
        async for client in connected_to(port):
            (answer,) = await client.produce(batch_of(range(3)), topic="new")
            assert (answer.error_code, answer.base_offset) == (0, 0)
            assert (await client.fetch(0, topic="new", wait_ms=10_000)).high_watermark == 3
    async with quorumlog.Node(config):  # the first has given back its files and its ports
        async for client in connected_to(port):
            found = await client.ask(ApiKey.METADATA, 12, **METADATA_OF_ALL)
            assert [one.name for one in found.topics] == ["new"]


async def test_a_node_in_a_program_whose_kafka_port_is_taken_does_not_start(served, tmp_path):
    _, _, listener = served
    node = quorumlog.Node(broker_config(tmp_path / "other", f"127.0.0.1:{listener.port}"))
    with pytest.raises(ConfigError, match="cannot listen"):
        await node.start()


def test_a_program_has_no_machine_and_no_hook_for_the_group_of_the_brokers(tmp_path):
    node = quorumlog.Node(broker_config(tmp_path, "127.0.0.1:1"))
    with pytest.raises(ConfigError, match="brokers' own"):
        node.add_group(CLUSTER_GROUP, append_hook=lambda place, body: None)
