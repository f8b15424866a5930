"""Channels over real nodes: appended, read by channel from leader and followers, followed."""

import asyncio

from quorumlog.client.producer import Producer
from quorumlog.client.sync import SyncClient


async def test_f93_readers_of_a_channel_see_its_entries_and_nothing_else(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        servers = list(cluster.addresses.values())
        async with cluster.client() as client, Producer(servers, "g", channel=9) as producer:
            for number in range(30):
                await client.append(b"%d" % number, channel=number % 3)
            await client.append_batch([b"a", b"b"], channel=5)
            for number in range(20):
                await producer.send(b"p%d" % number)
            await producer.flush()
            for channel, expected in (
                (1, [b"%d" % number for number in range(1, 30, 3)]),
                (5, [b"a", b"b"]),
                (9, [b"p%d" % number for number in range(20)]),
                (77, []),
            ):
                seen = [entry.body async for entry in client.read(0, follow=False, channel=channel)]
                assert seen == expected
            _, last = await client.bounds()
            replicas = [cluster.replica(node_id) for node_id in cluster.ids]
            await until(lambda: all(one.core.committed_index >= last for one in replicas))
            seen = client.read(0, end=last, channel=5, leader_only=False, linearizable=True)
            assert [entry.body async for entry in seen] == [b"a", b"b"]

            followed, came = [], asyncio.Event()

            async def follow():
                async for entry in client.read("latest", channel=6):
                    followed.append(entry.body)
                    came.set()

            task = asyncio.create_task(follow())
            await until(lambda: any(len(one.fetches._waiters) for one in replicas))
            for number in range(50):
                await client.append(b"noise %d" % number, channel=1)
            await client.append(b"found", channel=6)
            await asyncio.wait_for(came.wait(), 60)
            task.cancel()
            assert followed == [b"found"]


async def test_f93_the_synchronous_client_does_the_same(make_cluster):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        servers = list(cluster.addresses.values())

        def use():
            with SyncClient(servers, "g") as client:
                client.append(b"x", channel=3)
                client.append_batch([b"y", b"z"], channel=4)
                return [
                    (entry.channel, entry.body) for entry in client.read(0, follow=False, channel=4)
                ]

        assert await asyncio.to_thread(use) == [(4, b"y"), (4, b"z")]
