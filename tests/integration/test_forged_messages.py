"""Messages in a member's name that no member meant, to real processes: nothing durable comes of it.

There is no authentication yet: whoever reaches the port can say that it is a member. It can
disturb, but must not end nodes, nor remove what was acknowledged.
"""

import json

import msgspec
import pytest

from integration.stranger import Stranger
from quorumlog import KV
from quorumlog.client import Client, Producer
from quorumlog.model.bounds import TERM_MAX
from quorumlog.model.codes import ResponseCode
from quorumlog.model.group_records import IDENTITY_BYTES, GroupRecord
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.groups import GroupInvitation
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    InstallSnapshotRequest,
    NodeHeartBeat,
    ReadIndexResponse,
    RepairResponse,
    SnapshotChunk,
    StateDigest,
    TimeoutNowRequest,
    VoteRequest,
)
from quorumlog.sessions.table_set import TableSet
from quorumlog.wire.kinds import KIND_OF_MESSAGE

pytestmark = pytest.mark.processes

ENTRIES = 50


async def in_the_name_of(cluster, member, target):
    """A connection that says it is a member's."""
    stranger = await Stranger.at(cluster.address(target))
    assert isinstance(await stranger.hear(), Hello)
    name = json.loads((cluster.directory / "cluster.json").read_text())["cluster"]
    stranger.log_event(Hello(cluster=name, node_id=member, role="control", address="127.0.0.1:1"))
    return stranger


async def store(cluster, *bodies):
    """Store each once. Elections may be disturbed: a single append's outcome would be unknown."""
    async with Producer(cluster.servers, "g") as producer:
        for body in bodies:
            await producer.send(body)


async def assert_nothing_is_lost(cluster, client):
    """All entries of before are there, and appends go on."""
    await store(cluster, b"after")
    bodies = [entry.body async for entry in client.read("earliest", follow=False)]
    assert bodies[:ENTRIES] == [b"%d" % number for number in range(ENTRIES)]
    assert set(bodies[ENTRIES:]) == {b"after"}


def others(cluster, node_id):
    return [other for other in cluster.node_ids if other != node_id]


def offered(target, member, term, request_id, index):
    """An offer of a log that begins after an index, in a member's name."""
    return InstallSnapshotRequest(
        group="g",
        local_id=member,
        remote_id=target,
        term=term,
        request_id=request_id,
        last_included_index=index,
        last_included_term=term - request_id - 1,
    )


def raised(message, **fields):
    """The message with values that no Python code of ours would send."""
    return msgspec.structs.replace(message, **fields)


async def test_a_node_that_is_no_member_has_no_group_made_and_hears_of_none(cluster):
    target = cluster.node_ids[0]
    stranger = await in_the_name_of(cluster, "n9", target)
    names = {"local_id": "n9", "remote_id": target}
    peers = f"{target}-{cluster.address(target)};n9-127.0.0.1:1"
    record = GroupRecord(group="evil", identity=b"e" * IDENTITY_BYTES, peers=peers)
    stranger.log_event(GroupInvitation(**names, record=record), correlation_id=9)
    answer = await stranger.hear()
    assert answer.code == ResponseCode.UNKNOWN_MEMBER
    assert "n9 is a member of no group" in answer.text
    vote = VoteRequest(
        **names, group="g", term=1_000, ledger_end_index=1 << 40, ledger_end_term=999
    )
    stranger.log_event(vote, correlation_id=10)
    answer = await stranger.hear()
    assert answer.code == ResponseCode.UNKNOWN_MEMBER, "nothing else has come, no introduction"
    stranger.close()
    async with Client(cluster.servers, "g") as client:
        assert [one.group for one in await client.admin.groups.list()] == ["g"]


async def test_a_heartbeat_of_a_term_beyond_all_is_refused_and_the_sender_named(cluster, until):
    async with Client(cluster.servers, "g") as client:
        await store(cluster, *(b"%d" % number for number in range(ENTRIES)))
        for target in cluster.node_ids:
            for member in others(cluster, target):
                stranger = await in_the_name_of(cluster, member, target)
                beat = HeartBeatRequest(
                    group="g", local_id=member, remote_id=target, term=(1 << 63) - 1, round=1
                )
                stranger.log_event(beat, correlation_id=9)
                answer = await stranger.hear()
                assert answer.code == ResponseCode.UNEXPECTED_ARGUMENT
                assert f"kind {KIND_OF_MESSAGE[HeartBeatRequest]} is malformed" in answer.text
                for term in (TERM_MAX, 2_000_000):
                    stranger.log_event(raised(beat, term=term))
                    stranger.log_event(
                        VoteRequest(
                            group="g",
                            local_id=member,
                            remote_id=target,
                            term=term,
                            ledger_end_index=1 << 40,
                            ledger_end_term=term - 1,
                        )
                    )
                stranger.close()
            log, line = cluster.log_file(target), '"event": "refusing a frame", "who": "n'
            await until(
                lambda log=log, line=line: line in log.read_text(), what="a line of its log"
            )
        await assert_nothing_is_lost(cluster, client)
        assert max(status.term for status in await client.status()) < 1_000
    for node_id in cluster.node_ids:
        cluster.restart(node_id)
    async with Client(cluster.servers, "g") as client:
        await assert_nothing_is_lost(cluster, client)


async def test_forged_offers_to_begin_elsewhere_remove_nothing(cluster):
    async with Client(cluster.servers, "g") as client:
        await store(cluster, *(b"%d" % number for number in range(ENTRIES)))
        for index in (49, 60, 1_000_000):  # the last entry, soon after it, and far away
            await offer_to_all(cluster, client, index)
            await assert_nothing_is_lost(cluster, client)
            assert {status.begin_index for status in await client.status()} == {0}
    for node_id in cluster.node_ids:
        assert "log reset" not in cluster.log_file(node_id).read_text()


