"""What clients of a node may do by their rights, on both of its ports.

Each key of Kafka's protocol is asked for by clients with each right (`kafka_rights_table`). Who a
client is, the test says: with real logins roles are tested by `test_security_table`.
"""

import asyncio
import os
import time
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

import quorumlog.errors as qe
from kafka_client import Client as KafkaClient
from kafka_client import fetch_values, produce_request, until
from kafka_peer import sent
from kafka_rights_table import LOGINS, ROLES, TABLE, WRITES, errors_in
from login_cluster import SECONDS, login_node
from quorumlog import Client
from quorumlog.client.consumer import Consumer
from quorumlog.kafka.requests import SPOKEN, ApiKey
from quorumlog.machine.cluster.commands import AlterAcls, CreateTopics, NewTopic
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.spark.sink.topics.coordinator import SinkBatch, SinkCoordinator
from record_batches import batch_of
from rights import acl

FORBIDDEN = {29, 30, 31, 53}
TOPIC_ID = os.urandom(16)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node that judges, with topics and groups; nobody logs in there."""
    place = tmp_path_factory.mktemp("rights")
    with login_node(
        place,
        groups=("g", "hidden"),
        login="none",
        authorization="on",
        super_users=["User:super"],
    ) as node:
        topics = [NewTopic("t", TOPIC_ID, 1), NewTopic("hidden", os.urandom(16), 1)]
        node.run(node.broker.execute(CreateTopics(topics), SECONDS * 1_000))
        for one in topics:
            assert node.run(node.broker.wait_open([one.topic_id], SECONDS * 1_000))
        give(node, *(acl(f"User:{role}", text) for role in ROLES for text in ROLES[role]))
        yield node


def alter(node, added, removed):
    async def applied():
        broker = node.broker
        await broker.execute(AlterAcls("User:super", "", added, removed), SECONDS * 1_000)
        version = broker.view.security
        acls = {one for found in version.acls.values() for one in found}
        assert acls.issuperset(added)
        assert acls.isdisjoint(removed)

    node.run(applied())


def give(node, *acls):
    alter(node, list(acls), [])


def take(node, *acls):
    alter(node, [], list(acls))


async def become(connections, socket, principal):
    """Have the node take the client with this socket for somebody."""
    host, port = socket.getsockname()[:2]
    while True:
        for one in list(connections):
            if one.remote_address == f"{host}:{port}":
                one.principal = principal
                return
        await asyncio.sleep(0.001)


@asynccontextmanager
async def kafka_client(node, principal):
    host, port = node.kafka.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await become(
        node.served._kafka._listener.connections, writer.get_extra_info("socket"), principal
    )
    try:
        yield KafkaClient(reader, writer)
    finally:
        writer.close()


def principal_of(role):
    return "User:ANONYMOUS" if role == "anonymous" else f"User:{role}"


def is_allowed(answer):
    return FORBIDDEN.isdisjoint(errors_in(answer.to_dict()))


# -- Kafka's port -------------------------------------------------------------------------------


def test_the_table_has_each_key_that_is_spoken():
    assert {key for key, *_ in TABLE} | {ApiKey.PRODUCE} | LOGINS == set(SPOKEN)


@pytest.mark.parametrize("role", ROLES)
async def test_a_kafka_client_may_have_what_its_rights_say_and_nothing_else(node, role):
    found = {}
    async with kafka_client(node, principal_of(role)) as client:
        for place, (key, version, values, _) in enumerate(TABLE):
            client.writer.write(sent(key, version, values))
            found[place, key.name] = is_allowed(await client.answer(key, version))
        (answer,) = await client.produce(batch_of(range(1)))
    expected = {
        (place, key.name): role == "super" or role in allowed
        for place, (key, _, _, allowed) in enumerate(TABLE)
    }
    assert found == expected
    assert (answer.error_code == 0) is (role in {*WRITES, "super"})


METADATA = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": True}


def uuid_of(topic_id):
    return UUID(bytes=topic_id)


async def test_a_hidden_topic_is_told_from_no_absent_one(node):
    names = [{"topic_id": None, "name": name} for name in ("t", "hidden", "absent")]
    async with kafka_client(node, "User:describe") as client:
        found = await client.ask(ApiKey.METADATA, 12, topics=names, **METADATA)
        by_name = {one.name: one for one in found.topics}
        assert {name: one.error_code for name, one in by_name.items()} == {
            "t": 0,
            "hidden": 29,
            "absent": 29,
        }
        assert by_name["hidden"].partitions == by_name["absent"].partitions == []
        assert by_name["t"].authorized_operations == {8}
        found = await client.ask(ApiKey.METADATA, 12, topics=None, **METADATA)
        assert [one.name for one in found.topics] == ["t"]
        hidden = node.broker.topics["hidden"].topic_id
        ids = [{"topic_id": one, "name": None} for one in (TOPIC_ID, hidden, os.urandom(16))]
        ids = [one | {"topic_id": uuid_of(one["topic_id"])} for one in ids]
        found = await client.ask(ApiKey.METADATA, 12, topics=ids, **METADATA)
        assert [one.error_code for one in found.topics] == [0, 100, 100]


async def test_a_topic_that_may_not_be_read_is_unknown_by_its_id_to_whom_may_not_describe_it(node):
    for role, error in (("nothing", 100), ("describe", 29), ("read", 0)):
        async with kafka_client(node, principal_of(role)) as client:
            found = await client.fetch(0, version=13, topic_id=uuid_of(TOPIC_ID))
            assert found.error_code == error


async def test_topics_are_created_for_those_who_may_create_them(node):
    names = [{"topic_id": None, "name": name} for name in ("made-1", "made-2")]
    give(node, acl("User:maker", "describe topic *"), acl("User:maker", "create topic made-1"))
    async with kafka_client(node, "User:maker") as client:
        found = await client.ask(ApiKey.METADATA, 12, topics=names, **METADATA)
    assert {one.name: one.error_code for one in found.topics} == {"made-1": 0, "made-2": 3}
    assert "made-2" not in node.broker.topics


async def test_no_topic_is_created_while_that_could_not_be_recorded(node, monkeypatch):
    give(node, acl("User:scribe", "create topic noted"), acl("User:scribe", "write topic noted"))
    names = [{"topic_id": None, "name": "noted"}]
    audit = type(node.served.node.instruments.audit)
    async with kafka_client(node, "User:scribe") as client:
        with monkeypatch.context() as full:
            full.setattr(audit, "has_room", False)
            found = await client.ask(ApiKey.METADATA, 12, topics=names, **METADATA)
            assert [one.error_code for one in found.topics] == [3]
            assert "noted" not in node.broker.topics
        found = await client.ask(ApiKey.METADATA, 12, topics=names, **METADATA)
        assert [one.error_code for one in found.topics] == [0]


async def test_a_request_of_several_topics_is_answered_for_those_that_are_allowed(node):
    values = fetch_values(0)
    values["topics"] += fetch_values(0, topic="hidden")["topics"]
    async with kafka_client(node, "User:read") as client:
        found = await client.ask(ApiKey.FETCH, 12, **values)
    errors = {one.topic: one.partitions[0].error_code for one in found.responses}
    assert errors == {"t": 0, "hidden": 29}


async def test_a_member_is_assigned_what_it_may_describe_of_what_its_expression_matches(node):
    give(node, acl("User:erin", "read consumers erins"), acl("User:erin", "describe topic t"))
    values = {
        "group_id": "erins", "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout_ms": 1_000, "subscribed_topic_names": None,
        "subscribed_topic_regex": "t|hidden", "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    async with kafka_client(node, "User:erin") as client:
        found = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)
        assert found.error_code == 0
        assert [one.topic_id for one in found.assignment.topic_partitions] == [uuid_of(TOPIC_ID)]
        values |= {"member_epoch": -1, "subscribed_topic_regex": None, "topic_partitions": None}
        found = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)
        assert found.error_code == 0


async def waits(node, principal):
    """Wait until the node has a request of somebody's under way."""
    connections = node.served._kafka._listener.connections
    await until(
        lambda: any(one.principal == principal and not one.is_idle for one in list(connections))
    )


