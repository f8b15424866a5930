"""Clusters that were copied, moved or founded again on the same addresses are told apart."""

import asyncio
import shutil
import socket

import msgspec
import pytest

from integration.stranger import Stranger
from quorumlog.client import Producer
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import WrongClusterError
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.client import GroupIdentity, MetadataRequest, MetadataResponse
from quorumlog.model.messages.peer import HeartBeatRequest, Introduction


async def bodies_in(client):
    return [entry.body async for entry in client.read("earliest", follow=False)]


async def started(cluster, until):
    await cluster.start()
    await until(lambda: cluster.leader_id() is not None)
    async with cluster.client() as client:
        await client.append(b"first")
    await until(lambda: all(cluster.replica(name).core.identity for name in cluster.ids))


def identities(cluster):
    return {cluster.replica(node_id).core.identity for node_id in cluster.ids}


async def test_all_replicas_know_one_identity_also_after_a_restart(make_cluster, until):
    async with make_cluster() as cluster:
        await started(cluster, until)
        (identity,) = identities(cluster)
        assert len(identity) == 16
        await cluster.stop()
        await started(cluster, until)
        assert identities(cluster) == {identity}
        async with cluster.client() as client:
            assert {status.identity for status in await client.status()} == {identity.hex()}


async def founded_anew(cluster, until):
    """Names, members and addresses stay the same; only the data is gone."""
    await cluster.stop()
    for config in cluster.configs.values():
        shutil.rmtree(config.store_base_dir)
    await started(cluster, until)


async def test_a_client_never_goes_on_in_a_cluster_founded_anew(make_cluster, until):
    async with make_cluster() as cluster:
        await started(cluster, until)
        async with cluster.client() as client, cluster.client() as reader:
            await client.append(b"second")
            assert len(await bodies_in(reader)) == 2
            await founded_anew(cluster, until)
            with pytest.raises(WrongClusterError, match="founded again"):
                await client.append(b"of another cluster")
            with pytest.raises(WrongClusterError, match="founded again"):
                await bodies_in(reader)
            async with cluster.client() as fresh:
                assert await bodies_in(fresh) == [b"first"]
                await fresh.append(b"of this one")