async def offer_to_all(cluster, client, index):
    """Offer every member logs that begin after this index, in the name of each other one."""
    term = max(status.term for status in await client.status()) + 1
    table = TableSet(index).encode()
    for target in cluster.node_ids:
        for member in others(cluster, target):
            stranger = await in_the_name_of(cluster, member, target)
            for request_id in range(3):
                offer = offered(target, member, term + request_id, request_id, index)
                stranger.log_event(offer, [table])
            stranger.close()


@pytest.mark.parametrize("index", [49, 60, 1_000_000])
async def test_nor_does_a_member_that_has_nothing_yet_take_them(make_cluster, until, index):
    """It would acknowledge what comes after entries that it has never seen."""
    async with make_cluster() as cluster:
        await cluster.start("n2")
        replica, table = cluster.replica("n2"), TableSet(index).encode()
        for member in ("n0", "n1"):
            stranger = await Stranger.at(cluster.addresses["n2"])
            await stranger.hear()
            stranger.log_event(
                Hello(cluster="quorumlog", node_id=member, role="control", address="127.0.0.1:1")
            )
            before = replica.counters.alarms
            for request_id in range(3):
                stranger.log_event(
                    offered("n2", member, 3 + request_id, request_id, index), [table]
                )
            await until(lambda before=before: replica.counters.alarms > before)  # nobody confirms
            stranger.close()
        assert (replica.log.before_begin_index, replica.core.committed_index) == (-1, -1)
        await cluster.start("n0", "n1")
        async with cluster.client() as client:
            await client.append(b"first")
            await until(lambda: len(set(cluster.logs().values())) == 1)
            assert {status.begin_index for status in await client.status()} == {0}


async def test_answers_that_nobody_asked_for_and_beats_beyond_all_change_nothing(cluster):
    async with Client(cluster.servers, "g") as client:
        await store(cluster, *(b"%d" % number for number in range(ENTRIES)))
        term = max(status.term for status in await client.status())
        for target in cluster.node_ids:
            for member in others(cluster, target):
                stranger = await in_the_name_of(cluster, member, target)
                who = {"local_id": member, "remote_id": target}
                for request_id in range(20):
                    known = {**who, "group": "g", "term": term, "request_id": request_id}
                    gone = ResponseCode.INDEX_OUT_OF_RANGE
                    stranger.log_event(RepairResponse(**known, code=gone, begin_index=1 << 40))
                    piece = SnapshotChunk(**known, code=ResponseCode.SUCCESS, offset=0)
                    stranger.log_event(piece, [b"x" * 100])
                    stranger.log_event(
                        ReadIndexResponse(**known, code=ResponseCode.SUCCESS, index=0)
                    )
                stranger.log_event(TimeoutNowRequest(**who, group="g", term=term, end_index=-1))
                stranger.log_event(
                    NodeHeartBeat(
                        **who,
                        run=1 << 62,
                        number=1 << 62,
                        base=0,
                        version=1 << 62,
                        interval_ms=1 << 50,
                        changes=[("g", term), ("h", TERM_MAX)],
                    )
                )
                stranger.close()
        await assert_nothing_is_lost(cluster, client)


async def test_digests_that_nobody_asked_for_have_nobody_give_up_its_state(make_cluster, until):
    """As verdicts of the leader, and to it as reports; of entries that are applied and to come."""
    settings = {"snapshot_threshold": 30, "digest_entries": 50}
    kept = {"reset_snapshot_entries_but_keep_last_entries_num": 0}
    async with make_cluster(state_machine="kv", **settings, **kept) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for number in range(60):
                await KV(client).put(f"k{number}", str(number))
        await cluster.stop()
        await cluster.start()  # what they agreed about is not known any more

        def is_ready():
            leader = cluster.leader_id()
            least = min(cluster.replica(node_id).applied_index for node_id in cluster.ids)
            return leader is not None and cluster.replica(leader).core.is_ready and least >= 60

        await until(is_ready)
        leader = cluster.leader_id()
        term = cluster.replica(leader).core.term
        for member, target in [
            (one, other) for one in cluster.ids for other in cluster.ids if one != other
        ]:
            stranger = await Stranger.at(cluster.addresses[target])
            await stranger.hear()
            stranger.log_event(
                Hello(cluster="quorumlog", node_id=member, role="control", address="127.0.0.1:1")
            )
            for index in (49, 99, 149):
                is_verdict = member == leader
                lie = StateDigest(
                    group="g",
                    local_id=member,
                    remote_id=target,
                    term=term,
                    index=index,
                    digest=b"nonsense",
                    is_verdict=is_verdict,
                    is_majority=is_verdict,
                )
                stranger.log_event(lie)
            unknown = InstallSnapshotRequest(
                group="nobody's",
                local_id=member,
                remote_id=target,
                term=1,
                request_id=0,
                last_included_index=0,
                last_included_term=0,
            )
            stranger.log_event(unknown, correlation_id=9)
            await stranger.hear()  # so everything before it was taken
            stranger.close()
        async with cluster.client() as client:
            for number in range(100):
                await KV(client).put(f"k{number}", str(number))
            replicas = [cluster.replica(node_id) for node_id in cluster.ids]
            await until(lambda: all(one.applied_index >= 160 for one in replicas))
            assert [one.counters.machine_rebuilds for one in replicas] == [0, 0, 0]
            assert await KV(client).get("k1") == b"1"
