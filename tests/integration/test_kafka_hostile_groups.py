"""Requests about consumer groups that no client of goodwill sends: refused, and nothing is left."""

import asyncio

import pytest
from test_kafka_consumer_groups import without_delay

from kafka_client import connected_to
from kafka_nodes import SECONDS, kafka_nodes
from kafka_peer import sent
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.machine.cluster.commands import MEMBERS_MAX

JOIN, SYNC, HEARTBEAT = 5, 3, 3
"""Versions: the first in which members have ids before they join, those with instance ids."""
PIPELINED = 200
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        without_delay(nodes)
        yield nodes


def run(cluster, work):
    """Return what a coroutine returns that is given a client."""

    async def with_client():
        async for client in connected_to(cluster.nodes[0].listener.port):
            return await asyncio.wait_for(work(client), SECONDS)
        return None

    return asyncio.run(with_client())


def joining(group, member_id="", metadata=b""):
    return {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


async def joined(client, group):
    """Join a group as a member; return the answer once its generation has begun."""
    first = await client.ask(ApiKey.JOIN_GROUP, JOIN, **joining(group))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return await client.ask(ApiKey.JOIN_GROUP, JOIN, **joining(group, first.member_id))


def syncing(group, generation, member_id, assignments=()):
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "assignments": [
            {"member_id": one, "assignment": assignment} for one, assignment in assignments
        ],
    }


async def names(client):
    found = await client.ask(ApiKey.LIST_GROUPS, 4, states_filter=[])
    return {one.group_id for one in found.groups}


async def errors_of(client, requests):
    """Send many requests to join; return the error of each."""
    errors = []
    for begin in range(0, len(requests), PIPELINED):
        some = requests[begin : begin + PIPELINED]
        client.writer.write(b"".join(sent(ApiKey.JOIN_GROUP, JOIN, one) for one in some))
        errors += [(await client.answer(ApiKey.JOIN_GROUP, JOIN)).error_code for _ in some]
    return errors


def test_c4_a_member_that_says_a_mebibyte_of_itself_is_refused_and_makes_no_group(cluster):
    async def work(client):
        await names(client)  # the first request of a connection is a small one
        said = joining("large", metadata=bytes(MIB))
        answer = await client.ask(ApiKey.JOIN_GROUP, JOIN, **said)
        return answer.error_code, await names(client)

    error, groups = run(cluster, work)
    assert error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "large" not in groups


def test_c4_the_member_after_the_last_one_is_refused(cluster):
    async def work(client):
        return await errors_of(client, [joining("crowd")] * (MEMBERS_MAX + 1))

    *first, last = run(cluster, work)
    assert set(first) == {ErrorCode.MEMBER_ID_REQUIRED}
    assert last == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("generation", [-2, 2**31 - 1, -(2**31)])
def test_c4_a_generation_that_there_never_was_is_refused(cluster, generation):
    group = f"generation {generation}"
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [{**offset, "committed_metadata": ""}]}]

    async def work(client):
        mine = await joined(client, group)
        member = {"group_id": group, "member_id": mine.member_id, "group_instance_id": None}
        asked = {**member, "generation_id": generation}
        found = [
            await client.ask(ApiKey.HEARTBEAT, HEARTBEAT, **asked),
            await client.ask(ApiKey.SYNC_GROUP, SYNC, **syncing(group, generation, mine.member_id)),
        ]
        commit = {**member, "generation_id_or_member_epoch": generation, "topics": topics}
        committed = await client.ask(ApiKey.OFFSET_COMMIT, 8, **commit)
        return [one.error_code for one in found] + [committed.topics[0].partitions[0].error_code]

    assert run(cluster, work) == [ErrorCode.ILLEGAL_GENERATION] * 3


def test_c4_what_a_follower_assigns_counts_for_nothing(cluster):
    async def work(leader):
        first = await joined(leader, "led")
        async for follower in connected_to(cluster.nodes[0].listener.port):
            second = asyncio.ensure_future(joined(follower, "led"))
            beat = {
                "group_id": "led",
                "generation_id": first.generation_id,
                "member_id": first.member_id,
                "group_instance_id": None,
            }
            while True:
                beaten = await leader.ask(ApiKey.HEARTBEAT, HEARTBEAT, **beat)
                if beaten.error_code:
                    break
                await asyncio.sleep(0.01)
            again = joining("led", first.member_id)
            generation = (await leader.ask(ApiKey.JOIN_GROUP, JOIN, **again)).generation_id
            mine, theirs = first.member_id, (await second).member_id
            stolen = [(mine, b""), (theirs, b"everything")]
            of_follower = asyncio.ensure_future(
                follower.ask(ApiKey.SYNC_GROUP, SYNC, **syncing("led", generation, theirs, stolen))
            )
            given = [(mine, b"one half"), (theirs, b"the other half")]
            of_leader = await leader.ask(
                ApiKey.SYNC_GROUP, SYNC, **syncing("led", generation, mine, given)
            )
            return of_leader.assignment, (await of_follower).assignment
        return None

    assert run(cluster, work) == (b"one half", b"the other half")
