"""Many groups on three real nodes: they quiesce, survive the death of a node, and quiesce again."""

import asyncio
from contextlib import AsyncExitStack

from quorumlog.model.codes import Role
from quorumlog.model.messages.peer import HeartBeats

GROUPS = [f"g{number}" for number in range(50)]
OPTIONS = {"groups": GROUPS, "store_type": "MEMORY"}


def replicas(cluster):
    return [replica for node in cluster.nodes.values() for replica in node.replicas.values()]


def all_rest(cluster):
    return all(replica.core.is_quiescent for replica in replicas(cluster))


def all_led(cluster):
    return all(cluster.leader_id(group) is not None for group in GROUPS)


async def test_idle_groups_rest_and_an_append_wakes_its_group_only(make_cluster, until):
    async with make_cluster(**OPTIONS) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        terms = {group: cluster.replica("n0", group).core.term for group in GROUPS}
        async with cluster.client("g7") as client:
            await client.append(b"entry")
            resting = sum(replica.core.is_quiescent for replica in replicas(cluster))
            assert resting >= 3 * (len(GROUPS) - 1)
            assert (await client.get(1)).body == b"entry"
        await until(lambda: all_rest(cluster), what="rest")
        assert {group: cluster.replica("n0", group).core.term for group in GROUPS} == terms


async def test_all_groups_of_a_node_that_dies_get_new_leaders_and_rest_again(make_cluster, until):
    async with make_cluster(**OPTIONS) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        dead = cluster.leader_id(GROUPS[0])
        await cluster.stop(dead, clean=False)
        await until(lambda: all_led(cluster), what="a leader of every group")
        await until(lambda: all_rest(cluster), what="rest without the dead node")
        for group in GROUPS[::10]:
            async with cluster.client(group) as client:
                assert (await client.append(b"after")).index > 0


async def test_groups_that_do_not_rest_send_their_heartbeats_in_one_message(
    make_cluster, until, monkeypatch
):
    groups = GROUPS[:12]
    async with make_cluster(groups=groups, store_type="MEMORY") as cluster:
        await cluster.start()
        await until(lambda: all(cluster.leader_id(group) for group in groups))
        leaders = [cluster.leader_id(group) for group in groups]
        leader = max(cluster.nodes, key=leaders.count)
        led = {group for group in groups if cluster.leader_id(group) == leader}
        links = cluster.nodes[leader].links
        send, sent = links.send, []

        def spied(peer_id, message, *parts, **options):
            sent.append(message)
            return send(peer_id, message, *parts, **options)

        monkeypatch.setattr(links, "send", spied)
        peers = set(cluster.nodes) - {leader}

        def told():
            beats = [message for message in sent if isinstance(message, HeartBeats)]
            return {
                message.remote_id
                for message in beats
                if {request.group for request in message.requests} == led
            }

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(cluster.client(group)) for group in groups]
            for _ in range(1_000):
                await asyncio.gather(*(client.append(b"awake") for client in clients))
                if told() == peers:
                    break
        assert told() == peers


async def test_a_node_that_comes_back_takes_part_again(make_cluster, until):
    async with make_cluster(groups=GROUPS[:10]) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        await cluster.stop("n2")
        await until(lambda: all(cluster.leader_id(group) for group in GROUPS[:10]))
        await cluster.start("n2")
        await until(lambda: all_rest(cluster), what="rest")
        for group in GROUPS[:10]:
            assert len(set(cluster.logs(group).values())) == 1
            assert cluster.replica("n2", group).core.role in (Role.FOLLOWER, Role.LEADER)
