"""Transactions on real nodes: what was accepted is read once, all else never, whoever dies."""

import asyncio
import itertools

import pytest

from quorumlog.client import Transactions
from quorumlog.model.errors import (
    ConfigError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionEndedError,
    UnexpectedArgumentError,
)

QUERY = "2f4ba9a5-6d4a-4c4e-8c53-0f3a4f6c6f11"


async def read(client, **options):
    return [entry.body async for entry in client.read("earliest", follow=False, **options)]


async def write(transactions, run, batch_id, partition, bodies):
    """Write one part of a batch; return what `commit` wants to know of it."""
    producer = transactions.producer(run, batch_id, partition, batch_bytes=400)
    async with producer:
        await producer.send_batch(bodies)
        await producer.flush()
    return producer.attempt()


def bodies_of(batch_id, partition, count=20):
    return [f"{batch_id}/{partition}/{number}".encode() for number in range(count)]


async def test_a_batch_counts_when_it_ends_and_only_what_was_accepted(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"plain before")
            transactions = Transactions(client, QUERY)
            run = await transactions.init()
            assert (run.epoch, run.last_batch) == (1, -1)
            await write(transactions, run, 0, 0, bodies_of(9, 9))  # a task that is run again
            accepted = await asyncio.gather(
                *(write(transactions, run, 0, part, bodies_of(0, part)) for part in range(3))
            )
            await client.append(b"plain between")
            assert await read(client) == [b"plain before"]
            assert len(await read(client, isolation="read_uncommitted")) == 82
            await transactions.commit(run.epoch, 0, accepted)
            found = await read(client)
            assert found[0] == b"plain before"
            assert b"plain between" in found
            for part in range(3):
                mine = [body for body in found if body.startswith(b"0/%d/" % part)]
                assert mine == bodies_of(0, part)
            assert len(found) == 62
            await until(lambda: len(set(cluster.logs().values())) == 1)
            for _ in range(5):  # followers know as well
                assert await read(client, leader_only=False) == found
            assert (await transactions.init()).last_batch == 0


async def test_a_batch_is_there_once_whatever_dies_and_however_it_is_divided(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=30_000) as client:
            for batch_id, parts in enumerate((2, 3, 2, 1, 4)):
                everything = [body for part in range(4) for body in bodies_of(batch_id, part, 10)]
                for attempt in range(2):  # the driver dies before, and after the end of the batch
                    transactions = Transactions(client, QUERY)
                    run = await transactions.init()
                    divided = parts + (attempt if batch_id % 2 else 0)
                    accepted = [
                        await write(transactions, run, batch_id, part, everything[part::divided])
                        for part in range(divided)
                    ]
                    if attempt:
                        await transactions.commit(run.epoch, batch_id, accepted)
                        await transactions.commit(run.epoch, batch_id, accepted)  # sent again
                leader = cluster.leader_id()
                if batch_id == 2:
                    await cluster.stop(leader, clean=False)
                again = await Transactions(client, QUERY).init()
                assert again.last_batch == batch_id
                late = Transactions(client, QUERY)
                run = await late.init()
                with pytest.raises(TransactionEndedError):
                    await write(late, run, batch_id, 0, everything)
            places = itertools.product(range(5), range(4))
            wanted = [body for place in places for body in bodies_of(*place, 10)]
            assert sorted(await read(client)) == sorted(wanted)
            assert len(await read(client, isolation="read_uncommitted")) == 2 * len(wanted)


async def test_transactions_survive_the_restart_of_all(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=30_000) as client:
            transactions = Transactions(client, QUERY)
            run = await transactions.init()
            lost = await write(transactions, run, 0, 0, bodies_of(0, 9))
            first = await write(transactions, run, 0, 0, bodies_of(0, 0))
            await transactions.commit(run.epoch, 0, [first])
            half = await write(transactions, run, 1, 0, bodies_of(1, 0))
            before = await read(client)
            await cluster.stop(clean=False)
            await cluster.start()
            assert await read(client) == before == bodies_of(0, 0)
            other = await write(transactions, run, 1, 1, bodies_of(1, 1))
            await transactions.commit(run.epoch, 1, [half, other])
            assert await read(client) == before + bodies_of(1, 0) + bodies_of(1, 1)
            assert lost.first_index < first.first_index


