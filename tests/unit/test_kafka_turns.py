"""Requests about thousands of topics, partitions or names let others have their turn."""

import asyncio

import pytest

from kafka_broker import kafka_cluster
from kafka_client import connected, fetch_values, produce_request
from quorumlog.kafka.handlers.produce import _Production
from quorumlog.kafka.requests import ApiKey
from record_batches import batch_of

PER_TURN, COUNT = 5, 60
NUMBERS = range(COUNT)
NAMES = [f"x{number}" for number in NUMBERS]
LONG_REQUESTS = [
    (
        ApiKey.METADATA,
        9,
        {
            "topics": [{"name": name} for name in NAMES],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    ),
    (
        ApiKey.LIST_OFFSETS,
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                    ],
                }
                for name in NAMES
            ],
        },
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [
                        {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0}
                        for number in NUMBERS
                    ],
                }
            ],
        },
    ),
    (
        ApiKey.DELETE_RECORDS,
        1,
        {
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": number, "offset": 0} for number in range(2, COUNT)
                    ],
                }
            ],
            "timeout_ms": 1,
        },
    ),
    (
        ApiKey.DESCRIBE_LOG_DIRS,
        1,
        {"topics": [{"topic": "t", "partitions": list(NUMBERS)}]},
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": name, "partition_indexes": [0]} for name in NAMES]},
    ),
    (
        ApiKey.ELECT_LEADERS,
        1,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": "u", "partitions": list(NUMBERS)}],
            "timeout_ms": 1,
        },
    ),
    (
        ApiKey.CREATE_TOPICS,
        4,
        {
            "topics": [
                {
                    "name": "../x",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for _ in NUMBERS
            ],
            "timeout_ms": 1,
            "validate_only": True,
        },
    ),
    (ApiKey.DELETE_TOPICS, 3, {"topic_names": ["../x"] * COUNT, "timeout_ms": 1}),
    (
        ApiKey.CREATE_PARTITIONS,
        1,
        {
            "topics": [{"name": "../x", "count": 3, "assignments": None} for _ in NUMBERS],
            "timeout_ms": 1,
            "validate_only": True,
        },
    ),
    (
        ApiKey.ALTER_CONFIGS,
        1,
        {
            "resources": [
                {"resource_type": 2, "resource_name": "../x", "configs": []} for _ in NUMBERS
            ],
            "validate_only": True,
        },
    ),
    (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": NAMES}),
]


@pytest.fixture
async def cluster(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 2)
        yield cluster


@pytest.fixture
async def turns(monkeypatch):
    """Those that others had while a request was handled."""
    found, sleep = [], asyncio.sleep

    async def counted(delay):
        found.append(delay)
        await sleep(delay)

    for module in ("context", "handlers.fetch"):
        monkeypatch.setattr(f"quorumlog.kafka.{module}.ELEMENTS_PER_TURN", PER_TURN)
    monkeypatch.setattr(asyncio, "sleep", counted)
    return found


async def test_handlers_let_others_have_their_turn(cluster, turns, caplog):
    async for client in connected(cluster):
        for key, version, values in LONG_REQUESTS:
            turns.clear()
            await client.ask(key, version, **values)
            assert turns.count(0) >= COUNT // PER_TURN - 1, key.name
    assert "handling a request of a Kafka client failed" not in caplog.messages


async def test_a_fetch_of_many_partitions_is_found_and_read_in_turns(cluster, turns):
    values = fetch_values(0)
    ((topic,),) = (values["topics"],)
    (first,) = topic["partitions"]
    topic["partitions"] = [{**first, "partition": number} for number in (0, 1, *range(2, COUNT))]
    values["topics"] = [topic, {**topic, "topic": "unknown"}]
    async for client in connected(cluster):
        found = await client.ask(ApiKey.FETCH, 12, **values)
    errors = [[one.error_code for one in topic.partitions] for topic in found.responses]
    assert errors == [[0, 0] + [3] * (COUNT - 2), [3] * COUNT]
    assert turns.count(0) >= 2 * COUNT // PER_TURN


async def test_a_fetch_reads_thousands_of_partitions_of_a_group_in_turns(cluster, turns):
    await cluster.create_topic("many", COUNT)
    values = fetch_values(0, topic="many", wait_ms=1)
    (first,) = values["topics"][0]["partitions"]
    values["topics"][0]["partitions"] = [{**first, "partition": number} for number in NUMBERS]
    async for client in connected(cluster):
        await client.produce(*[batch_of(range(1))] * COUNT, topic="many")
        found = await client.ask(ApiKey.FETCH, 12, **values)
    partitions = found.responses[0].partitions
    assert [one.partition_index for one in partitions] == list(NUMBERS)
    assert all(one.error_code == 0 and one.records for one in partitions)


async def test_a_produce_of_many_batches_is_proposed_in_turns_and_keeps_its_order(
    cluster, monkeypatch
):
    monkeypatch.setattr("quorumlog.kafka.handlers.produce.BATCHES_PER_TURN", PER_TURN)
    calls, go_on = [], _Production.go_on

    def counted(production):
        calls.append(production)
        return go_on(production)

    monkeypatch.setattr(_Production, "go_on", counted)
    await cluster.create_topic("many", COUNT)
    request = produce_request(*[batch_of(range(1))] * COUNT, topic="many")
    async for client in connected(cluster):
        client.writer.write(2 * request)
        for offset in range(2):
            found = (await client.answer(ApiKey.PRODUCE, 9)).responses[0].partition_responses
            assert [(one.error_code, one.base_offset) for one in found] == [(0, offset)] * COUNT
    assert len(calls) == 2 * COUNT // PER_TURN
    assert calls == sorted(calls, key=calls.index), "the second one waits for the first"
