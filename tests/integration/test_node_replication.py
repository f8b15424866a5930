"""Groups C and E of spec 90 on real nodes: sockets on loopback, files in a temporary folder."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest

from quorumlog.client.connection import ServerConnection
from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    EmptyBatchError,
    IndexOutOfRangeError,
    LeaderPendingFullError,
    NoLeaderError,
    QuorumAckTimeoutError,
    RequestError,
    UnexpectedArgumentError,
    UnknownGroupError,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Responses
from quorumlog.model.messages.client import AppendRequest


def data_files(cluster, node_id):
    return sorted((Path(cluster.configs[node_id].store_base_dir) / "g" / "data").iterdir())


def damage(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x20]))


def all_equal(cluster, end_index=None):
    logs = set(cluster.logs().values())
    if len(logs) != 1:
        return False
    end, committed, _ = logs.pop()
    return end == committed and (end_index is None or end == end_index)


async def appended(client, count, prefix="entry"):
    return [await client.append(f"{prefix} {i}".encode()) for i in range(count)]


async def test_01_a_single_member_elects_itself_and_appends(make_cluster):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            places = await appended(client, 10)
        indexes = [place.index for place in places]
        assert indexes == list(range(indexes[0], indexes[0] + 10))


async def test_02_a_single_member_restarted_leads_again_in_a_higher_term(make_cluster, until):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            places = await appended(client, 10)
        term = cluster.replica("n0").core.term
        await cluster.stop()
        await cluster.start()
        await until(lambda: cluster.leader_id() == "n0")
        assert cluster.replica("n0").core.term > term
        async with cluster.client() as client:
            assert (await client.get(places[-1].index)).body == b"entry 9"


async def test_03_three_members_agree_on_one_leader(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        leader = cluster.leader_id()
        await until(lambda: {cluster.replica(n).core.leader_id for n in cluster.ids} == {leader})
        assert len({cluster.replica(n).core.term for n in cluster.ids}) == 1


async def test_10_another_cluster_and_unknown_groups_are_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client(group="nope", timeout_ms=2_000) as client:
            with pytest.raises(UnknownGroupError, match="nope"):
                await client.append(b"x")


async def test_44_45_positions_and_reads(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            bodies = [b"b" * size for size in range(10)]
            batch = await client.append_batch(bodies)
            steps = [b - a for a, b in zip(batch.positions, batch.positions[1:], strict=False)]
            assert steps == [48 + len(body) for body in bodies[:-1]]
            for place, body in zip(
                range(batch.first_index, batch.last_index + 1), bodies, strict=True
            ):
                entry = await client.get(place)
                assert (entry.index, entry.body, entry.term) == (place, body, batch.term)
                assert entry.pos == batch.positions[place - batch.first_index]
            with pytest.raises(IndexOutOfRangeError):
                await client.get(batch.last_index + 1)


@pytest.mark.parametrize("store_type", ["FILE", "MEMORY"])
async def test_46_76_appends_end_up_on_all_members(make_cluster, until, store_type):
    async with make_cluster(store_type=store_type) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = (await appended(client, 10))[-1].index
            await until(lambda: all_equal(cluster, last))


async def test_47_concurrent_appends_get_distinct_consecutive_indexes(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            first = (await client.append(b"first")).index
            places = await asyncio.gather(*(client.append(b"x" * i) for i in range(100)))
            indexes = sorted(place.index for place in places)
            assert indexes == list(range(first + 1, first + 101))
            bodies = [(await client.get(place.index)).body for place in places]
            assert bodies == [b"x" * i for i in range(100)]


async def test_77_a_member_started_late_gets_everything(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"the group has begun")
            await cluster.stop("n2")
            last = (await appended(client, 10))[-1].index
            await cluster.start("n2")
            await until(lambda: all_equal(cluster, last))


async def test_79_without_a_majority_the_outcome_is_unknown(make_cluster, until):
    async with make_cluster(
        max_wait_ack_time_ms=300, election_timeout_min_ms=2_000, election_timeout_max_ms=2_500
    ) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"committed")
            leader = cluster.leader_id()
            await cluster.stop(*[n for n in cluster.ids if n != leader], clean=False)
            with pytest.raises(QuorumAckTimeoutError, match="may still be committed"):
                await client.append(b"alone", timeout_ms=5_000)


async def test_80_above_the_bound_appends_are_refused_and_not_stored(make_cluster):
    async with make_cluster(
        limits={"pending_requests_max": 8},
        max_wait_ack_time_ms=60_000,
        election_timeout_min_ms=3_000,
        election_timeout_max_ms=3_500,
    ) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            end = (await client.append(b"committed")).index
            leader = cluster.leader_id()
            await cluster.stop(*[n for n in cluster.ids if n != leader], clean=False)
            results = await asyncio.gather(
                *(client.append_batch([b"x"], timeout_ms=700) for _ in range(20)),
                return_exceptions=True,
            )
            assert all(isinstance(result, RequestError) for result in results)
            assert any(isinstance(result, LeaderPendingFullError) for result in results)
            assert cluster.replica(leader).log.end_index == end + 8


async def test_82_appends_go_on_while_a_follower_restarts_again_and_again(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"warm")
            follower = next(n for n in cluster.ids if n != cluster.leader_id())
            count = 0
            for _ in range(3):
                await cluster.stop(follower)
                count += len(await appended(client, 5))
                await cluster.start(follower)
                count += len(await appended(client, 5))
            assert count == 30
            await until(lambda: all_equal(cluster))


async def test_85_batch_positions_and_index(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            start = (await client.append(b"")).pos + 48
            batch = await client.append_batch([b"x" * 128 * (i + 1) for i in range(10)])
            assert [pos - start for pos in batch.positions] == [
                48 * i + 128 * i * (i + 1) // 2 for i in range(10)
            ]
            assert batch.last_index - batch.first_index == 9


async def test_86_an_empty_batch_is_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(EmptyBatchError):
                await client.append_batch([])


async def test_87_a_batch_is_stored_whole_or_not_at_all(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            before = (await client.append(b"before")).index
            with pytest.raises(UnexpectedArgumentError):
                await client.append_batch([b"fits", b"x" * (5 << 20)])
            after = (await client.append(b"after")).index
            assert after == before + 1


async def test_batches_over_several_files_have_right_positions(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            positions = []
            for _ in range(12):
                batch = await client.append_batch([b"y" * 1000] * 200)
                positions += [(batch.first_index + i, pos) for i, pos in enumerate(batch.positions)]
            for index, pos in positions[::97]:
                assert (await client.get(index)).pos == pos


async def test_121_a_rolling_restart_keeps_everything(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        acknowledged = {}
        async with cluster.client() as client:
            for number, node_id in enumerate(cluster.ids):
                for place in await appended(client, 20, f"round {number}"):
                    acknowledged[place.index] = f"round {number} {place.index}"
                await cluster.stop(node_id)
                await cluster.start(node_id)
                await until(lambda: cluster.leader_id() is not None)
            await until(lambda: all_equal(cluster))
            found = [entry.index async for entry in client.read(0, follow=False)]
            assert set(acknowledged) <= set(found)


async def test_120_a_wiped_follower_is_filled_again_although_nobody_writes(
    make_cluster, until, tmp_path
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = (await appended(client, 10))[-1].index
        follower = next(n for n in cluster.ids if n != cluster.leader_id())
        await until(lambda: all_equal(cluster, last))
        await cluster.stop(follower)
        shutil.rmtree(tmp_path / follower)
        await cluster.start(follower)
        await until(lambda: all_equal(cluster))


async def test_129_no_noop_is_shown_to_readers(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await appended(client, 3)
            await cluster.stop(cluster.leader_id())
            await until(lambda: cluster.leader_id() is not None)
            await appended(client, 3)
            entries = [entry async for entry in client.read(0, follow=False)]
            assert len(entries) == 6
            assert all(entry.is_data for entry in entries)
            everything = [entry async for entry in client.read(0, follow=False, include_all=True)]
            assert len(everything) > 6
            assert [e.index for e in everything] == list(range(len(everything)))


async def test_a_reader_follows_the_tail_over_a_leader_change(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as writer, cluster.client() as reader:
            await appended(writer, 5, "old")
            seen = []

            async def follow():
                async for entry in reader.read(0):
                    seen.append(entry.body)
                    if len(seen) == 10:
                        return

            following = asyncio.ensure_future(follow())
            await until(lambda: len(seen) == 5)
            await cluster.stop(cluster.leader_id(), clean=False)
            await until(lambda: cluster.leader_id() is not None)
            await appended(writer, 5, "new")
            await asyncio.wait_for(following, 60)
            assert seen == [f"old {i}".encode() for i in range(5)] + [
                f"new {i}".encode() for i in range(5)
            ]


async def test_162_172_several_groups_in_one_node_are_independent(make_cluster, until):
    async with make_cluster(groups=("a", "b", "c")) as cluster:
        await cluster.start()
        for group in ("a", "b", "c"):
            async with cluster.client(group=group) as client:
                await client.append(group.encode())
        for group in ("a", "b", "c"):
            async with cluster.client(group=group) as client:
                bodies = [entry.body async for entry in client.read(0, follow=False)]
                assert bodies == [group.encode()]


async def test_158_no_leader_is_reported_with_the_servers_asked(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start("n0")
        async with cluster.client(timeout_ms=1_000) as client:
            with pytest.raises(RequestError) as caught:
                await client.append(b"x")
            assert isinstance(caught.value, NoLeaderError)
            assert cluster.addresses["n1"] in str(caught.value)


async def test_a_follower_far_behind_catches_up_from_cold_files(make_cluster, until):
    async with make_cluster(limits={"tail_cache_bytes": 64 * 1024}) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"warm")
            follower = next(n for n in cluster.ids if n != cluster.leader_id())
            await cluster.stop(follower)
            for _ in range(20):
                await client.append_batch([b"z" * 1_000] * 250)
            leader = cluster.replica(cluster.leader_id())
            assert not leader.log.is_in_memory(1)
            await cluster.start(follower)
            await until(lambda: all_equal(cluster))
            entries = [entry.body async for entry in client.read(0, follow=False)]
            assert len(entries) == 5_001


async def test_unsafe_flush_is_named_in_the_status(make_cluster, until):
    async with make_cluster(flush="async", flush_file_interval=20) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = (await appended(client, 20))[-1].index
            await until(lambda: all_equal(cluster, last))
            assert {status.flush for status in await client.status()} == {"async"}
        await cluster.stop()
        await cluster.start()
        async with cluster.client() as client:
            assert (await client.get(last)).body == b"entry 19"


async def test_status_lists_a_replica_that_cannot_be_reached(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"x")
            victim = next(n for n in cluster.ids if n != cluster.leader_id())
            await cluster.stop(victim)
            states = {status.node_id: status for status in await client.status()}
            assert set(states) == set(cluster.ids)
            assert not states[victim].healthy
            assert states[victim].health_text == "unreachable"
            assert cluster.addresses[victim] in states[victim].text


async def test_readers_of_any_replica_see_committed_entries_only(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = (await appended(client, 30))[-1].index
            await until(lambda: all_equal(cluster, last))
            for _ in range(5):
                read = client.read(0, follow=False, leader_only=False)
                assert len([entry async for entry in read]) == 30


async def test_74_a_damaged_entry_of_the_leader_is_never_served_and_repaired(make_cluster, until):
    options = {
        "limits": {"tail_cache_bytes": 1},
        "scrub_bytes_per_second": 0,
        "election_timeout_min_ms": 2_500,  # it is to lead until it finds the damage
        "election_timeout_max_ms": 3_000,
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"warm")
            leader = cluster.leader_id()
            last = (await client.append_batch([b"z" * 1_000] * 50)).last_index
            await until(lambda: all_equal(cluster, last))
            replica = cluster.replica(leader)
            path = data_files(cluster, leader)[0]
            before = path.read_bytes()[: replica.log.size_bytes]
            damage(path, replica.log._place_of(20)[0] + 60)
            async with asyncio.timeout(60):
                while not replica.counters.entries_repaired:
                    bodies = [entry.body async for entry in client.read(0, end=last, follow=False)]
                    assert bodies == [b"warm"] + [b"z" * 1_000] * 50
                    if cluster.leader_id() not in (leader, None):  # only who is read finds it
                        with contextlib.suppress(RequestError):
                            await client.admin.transfer(leader)
            await until(lambda: not replica.log.damaged)
            assert path.read_bytes()[: len(before)] == before
            assert replica.counters.entries_repaired == 1
            assert not cluster.nodes[leader].failure.done()
            await client.append(b"goes on")


@pytest.mark.parametrize("takes_joined", [True, False], ids=["now", "earlier"])
async def test_answers_that_become_due_together_are_all_given_in_one_frame_or_each_alone(
    make_cluster, until, takes_joined
):
    async with make_cluster() as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        address = cluster.addresses[cluster.leader_id()]
        connection = ServerConnection(address, "", Limits(), group="g")
        hello = connection._hello
        connection._hello = msgspec.structs.replace(hello, takes_joined=takes_joined)
        frames = []
        receive = connection.frame_received

        def received(made, frame):
            frames.append(frame.message)
            receive(made, frame)

        connection.frame_received = received
        await connection.open(60.0)
        try:
            for _ in range(1_000):
                request = AppendRequest(group="g", count=1)
                waiting = [connection.request(request, [encode_block([b"x"])]) for _ in range(20)]
                answers = [(await one).response for one in waiting]
                indexes = [answer.first_index for answer in answers]
                assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
                assert indexes == sorted(set(indexes))
                if any(isinstance(frame, Responses) for frame in frames) or not takes_joined:
                    break
        finally:
            connection.close()
        assert any(isinstance(frame, Responses) for frame in frames) is takes_joined
