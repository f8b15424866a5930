"""Idempotent producers on real nodes: every entry once, whatever is sent again."""

import asyncio

import pytest

from quorumlog.client import Producer
from quorumlog.client.connection import ServerConnection
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import ConfigError, ProducerFencedError, SequenceMismatchError
from quorumlog.model.messages.client import AppendRequest
from quorumlog.sessions.entries import encode_session_block


async def bodies_in(client):
    return [entry.body async for entry in client.read("earliest", follow=False)]


class Raw:
    """Sends blocks as they are to one node."""

    def __init__(self, cluster, node_id):
        limits = cluster.configs[node_id].limits
        self.connection = ServerConnection(cluster.addresses[node_id], "", limits, group="g")

    async def __aenter__(self):
        await self.connection.open(60.0)
        return self

    async def __aexit__(self, *error):
        self.connection.close()

    async def send(self, producer_id, sequence, bodies, **fields):
        request = AppendRequest(group="g", count=len(bodies) + 1)
        data = encode_session_block(producer_id, sequence, bodies, **fields)
        return (await self.connection.request(request, [data])).response


async def test_a_repeated_block_gets_its_first_answer_also_from_another_leader(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        async with cluster.client() as client:
            await client.append(b"first")
            async with Raw(cluster, cluster.leader_id()) as raw:
                answers = [await raw.send(7, 0, [b"a", b"b"]) for _ in range(3)]
                later = await raw.send(7, 2, [b"c"])
            leader = cluster.leader_id()
            await client.admin.transfer(next(node for node in cluster.ids if node != leader))
            await until(lambda: cluster.leader_id() not in (None, leader))
            await client.append(b"of another leader")
            async with Raw(cluster, cluster.leader_id()) as raw:
                answers.append(await raw.send(7, 0, [b"a", b"b"]))
                again = await raw.send(7, 2, [b"c"])
            first = answers[0]
            assert first.code == ResponseCode.SUCCESS
            for answer in answers[1:]:
                assert (answer.code, answer.positions) == (first.code, first.positions)
                assert answer.term == first.term < cluster.replica(cluster.leader_id()).core.term
                assert (answer.first_index, answer.last_index) == (
                    first.first_index,
                    first.last_index,
                )
            assert (again.first_index, again.last_index) == (later.first_index, later.last_index)
            assert await bodies_in(client) == [b"first", b"a", b"b", b"c", b"of another leader"]


async def test_a_restarted_cluster_knows_its_producers(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        async with cluster.client() as client:
            await client.append(b"first")
            async with Raw(cluster, cluster.leader_id()) as raw:
                before = await raw.send(7, 0, [b"a"])
            await cluster.stop(clean=False)
            await cluster.start()
            await client.append(b"later")
            async with Raw(cluster, cluster.leader_id()) as raw:
                after = await raw.send(7, 0, [b"a"])
            assert after.first_index == before.first_index
            assert await bodies_in(client) == [b"first", b"a", b"later"]


async def test_gaps_other_contents_and_old_epochs_are_clear_errors(make_cluster, until):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        async with cluster.client() as client:
            await client.append(b"first")
            async with Raw(cluster, "n0") as raw:
                assert (await raw.send(7, 0, [b"a"], epoch=1)).code == ResponseCode.SUCCESS
                codes = {
                    (await raw.send(7, 2, [b"b"], epoch=1)).code: ResponseCode.SEQUENCE_GAP,
                    (await raw.send(7, 0, [b"x"], epoch=1)).code: ResponseCode.SEQUENCE_MISMATCH,
                    (await raw.send(7, 1, [b"b"], epoch=0)).code: ResponseCode.PRODUCER_FENCED,
                    (await raw.send(8, 1, [b"b"])).code: ResponseCode.UNKNOWN_PRODUCER,
                }
            assert all(found == wanted for found, wanted in codes.items())
            assert len(codes) == 4
            assert await bodies_in(client) == [b"first", b"a"]


async def test_a_producer_through_leader_changes_stores_everything_once(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"first")
            wanted = [b"%06d" % number for number in range(6_000)]
            async with Producer(client, batch_bytes=3_000, request_timeout_ms=1_000) as producer:

                async def load():
                    for body in wanted:
                        await producer.send(body)
                    await producer.flush()

                async def trouble():
                    for _ in range(3):
                        await until(lambda: cluster.leader_id() is not None)
                        dead = cluster.leader_id()
                        await cluster.stop(dead, clean=False)
                        await until(lambda: cluster.leader_id() is not None)
                        await cluster.start(dead)

                await asyncio.gather(load(), trouble())
            assert (await bodies_in(client))[1:] == wanted


async def test_a_successor_fences_a_producer(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            old = Producer(client, producer_id=99, epoch=1)
            assert (await old.send(b"old")) is not None
            await old.flush()
            async with Producer(client, producer_id=99, epoch=2) as successor:
                at = await (await successor.send(b"new"))
                assert at.index > 0
            await old.send(b"too late")
            with pytest.raises(ProducerFencedError, match="epoch 1 was succeeded by epoch 2"):
                await old.flush()
            with pytest.raises(ProducerFencedError):
                await old.close()
            assert await bodies_in(client) == [b"old", b"new"]


async def test_two_producers_of_one_id_and_epoch_are_found_out(make_cluster):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            async with Producer(client, producer_id=5) as one:
                await one.send(b"one")
                await one.flush()
            two = Producer(client, producer_id=5)
            await two.send(b"two")
            with pytest.raises(SequenceMismatchError, match="had other entries appended"):
                await two.flush()
            with pytest.raises(SequenceMismatchError):
                await two.close()


async def test_each_entry_learns_where_it_is(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client, Producer(client, batch_bytes=1_000) as producer:
            deliveries = [await producer.send(b"%d" % number) for number in range(300)]
            places = [await delivery for delivery in deliveries]
            for number in (0, 1, 150, 299):
                entry = await client.get(places[number].index)
                assert (entry.body, entry.pos) == (b"%d" % number, places[number].pos)
            hidden = [entry async for entry in client.read(follow=False, include_all=True)]
            assert sum(not entry.is_data for entry in hidden) > 1


def test_more_blocks_under_way_than_are_remembered_are_refused():
    with pytest.raises(ConfigError, match="in_flight_blocks 17 is above 16"):
        Producer("127.0.0.1:1", in_flight_blocks=17)
    Producer("127.0.0.1:1", in_flight_blocks=17, idempotent=False)
    with pytest.raises(ConfigError, match="producer_id"):
        Producer("127.0.0.1:1", producer_id=1 << 64)


async def test_a_repeated_block_that_retention_removed_is_known_but_not_where(make_cluster, until):
    options = {
        "mapped_file_size_for_entry_data": 300 * 1_024,
        "retention_bytes": 300 * 1_024,
        "clean_interval": 20,
    }
    async with make_cluster(count=1, limits={"tail_cache_bytes": 1}, **options) as cluster:
        await cluster.start()
        await until(lambda: cluster.leader_id() is not None)
        async with cluster.client() as client, Raw(cluster, "n0") as raw:
            await client.append(b"first")
            before = await raw.send(7, 0, [b"a"])
            for _ in range(20):
                await client.append_batch([bytes(1_000)] * 50)
            log = cluster.replica("n0").log
            await until(lambda: log.before_begin_index > before.last_index)
            after = await raw.send(7, 0, [b"a"])
            assert (after.code, after.first_index) == (ResponseCode.SUCCESS, before.first_index)
            assert after.positions == [(before.first_index, -1)]