async def test_a_fetch_that_waits_ends_with_the_refusal_once_the_right_is_gone(node):
    right = acl("User:carol", "read topic t")
    give(node, right)
    async with kafka_client(node, "User:carol") as carol, kafka_client(node, "User:super") as root:
        end = (await carol.fetch(0)).high_watermark
        values = fetch_values(end, wait_ms=SECONDS * 1_000)
        waiting = asyncio.ensure_future(carol.ask(ApiKey.FETCH, 12, **values))
        await waits(node, "User:carol")
        take(node, right)
        assert not waiting.done()
        assert (await root.produce(batch_of(range(1))))[0].error_code == 0
        found = (await waiting).responses[0].partitions[0]
        assert (found.error_code, found.records) == (29, b"")
        assert (await carol.fetch(0)).error_code == 29


async def test_a_transactional_batch_without_its_transactional_id_is_refused(node):
    give(node, acl("User:dave", "write topic t"))
    batch = batch_of(range(1), producer_id=5, epoch=0, sequence=0, is_transactional=True)
    async with kafka_client(node, "User:dave") as client:
        client.writer.write(produce_request(batch))
        found = await client.answer(ApiKey.PRODUCE, 9)
    assert found.responses[0].partition_responses[0].error_code == 53


# -- the node's own port --------------------------------------------------------------------------