async def test_a_client_that_came_before_the_group_began_is_told_with_its_first_answer(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await cluster.start("n0")
        early = await Stranger.at(cluster.addresses["n0"])
        early.log_event(Hello(cluster="quorumlog", node_id="", role="client", group="g"))
        assert isinstance(await early.hear(), Hello)
        await cluster.start("n1", "n2")
        await until(lambda: bool(cluster.replica("n0").core.identity))
        early.log_event(MetadataRequest(group="g"), correlation_id=1)
        early.log_event(MetadataRequest(group="g"), correlation_id=2)
        heard = [await early.hear() for _ in range(3)]
        early.close()
    (identity,) = {one.identity for one in heard if isinstance(one, GroupIdentity)}
    kinds = [type(one) for one in heard]
    assert kinds.count(GroupIdentity) == 1
    assert kinds.index(GroupIdentity) < kinds.index(MetadataResponse)
    assert [one.groups[0].identity for one in heard[1:]] == [identity] * 2


async def sent_before_and_after(cluster, until):
    async with Producer(cluster.servers, "g") as producer:
        await (await producer.send(b"second"))
        await founded_anew(cluster, until)
        await (await producer.send(b"of another cluster"))


async def test_nor_does_a_producer(make_cluster, until):
    async with make_cluster() as cluster:
        await started(cluster, until)
        with pytest.raises(WrongClusterError, match="founded again"):
            await sent_before_and_after(cluster, until)
        async with cluster.client() as fresh:
            assert await bodies_in(fresh) == [b"first"]


def moved(cluster, other):
    """Give `other` the data of a cluster that is stopped; its addresses are its own."""
    for node_id in cluster.ids:
        source = cluster.configs[node_id].store_base_dir
        shutil.copytree(source, other.configs[node_id].store_base_dir)


async def test_a_copy_takes_no_part_says_why_and_sends_nobody_to_the_original(
    make_cluster, until, tmp_path
):
    async with make_cluster() as cluster, make_cluster(directory=tmp_path / "copy") as copy:
        await started(cluster, until)
        await cluster.stop()
        moved(cluster, copy)
        await started(cluster, until)
        await copy.start()
        original = cluster.logs()
        async with copy.client(timeout_ms=20_000) as client:
            with pytest.raises(WrongClusterError, match="copied or moved"):
                await client.append(b"for the copy")
            statuses = await client.status()
        for status in statuses:
            assert not status.healthy
            own, log = copy.addresses[status.node_id], cluster.addresses[status.node_id]
            assert f"at {log} according to the log" in status.address_text
            assert f"at {own} according to peers" in status.health_text
        roles = [copy.replica(node_id).core.role for node_id in copy.ids]
        assert Role.LEADER not in roles
        assert all(not copy.nodes[node_id].links.addresses for node_id in copy.ids)
        assert cluster.logs() == original
        async with cluster.client() as client:
            assert await bodies_in(client) == [b"first"] * 2


async def test_copied_back_to_its_addresses_it_goes_on(make_cluster, until, tmp_path):
    async with make_cluster() as cluster:
        await started(cluster, until)
        await cluster.stop()
        for node_id in cluster.ids:
            shutil.move(tmp_path / node_id, tmp_path / f"moved-{node_id}")
            config = cluster.configs[node_id]
            cluster.configs[node_id] = msgspec.structs.replace(
                config, store_base_dir=str(tmp_path / f"moved-{node_id}")
            )
        await started(cluster, until)
        async with cluster.client() as client:
            assert await bodies_in(client) == [b"first"] * 2


async def test_another_name_of_the_same_address_is_no_other_address(make_cluster, until):
    async with make_cluster() as cluster:
        await started(cluster, until)
        await cluster.stop()
        for node_id, config in cluster.configs.items():
            (group,) = config.groups
            aliased = group.members[node_id].replace("127.0.0.1", "localhost")
            peers = group.peers.replace(group.members[node_id], aliased)
            groups = [msgspec.structs.replace(group, peers=peers)]
            cluster.configs[node_id] = msgspec.structs.replace(config, groups=groups)
        await started(cluster, until)
        async with cluster.client() as client:
            assert await bodies_in(client) == [b"first"] * 2
            statuses = await client.status()
        assert {status.address_text for status in statuses} == {""}
        assert all(status.healthy for status in statuses)


async def test_names_without_an_answer_keep_no_group_from_its_leader(
    make_cluster, until, monkeypatch
):
    def unanswered(host, *_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, f"{host}: no name server answers")

    async with make_cluster() as cluster:
        await started(cluster, until)
        await cluster.stop()
        for node_id, config in cluster.configs.items():
            (group,) = config.groups
            peers = group.peers.replace("127.0.0.1", "node.example")
            cluster.configs[node_id] = msgspec.structs.replace(
                config,
                groups=[msgspec.structs.replace(group, peers=peers)],
                listen=cluster.addresses[node_id],
            )
        monkeypatch.setattr(socket, "getaddrinfo", unanswered)
        await started(cluster, until)
        async with cluster.client() as client:
            assert await bodies_in(client) == [b"first"] * 2
            assert all(status.healthy for status in await client.status())


async def test_a_copy_whose_names_have_no_answer_takes_no_part(
    make_cluster, until, monkeypatch, tmp_path
):
    async with make_cluster() as cluster, make_cluster(directory=tmp_path / "copy") as copy:
        await started(cluster, until)
        await cluster.stop("n0")
        shutil.copytree(cluster.configs["n0"].store_base_dir, copy.configs["n0"].store_base_dir)
        await cluster.start("n0")
        await until(lambda: cluster.leader_id() is not None)
        (group,) = copy.configs["n0"].groups
        peers = ";".join(
            f"{name}-{address.replace('127.0.0.1', 'node.example')}"
            for name, address in cluster.addresses.items()
        )
        copy.configs["n0"] = msgspec.structs.replace(
            copy.configs["n0"],
            groups=[msgspec.structs.replace(group, peers=peers)],
            listen=copy.addresses["n0"].replace("127.0.0.1", "127.0.0.2"),
        )
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
        await copy.start("n0")
        assert "a name has no answer" in copy.replica("n0").placement.misplaced_text
        assert not copy.nodes["n0"].links.addresses


# -- members --------------------------------------------------------------------------------------


async def introduced(cluster, groups, *, member="n1", target="n0", address=None):
    stranger = await Stranger.at(cluster.addresses[target])
    await stranger.hear()
    stranger.log_event(
        Hello(cluster="quorumlog", node_id=member, role="control", address="127.0.0.1:9")
    )
    own = address or cluster.addresses.get(member, "127.0.0.1:9")
    stranger.log_event(Introduction(local_id=member, remote_id=target, address=own, groups=groups))
    return stranger


def beat(cluster, *, member="n1", target="n0", **fields):
    term = cluster.replica(target).core.term + 1
    return HeartBeatRequest(
        group="g", local_id=member, remote_id=target, term=term, round=1, **fields
    )


async def test_members_of_another_founding_and_copies_are_refused_with_words(make_cluster, until):
    async with make_cluster() as cluster:
        await started(cluster, until)
        (identity,) = identities(cluster)
        index = cluster.replica("n0").core.membership_index
        for groups, address, code, words in (
            ([("g", bytes(16), index)], None, ResponseCode.WRONG_CLUSTER, "founded apart"),
            (
                [("g", identity, index)],
                "127.0.0.1:9",
                ResponseCode.UNEXPECTED_MEMBER,
                "it is a copy, or was moved",
            ),
        ):
            term = cluster.replica("n0").core.term
            stranger = await introduced(cluster, groups, address=address)
            stranger.log_event(beat(cluster), correlation_id=4)
            answer = await stranger.hear()
            assert answer.code == code
            assert words in answer.text
            assert cluster.replica("n0").core.term == term
            stranger.close()


async def test_a_stranger_is_believed_only_with_the_identity_and_answered_where_it_came_from(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await started(cluster, until)
        (identity,) = identities(cluster)
        listening = await asyncio.start_server(lambda *_: called.set(), "127.0.0.1", 0)
        called = asyncio.Event()
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        far = 1 << 30
        for groups in ([], [("g", b"", far)], [("g", bytes(16), far)]):
            stranger = await introduced(cluster, groups, member="n9", address=address)
            stranger.log_event(beat(cluster, member="n9", membership_index=far), correlation_id=4)
            assert (await stranger.hear()).code != ResponseCode.SUCCESS
            assert cluster.replica("n0").core.leader_id != "n9"
            stranger.close()
        stranger = await introduced(cluster, [("g", identity, far)], member="n9", address=address)
        stranger.log_event(beat(cluster, member="n9", membership_index=far))
        answer = await stranger.hear()
        assert (answer.remote_id, answer.code) == ("n9", ResponseCode.SUCCESS)
        assert not called.is_set(), "no node connects to where a stranger says that it is"
        stranger.close()
        listening.close()


async def test_a_member_that_was_added_elsewhere_learns_it_from_its_leader(make_cluster, until):
    """Its own log has it at the address of before; those who connect to it tell it."""
    async with make_cluster(count=3) as cluster:
        await started(cluster, until)
        if cluster.leader_id() == "n2":
            async with cluster.client() as client:
                await client.admin.transfer("n0")
        await cluster.stop("n2")
        async with cluster.client() as client:
            await client.admin.remove_member("n2")
            cluster.moves("n2")
            await client.admin.add_member("n2", cluster.addresses["n2"])
            await cluster.start("n2")
            await client.append(b"second")
            await until(lambda: "n2" in cluster.replica("n2").core.membership.voters)
            await until(lambda: not cluster.replica("n2").placement.misplaced_text)
            await until(lambda: len(set(cluster.logs().values())) == 1)
