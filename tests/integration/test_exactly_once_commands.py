"""Commands on real nodes: executed once, and answered alike, however often they are sent."""

import asyncio
import shutil

import msgspec
import pytest

from quorumlog.client.connection import ServerConnection
from quorumlog.machine.kv_commands import Put, Transaction, decode_outcome, encode_command
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    LeaderPendingFullError,
    Outcome,
    ResultsForgottenError,
    UnexpectedArgumentError,
    UnsupportedError,
    error_for,
)
from quorumlog.model.messages.client import AppendRequest
from quorumlog.node.replica import command_results as node_results
from quorumlog.sessions.entries import encode_session_block

COUNTER = {"state_machine": "counting:Counter"}
SMALL = {**COUNTER, "snapshot_threshold": 10, "follower_retention_bytes": 0}


async def sent(cluster, producer_id, sequence, commands):
    """Send a block of commands to the leader as it is; return its answer and the results."""
    block = encode_session_block(producer_id, sequence, commands, keeps_results=True)
    node_id = cluster.leader_id()
    limits = cluster.configs[node_id].limits
    connection = ServerConnection(cluster.addresses[node_id], "", limits, group="g")
    await connection.open(60.0)
    try:
        request = AppendRequest(group="g", count=len(commands) + 1, wants_results=True)
        answer = await connection.request(request, [block])
    finally:
        connection.close()
    attachment = answer.attachment
    return answer.response, msgspec.msgpack.decode(attachment) if len(attachment) else []


async def led_by_another(cluster, until):
    before = cluster.leader_id()
    await cluster.stop(before, clean=False)
    await until(lambda: cluster.leader_id() not in (None, before))
    await cluster.start(before)


def matched(leader, peer):
    return next(found.match_index for found in leader.core.peer_progress() if found.peer_id == peer)


def kv_put(key, value):
    return encode_command(Transaction((), (Put(key, value),), ()))


MACHINES = {
    "counting:Counter": ([b"5", b"7"], [b"5", b"12"], b"1"),
    "kv": ([kv_put(b"a", b"1"), kv_put(b"a", b"2")], None, kv_put(b"a", b"3")),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("trouble", ["nothing", "fail_over", "restart", "snapshot"])
async def test_a_repeated_command_is_told_its_first_result(make_cluster, until, machine, trouble):
    commands, wanted, other = MACHINES[machine]
    async with make_cluster(state_machine=machine) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.query(b"" if machine != "kv" else b"\x92\x00\xc4\x01a")
            first, results = await sent(cluster, 7, 0, commands)
            assert first.code == ResponseCode.SUCCESS
            if wanted is None:
                assert [decode_outcome(found).previous for found in results] == [[None], [b"1"]]
            else:
                assert results == wanted
            await client.execute(other)
            if trouble == "fail_over":
                await led_by_another(cluster, until)
            elif trouble == "restart":
                await cluster.stop(clean=False)
                await cluster.start()
            elif trouble == "snapshot":
                for node_id in cluster.ids:
                    await client.admin.save_snapshot()
                    if node_id != cluster.leader_id():
                        leader = cluster.replica(cluster.leader_id())
                        await until(lambda to=node_id, by=leader: matched(by, to) >= 0)
                        await client.admin.transfer(node_id)
                        await until(lambda node=node_id: cluster.leader_id() == node)
                await cluster.stop()
                await cluster.start()
            await client.execute(other)
            again, told = await sent(cluster, 7, 0, commands)
            assert (again.code, again.first_index, again.last_index) == (
                first.code,
                first.first_index,
                first.last_index,
            )
            assert told == results


async def test_a_replica_that_was_given_a_snapshot_tells_results_that_are_in_it(
    make_cluster, until
):
    async with make_cluster(**SMALL) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(away)
            _, results = await sent(cluster, 7, 0, [b"2", b"3"])
            for _ in range(40):
                await client.execute(b"1")
            await client.admin.save_snapshot()
            leader = cluster.replica(cluster.leader_id())
            await until(lambda: leader.log.before_begin_index > 20)
            before = leader.core.membership_index
            shutil.rmtree(f"{cluster.configs[away].store_base_dir}/g")
            await cluster.start(away)
            await until(lambda: cluster.replica(away).applier.state.machine.total == 46)
            # with an emptied disk it is removed, and made a voter again
            await until(lambda: leader.core.membership_index > before)
            await client.admin.wait_until_voter(away, timeout_s=20)
            leader = cluster.replica(cluster.leader_id())
            end = leader.log.end_index
            await until(lambda: matched(leader, away) >= end)
            await client.admin.transfer(away)
            await until(lambda: cluster.leader_id() == away)
            await client.execute(b"1")
            _, told = await sent(cluster, 7, 0, [b"2", b"3"])
            assert told == results == [b"3", b"6"]


async def test_commands_through_fail_overs_are_executed_once_each(make_cluster, until):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"0")  # from then on a majority of the founders will do
            answered = []

            async def one_after_the_other():
                for _ in range(150):
                    answered.append(int((await client.execute(b"1", timeout_ms=30_000)).result))

            async def trouble():
                for _ in range(4):
                    await until(lambda: cluster.leader_id() is not None)
                    await led_by_another(cluster, until)

            await asyncio.gather(trouble(), *(one_after_the_other() for _ in range(8)))
            assert sorted(answered) == list(range(1, 1_201))
            assert (await client.query(b"")).answer == b"1200"


async def test_results_that_are_not_kept_any_more_are_a_clear_error(make_cluster, monkeypatch):
    monkeypatch.setattr(node_results.CommandResults, "find", lambda *where: None)
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            first, _ = await sent(cluster, 7, 0, [b"2"])
            again, told = await sent(cluster, 7, 0, [b"2"])
            error = error_for(again.code, again.text)
            assert isinstance(error, ResultsForgottenError)
            assert error.outcome is Outcome.HAPPENED
            assert f"executed as entries {first.last_index} to {first.last_index}" in str(error)
            assert told == []
            assert (await client.query(b"")).answer == b"3"


async def test_a_session_that_was_forgotten_begins_anew(make_cluster):
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            tables = cluster.replica("n0").tables
            tables._current.sessions.sessions.clear()
            assert (await client.execute(b"1")).result == b"2"


async def test_commands_for_a_plain_log_say_so_also_when_they_are_sent_again(make_cluster):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(UnsupportedError, match="no state machine") as caught:
                await client.execute(b"1")
            assert caught.value.outcome is Outcome.HAPPENED
            first, _ = await sent(cluster, 7, 0, [b"1"])
            again, told = await sent(cluster, 7, 0, [b"1"])
            assert (again.code, again.first_index, told) == (first.code, first.first_index, [])


async def test_more_commands_than_may_wait_are_refused(make_cluster, monkeypatch):
    monkeypatch.setattr("quorumlog.client.machine_calls.WAITING_MAX", 10)
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            found = await asyncio.gather(
                *(client.execute(b"1") for _ in range(12)), return_exceptions=True
            )
            assert sum(isinstance(one, LeaderPendingFullError) for one in found) == 2
            assert (await client.execute(b"1")).result == b"11"


async def test_commands_that_leave_no_room_for_their_session_are_refused(make_cluster):
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(UnexpectedArgumentError, match="with their session"):
                await client.machine.execute_batch([b"1"] * client.limits.block_entries_max)
