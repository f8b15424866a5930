"""A client is told of each change of leadership, by whichever server knows of it first."""

import asyncio
from contextlib import aclosing

import pytest

from quorumlog import LeaderChange
from quorumlog.client import leader_watch
from quorumlog.errors import RequestError
from quorumlog.service import requests


async def test_each_leader_is_yielded_once_and_soon(make_cluster, until, monkeypatch):
    # nobody asks again within the test: the answer comes when there is something to tell
    monkeypatch.setattr(leader_watch, "WATCH_WAIT_MS", 600_000)
    async with make_cluster() as cluster:
        await cluster.start()
        seen = []

        async def watch():
            async with cluster.client() as client, aclosing(client.watch_leader()) as leaders:
                async for leader in leaders:
                    seen.append(leader)

        watching = asyncio.create_task(watch())
        await until(lambda: len(seen) == 1)
        first = cluster.leader_id()
        term = cluster.replica(first).core.term
        assert seen == [LeaderChange(term, first, cluster.addresses[first])]
        async with cluster.client() as client:
            await client.append(b"x")
            second = await client.admin.transfer()
            await until(lambda: len(seen) == 2)
            assert seen[1] == LeaderChange(term + 1, second, cluster.addresses[second])
        await cluster.stop(second, clean=False)
        await until(lambda: len(seen) == 3)
        assert seen[2].node_id == cluster.leader_id()
        assert [leader.term for leader in seen] == sorted({leader.term for leader in seen})
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await until(
            lambda: (
                not any(
                    len(cluster.replica(node).pending_requests.leaders._waiting)
                    for node in cluster.nodes
                )
            ),
            what="no request left of a client that has gone",
        )


async def test_a_server_of_an_earlier_version_is_asked_again_and_again(
    make_cluster, until, monkeypatch
):
    handlers = dict(requests._HANDLERS)
    del handlers[requests.WatchLeaderRequest]
    monkeypatch.setattr(requests, "_HANDLERS", handlers)
    async with make_cluster() as cluster:
        await cluster.start()
        await until(cluster.leader_id)
        async with cluster.client() as client, aclosing(client.watch_leader()) as leaders:
            assert (await anext(leaders)).node_id == cluster.leader_id()
            await client.append(b"x")
            second = await client.admin.transfer()
            assert (await anext(leaders)).node_id == second


async def test_a_watch_of_a_group_that_is_deleted_ends(make_cluster, until):
    async with make_cluster(groups=("g", "other")) as cluster:
        await cluster.start()
        async with cluster.client() as client, aclosing(client.watch_leader()) as leaders:
            await anext(leaders)
            waiting = asyncio.create_task(anext(leaders))
            await until(
                lambda: any(
                    cluster.replica(node).pending_requests.leaders._waiting
                    for node in cluster.nodes
                )
            )
            await client.admin.groups.delete("g", purge=True)
            with pytest.raises(RequestError):
                async with asyncio.timeout(60):
                    await waiting
            await until(lambda: not any(n.request_bounds.polls for n in cluster.nodes.values()))


async def test_an_outage_longer_than_the_clients_time_is_raised(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=3_000) as client:
            leaders = client.watch_leader()
            await anext(leaders)
            waiting = asyncio.create_task(anext(leaders))
            await cluster.stop(clean=False)
            with pytest.raises(RequestError):
                await waiting