@asynccontextmanager
async def native_client(node, principal, group="g"):
    """A client whose connections the node takes for somebody's."""
    listener = node.served.node.listener
    taken = asyncio.create_task(_name_all(listener, principal))
    try:
        async with Client(node.address, group, timeout_ms=10_000) as client:
            yield client
    finally:
        taken.cancel()


async def _name_all(listener, principal):
    while True:
        for one in list(listener.connections):
            if one.principal == "User:ANONYMOUS":
                one.principal = principal
        await asyncio.sleep(0)


async def test_a_client_without_the_right_is_told_so_at_once_and_nothing_was_done(node):
    async with native_client(node, "User:nothing") as client:
        began = time.monotonic()
        with pytest.raises(qe.NotAuthorizedError, match=r"nothing may not .* group 'g'") as raised:
            await client.append(b"x")
        assert raised.value.outcome is qe.Outcome.DID_NOT_HAPPEN
        assert time.monotonic() - began < 5


async def test_who_may_write_appends_and_who_may_read_reads(node):
    give(node, acl("User:erin", "write group g"), acl("User:frank", "read group g"))
    async with native_client(node, "User:erin") as writer:
        at = await writer.append(b"hello")
        with pytest.raises(qe.NotAuthorizedError, match="erin may not read group 'g'"):
            await writer.get(at.index)
    async with native_client(node, "User:frank") as reader:
        assert (await reader.get(at.index)).body == b"hello"
        with pytest.raises(qe.NotAuthorizedError, match="frank may not write group 'g'"):
            await reader.append(b"x")


async def test_a_consumer_of_a_log_needs_rights_on_its_group_and_on_the_log(node):
    give(node, acl("User:grace", "read group g"))
    async with native_client(node, "User:grace"):
        with pytest.raises(qe.NotAuthorizedError, match="read consumer group 'readers'"):
            async with Consumer(node.address, group="readers", log="g") as consumer:
                await anext(aiter(consumer))


async def test_a_sink_needs_the_right_on_its_own_attempts_alone_and_says_which_it_lacks(node):
    allowed = acl("User:ANONYMOUS", "write transaction quorumlog-sink:mine:*")

    def join(sink):
        with SinkCoordinator(node.kafka, SECONDS * 1_000) as coordinator:
            return coordinator.join(SinkBatch(sink, "run", 0), attempt_id(sink, "a"))

    give(node, allowed)
    try:
        assert (await asyncio.to_thread(join, "mine")).last_batch == -1
        with pytest.raises(qe.NotAuthorizedError, match=r"acl add .*'quorumlog-sink:other:\*'"):
            await asyncio.to_thread(join, "other")
    finally:
        take(node, allowed)