async def test_a_driver_of_before_is_fenced(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            old, new = Transactions(client, QUERY), Transactions(client, QUERY)
            run = await old.init()
            mine = await write(old, run, 0, 0, bodies_of(0, 0))
            later = await new.init()
            assert later.epoch == 2
            with pytest.raises(ProducerFencedError):
                await old.commit(run.epoch, 0, [mine])
            with pytest.raises(ProducerFencedError):
                await write(old, run, 0, 1, bodies_of(0, 1))
            with pytest.raises(ProducerFencedError):
                await old.init()
            await new.commit(later.epoch, 0, [await write(new, later, 0, 0, bodies_of(0, 0))])
            assert await read(client) == bodies_of(0, 0)


async def test_an_abandoned_batch_holds_nobody_back_for_longer_than_its_time_out(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            transactions = Transactions(client, QUERY, timeout_ms=3_000)
            run = await transactions.init()
            mine = await write(transactions, run, 0, 0, bodies_of(0, 0))
            await client.append(b"plain")
            found = [entry.body async for entry in take(client.read("earliest"), 1)]
            assert found == [b"plain"]  # waited until the leader gave the batch up
            with pytest.raises(TransactionAbortedError):
                await transactions.commit(run.epoch, 0, [mine])
            again = await write(transactions, run, 0, 0, bodies_of(0, 0))
            await transactions.commit(run.epoch, 0, [again])
            assert await read(client) == [b"plain", *bodies_of(0, 0)]


async def take(entries, count):
    async for entry in entries:
        yield entry
        count -= 1
        if not count:
            await entries.aclose()
            return


async def test_a_new_leader_gives_up_what_the_old_one_left(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=30_000) as client:
            transactions = Transactions(client, QUERY, timeout_ms=3_000)
            run = await transactions.init()
            await write(transactions, run, 0, 0, bodies_of(0, 0))
            leader = cluster.leader_id()
            await client.admin.transfer(next(node for node in cluster.ids if node != leader))
            await client.append(b"plain")
            found = [entry.body async for entry in take(client.read("earliest"), 1)]
            assert found == [b"plain"]


async def test_an_aborted_batch_is_left_out_at_once(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            transactions = Transactions(client, QUERY)
            run = await transactions.init()
            await write(transactions, run, 0, 0, bodies_of(0, 0))
            await client.append(b"plain")
            await transactions.abort(run.epoch, 0)
            assert await read(client) == [b"plain"]


async def test_what_cannot_be_is_refused_in_words(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(ConfigError, match="timeout_ms is a whole number from 1"):
                Transactions(client, QUERY, timeout_ms=0)
            with pytest.raises(UnexpectedArgumentError, match="16 bytes, not 3"):
                Transactions(client, b"abc")
            transactions = Transactions(client, "any text is an id")
            run = await transactions.init()
            with pytest.raises(ConfigError, match="idempotent"):
                transactions.producer(run, 0, 0, idempotent=False)


async def test_status_tells_of_open_transactions(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"plain")
            transactions = Transactions(client, QUERY)
            run = await transactions.init()
            mine = await write(transactions, run, 0, 0, bodies_of(0, 0))
            status = next(one for one in await client.status() if one.role == "LEADER")
            assert status.open_transactions == 1
            assert status.stable_index == mine.first_index - 1
            await transactions.commit(run.epoch, 0, [mine])
            status = next(one for one in await client.status() if one.role == "LEADER")
            assert status.open_transactions == 0
            assert status.stable_index == status.committed_index


async def test_a_group_with_a_machine_takes_none(make_cluster, until):
    async with make_cluster(state_machine="kv") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(UnexpectedArgumentError, match="takes no transactions"):
                await Transactions(client, QUERY).init()
