"""Many groups on three real nodes: they quiesce, survive the death of a node, and quiesce again."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from quorumlog.model.codes import Role
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeats,
    PeerTurn,
    PushRequest,
    PushResponse,
)
from quorumlog.transport.listener import Listener
from quorumlog.wire.decoder import DECODERS

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
            quiescent = sum(replica.core.is_quiescent for replica in replicas(cluster))
            assert quiescent >= 3 * (len(GROUPS) - 1)
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


@asynccontextmanager
async def appending(cluster, groups):
    """Clients that append to all these groups at once, whenever they are asked to."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client(group)) for group in groups]

        async def append():
            await asyncio.gather(*(client.append(b"awake") for client in clients))

        yield append


class Spy:
    """What a node sends to its peers."""

    def __init__(self, node, monkeypatch):
        self.sent = []
        send = node.links.send

        def spied(peer_id, message, *parts, **options):
            self.sent.append((peer_id, message))
            return send(peer_id, message, *parts, **options)

        monkeypatch.setattr(node.links, "send", spied)

    def groups_in_one(self, kind, peer_id):
        """The most groups in one frame to a peer by messages of this kind."""
        most = set()
        for to, message in self.sent:
            if to != peer_id:
                continue
            if isinstance(message, PeerTurn):
                parts = [DECODERS[number].decode(body) for number, _, body, _ in message.parts]
            else:
                parts = message.requests if isinstance(message, HeartBeats) else [message]
            most = max(most, {one.group for one in parts if isinstance(one, kind)}, key=len)
        return most


def leader_of_most(cluster, groups):
    leaders = [cluster.leader_id(group) for group in groups]
    leader = max(cluster.nodes, key=leaders.count)
    return leader, {group for group in groups if cluster.leader_id(group) == leader}


async def test_what_several_groups_say_in_one_turn_travels_in_one_frame(
    make_cluster, until, monkeypatch
):
    groups = GROUPS[:12]
    async with make_cluster(groups=groups) as cluster:
        await cluster.start()
        await until(lambda: all(cluster.leader_id(group) for group in groups))
        leader, led = leader_of_most(cluster, groups)
        spies = {name: Spy(node, monkeypatch) for name, node in cluster.nodes.items()}
        peers = set(cluster.nodes) - {leader}

        def told(kind, least):
            return all(len(spies[leader].groups_in_one(kind, peer)) >= least for peer in peers)

        def answered(least):
            return all(
                len(spies[peer].groups_in_one(PushResponse, leader)) >= least for peer in peers
            )

        async with appending(cluster, groups) as append:
            for _ in range(1_000):
                await append()
                if told(HeartBeatRequest, len(led)) and told(PushRequest, 2) and answered(2):
                    break
        assert all(spies[leader].groups_in_one(HeartBeatRequest, peer) == led for peer in peers)
        assert told(PushRequest, 2)
        assert answered(2), "one group commit made several durable"
        assert not any(isinstance(one, HeartBeats) for spy in spies.values() for _, one in spy.sent)


async def test_a_node_of_an_earlier_version_takes_part_and_gets_nothing_joined(
    make_cluster, until, monkeypatch
):
    """Nodes are renewed one at a time: n0 is not yet."""
    groups = GROUPS[:12]
    async with make_cluster(groups=groups) as cluster:
        made = Listener.__init__

        def earlier(self, *arguments, **options):
            made(self, *arguments, **options)
            if options["node_id"] == "n0":
                self._hello = msgspec.structs.replace(self._hello, takes_joined=False)

        monkeypatch.setattr(Listener, "__init__", earlier)
        await cluster.start()
        await until(lambda: all(cluster.leader_id(group) for group in groups))
        spies = {name: Spy(cluster.nodes[name], monkeypatch) for name in ("n1", "n2")}

        def is_joined(to):
            sent = [one for spy in spies.values() for peer, one in spy.sent if peer == to]
            return any(isinstance(one, PeerTurn) for one in sent)

        async with appending(cluster, groups) as append:
            for _ in range(1_000):
                await append()
                if is_joined("n1") and is_joined("n2"):
                    break
        assert is_joined("n1")
        assert is_joined("n2")
        assert not is_joined("n0")
        await until(lambda: all(len(set(cluster.logs(group).values())) == 1 for group in groups))


async def test_connections_that_are_cut_with_frames_of_many_groups_under_way_lose_nothing(
    make_cluster, until
):
    groups = GROUPS[:12]
    async with make_cluster(groups=groups) as cluster:
        await cluster.start()
        await until(lambda: all(cluster.leader_id(group) for group in groups))
        async with appending(cluster, groups) as append:
            for _ in range(10):
                under_way = [asyncio.ensure_future(append()) for _ in range(8)]
                await asyncio.sleep(0)
                for node in cluster.nodes.values():
                    for connection in list(node.listener.connections):
                        if connection.is_member:
                            connection.abort("cut")
                await asyncio.gather(*under_way)
        await until(lambda: all(len(set(cluster.logs(group).values())) == 1 for group in groups))
        ends = {end for group in groups for end, _, _ in cluster.logs(group).values()}
        assert min(ends) >= 8 * 10


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
