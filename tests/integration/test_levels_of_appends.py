"""Write levels over real nodes: what each waits for, and what its answer says."""

import asyncio

import pytest

from quorumlog.client import append_batcher
from quorumlog.client.append_batcher import ONE_WAY_MAX
from quorumlog.client.producer import Producer
from quorumlog.model.codes import Role, WriteLevel
from quorumlog.model.errors import AllAckTimeoutError, ConfigError, QuorumAckTimeoutError
from quorumlog.model.messages.peer import PushRequest

WORDS = [level.word for level in WriteLevel]
EARLY = ["receive", "persistence"]


def proves(done, level):
    """Whether an answer proves a level; a majority may be as fast as the leader's own disk."""
    return WORDS.index(done.level) >= WORDS.index(level)


class Deaf:
    """Followers that take no pushes, but go on to follow."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._handlers = {}

    def followers(self):
        cluster = self._cluster
        return [one for one in cluster.ids if cluster.replica(one).core.role is not Role.LEADER]

    def plug(self, *node_ids):
        for node_id in node_ids:
            received = self._cluster.replica(node_id)._received
            self._handlers[node_id] = received[PushRequest]
            received[PushRequest] = lambda message, block: None

    def unplug(self):
        for node_id, handler in self._handlers.items():
            self._cluster.replica(node_id)._received[PushRequest] = handler
        self._handlers.clear()


async def test_f99_each_level_is_answered_with_what_it_proves(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            first = await client.append(b"first")
            assert (first.level, first.index > 0) == ("replication", True)
            indexes = []
            for level in WORDS[1:]:
                one = await client.append(level.encode(), level=level)
                many = await client.append_batch([level.encode()] * 2, level=level)
                assert proves(one, level)
                assert proves(many, level)
                indexes += [one.index, many.first_index, many.last_index]
            assert indexes == list(range(first.index + 1, first.index + 13))
            nowhere = await client.append(b"one way", level="one_way")
            assert (nowhere.index, nowhere.term, nowhere.pos) == (-1, -1, -1)
            batch = await client.append_batch([b"a", b"b"], level="one_way")
            assert (batch.first_index, batch.positions, batch.level) == (-1, [-1, -1], "one_way")
            await until(lambda: cluster.replica("n0").core.committed_index >= first.index + 15)
            expected = [level.encode() for level in WORDS[1:] for _ in range(3)]
            seen = [entry.body async for entry in client.read(first.index + 1, follow=False)]
            assert seen[:12] == expected
            assert sorted(seen[12:]) == [b"a", b"b", b"one way"], "in any order"


async def test_f99_early_levels_need_no_majority_and_the_others_do(make_cluster):
    async with make_cluster(max_wait_ack_time_ms=800, max_push_time_out_ms=100) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"first")
            deaf = Deaf(cluster)
            deaf.plug(*deaf.followers())
            leader = cluster.replica(cluster.leader_id())
            for level in EARLY:
                done = await client.append(level.encode(), level=level)
                assert done.level == level
                assert leader.core.committed_index < done.index
            assert leader.core.durable_index >= done.index, "persistence: on the leader's disk"
            assert len(leader.appends.pending) == 2, "they count as waiting for a majority"
            for level in ("replication", "all"):
                with pytest.raises(QuorumAckTimeoutError):
                    await client.append(b"late", level=level)
            deaf.unplug()
            assert (await client.append(b"all", level="all")).level == "all"
            assert leader.appends._waiting() == (0, 0)


async def test_f99_all_waits_for_every_voter_and_says_who_is_late(make_cluster):
    async with make_cluster(max_wait_ack_time_ms=800, max_push_time_out_ms=100) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"first", level="all")
            deaf = Deaf(cluster)
            late = deaf.followers()[0]
            deaf.plug(late)
            done = await client.append(b"majority")
            with pytest.raises(AllAckTimeoutError, match=f"committed, but {late} did") as raised:
                await client.append(b"not on all", level="all")
            assert raised.value.outcome.value == "happened"
            assert (await client.get(done.index + 1)).body == b"not on all"
            waiting = asyncio.ensure_future(client.append(b"in the end", level="all"))
            while (await client.bounds())[1] < done.index + 2:
                assert not waiting.done()
            deaf.unplug()
            assert (await waiting).level == "all"
            leader = cluster.replica(cluster.leader_id())
            assert (leader.appends.levels.held, leader.appends.levels.held_bytes) == (0, 0)


async def test_f99_a_group_with_a_least_level_answers_none_below_it(make_cluster):
    async with make_cluster(count=1, min_write_level="persistence") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            assert proves(await client.append(b"x", level="receive"), "persistence")
            assert (await client.append(b"x")).level == "replication"
            assert (await client.append(b"x", level="one_way")).level == "one_way"


async def test_f99_producers_take_levels_and_exactly_once_ones_none_below_a_majority(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        servers = list(cluster.addresses.values())
        for level, idempotent in (("all", True), ("persistence", False), ("receive", False)):
            async with Producer(servers, "g", level=level, idempotent=idempotent) as producer:
                answers = [await producer.send(b"%d" % number) for number in range(50)]
                await producer.flush()
                assert proves(await answers[-1], level)
        for level in ("receive", "persistence", "one_way", "some", 3):
            with pytest.raises(ConfigError, match="level"):
                Producer(servers, "g", level=level)


async def test_f99_a_producer_of_level_all_rides_out_a_voter_that_is_late(make_cluster, until):
    async with make_cluster(max_wait_ack_time_ms=400, max_push_time_out_ms=100) as cluster:
        await cluster.start()
        servers = list(cluster.addresses.values())
        async with Producer(servers, "g", level="all") as producer:
            await (await producer.send(b"first"))
            deaf = Deaf(cluster)
            deaf.plug(deaf.followers()[0])
            delivery = await producer.send(b"second")
            leader = cluster.replica(cluster.leader_id())
            await until(lambda: leader.counters.blocks_repeated)
            deaf.unplug()
            second = await delivery
        async with cluster.client() as client:
            bodies = [entry.body async for entry in client.read(0, follow=False)]
            assert bodies == [b"first", b"second"], "it was sent again, and appended once"
            assert (await client.get(second.index)).body == b"second"


async def test_f99_appends_without_answers_are_bounded_and_end_with_the_client(
    make_cluster, until, monkeypatch
):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=60_000) as client:
            first = await client.append(b"first")
            for number in range(2 * ONE_WAY_MAX):
                await client.append(b"%d" % number, level="one_way")
                assert len(client._batcher._one_way) <= ONE_WAY_MAX
            await until(lambda: not client._batcher._one_way)
            core = cluster.replica("n0").core
            await until(lambda: core.committed_index == first.index + 2 * ONE_WAY_MAX)
        with monkeypatch.context() as patient:  # a busy machine takes more than the usual second
            patient.setattr(append_batcher, "CLOSE_S", 60.0)
            async with cluster.client() as client:
                await client.append(b"just before the client is closed", level="one_way")
        await until(lambda: core.committed_index == first.index + 2 * ONE_WAY_MAX + 1)
        nobody = cluster.client(timeout_ms=60_000)
        await cluster.stop("n0")
        await nobody.append(b"lost", level="one_way")
        await nobody.close()
        await asyncio.sleep(0)
        assert not nobody._batcher._one_way
