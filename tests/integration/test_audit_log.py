"""What the audit log of a node has of those that administer it, and of those that it refuses."""

import asyncio
import json
import os
import stat
from contextlib import asynccontextmanager

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from embedding import configs
from quorumlog import Client, GroupConfig
from quorumlog.local.ports import free_ports
from quorumlog.model.config import AUDIT_LOG_NAME, CLUSTER_GROUP
from quorumlog.model.errors import RequestError
from quorumlog.service.served_node import ServedNode
from small_files import SMALL_FILES, SMALL_SETTINGS

SECONDS = 60


def config_of(directory, **keys):
    (config,) = configs(directory, count=1).values()
    (kafka,) = free_ports(1)
    peers = config.groups[0].peers
    cluster = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
    return msgspec.structs.replace(
        config,
        groups=[*config.groups, cluster],
        kafka_listen=f"127.0.0.1:{kafka}",
        partition_groups=SMALL_SETTINGS,
        **keys,
    )


@asynccontextmanager
async def served(config):
    node = ServedNode(config, {})
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def lines_of(config):
    path = os.path.join(config.store_base_dir, AUDIT_LOG_NAME)
    with open(path, "rb") as file:
        return [json.loads(line) for line in file]


def told(config, event="administration"):
    return [
        (line["operation"], line["resource"], line["request"], line["reason"].partition(":")[0])
        for line in lines_of(config)
        if line["event"] == event
    ]


def administer(servers):
    admin = AdminClient({"bootstrap.servers": servers, "client.id": "the admin"})

    def done(futures):
        for future in futures.values():
            future.exception(SECONDS)

    done(admin.create_topics([NewTopic("orders", 1, 1)], operation_timeout=SECONDS))
    done(admin.create_topics([NewTopic("orders", 1, 1)]))
    done(admin.create_topics([NewTopic("only checked", 1, 1)], validate_only=True))
    done(admin.create_partitions([NewPartitions("orders", 2)]))
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"x", partition=0)
    assert producer.flush(SECONDS) == 0
    done(admin.delete_records([TopicPartition("orders", 0, 1)]))
    committed = ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 0, 1)])
    done(admin.alter_consumer_group_offsets([committed]))
    done(admin.delete_consumer_groups(["readers"]))
    done(admin.delete_topics(["orders"], operation_timeout=SECONDS))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """That of a node that was administered, and has stopped; umask 0 counted meanwhile."""
    directory = tmp_path_factory.mktemp("audited")
    config = config_of(directory, audit_data=["topic:ord*", "group:g"])

    async def run():
        async with served(config) as node:
            await asyncio.to_thread(administer, config.kafka_listen)
            server = config.listen_address
            async with Client(server, config.groups[0].group) as client:
                await client.append(b"x")
                await client.admin.groups.create("made", replicas=1, settings=SMALL_SETTINGS)
                await client.admin.groups.alter("made", {"logLevel": "DEBUG"})
                await client.admin.groups.delete("made")
                with pytest.raises(RequestError):
                    await client.admin.save_snapshot()
            reader, writer = await asyncio.open_connection(*server.split(":"))
            writer.write(b"GET / HTTP/1.1\r\n\r\n\x1b[2J")
            await reader.read()
            writer.close()
            assert node.node.failure.done() is False

    umask = os.umask(0)
    try:
        asyncio.run(run())
    finally:
        os.umask(umask)
    return config


def test_what_was_administered_has_a_line_each(directory):
    config = directory
    peers, keys = config.groups[0].peers, ", ".join(SMALL_SETTINGS)
    all_keys = ", ".join([*sorted(SMALL_SETTINGS), "logLevel"])
    assert [one for one in told(config) if not one[1].startswith("group:pg-")] == [
        ("Create", "topic:orders", "CREATE_TOPICS", ""),
        ("Create", "topic:orders", "CREATE_TOPICS", "TOPIC_ALREADY_EXISTS"),
        ("Alter", "topic:orders", "CREATE_PARTITIONS 2 partitions", ""),
        ("AlterConfigs", "topic:orders", "INCREMENTAL_ALTER_CONFIGS retention.ms", ""),
        ("Delete", "topic:orders", "DELETE_RECORDS records of 1 partition", ""),
        ("Delete", "consumer-group:readers", "DELETE_GROUPS", ""),
        ("Delete", "topic:orders", "DELETE_TOPICS", ""),
        ("Create", "group:made", f"CreateGroup {peers} {keys}", ""),
        ("Alter", "group:made", f"AlterGroup prepare {all_keys}", ""),
        ("Alter", "group:made", f"AlterGroup {all_keys}", ""),
        ("Delete", "group:made", "DeleteGroup", ""),
        ("Alter", "group:g", "Snapshot", "UNSUPPORTED"),
    ]


def test_lines_say_who_it_was_and_from_where(directory):
    first = next(line for line in lines_of(directory) if line["operation"] == "Create")
    assert first["client"] in {"the admin", ""}
    assert first["principal"] == "User:ANONYMOUS"
    assert first["address"].startswith("127.0.0.1:")
    assert first["allowed"] is True


def test_the_start_and_the_stop_of_the_node_are_the_first_and_the_last_line(directory):
    lines = lines_of(directory)
    assert lines[0]["event"] == "node-started"
    assert lines[-1]["event"] == "node-stopped"
    assert {line["node"] for line in lines} == {directory.self_id}


def test_a_connection_that_is_refused_is_told_of(directory):
    (line,) = [line for line in lines_of(directory) if line["event"] == "connection-refused"]
    assert line["allowed"] is False
    assert "are not the beginning of a frame" in line["reason"]


def test_reads_and_writes_are_told_of_where_that_is_wanted(directory):
    found = told(directory, "data-access")
    assert ("Write", "topic:orders", "PRODUCE", "") in found
    named = {resource for _, resource, _, _ in found}
    wanted = {f"group:{one.group}" for one in directory.groups if one.group == "g"}
    assert named == {"topic:orders", *wanted}


async def test_a_node_finds_its_audit_log_not_strange(tmp_path, caplog):
    config = config_of(tmp_path)
    os.mkdir(config.store_base_dir)
    for name in ("", ".1", ".12", ".old"):
        os.mknod(f"{config.store_base_dir}/{AUDIT_LOG_NAME}{name}")
    async with served(config):
        pass
    strange = [
        one.quorumlog_fields["path"] for one in caplog.records if one.getMessage() == "strange file"
    ]
    assert strange == [f"{config.store_base_dir}/{AUDIT_LOG_NAME}.old"]


def test_nobody_but_the_owner_may_use_anything_in_the_directory(directory):
    shown = []
    for path, folders, files in os.walk(directory.store_base_dir):
        for name in (*folders, *files):
            mode = stat.S_IMODE(os.lstat(os.path.join(path, name)).st_mode)
            if mode & 0o077:
                shown.append((os.path.join(path, name), oct(mode)))
    assert shown == []
