"""Groups that are made, changed and deleted while real nodes run."""

import asyncio
import shutil

import pytest

from quorumlog.cli.main import main
from quorumlog.errors import RequestError, UnknownGroupError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import NetworkError, UnexpectedArgumentError
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.groups import CreateGroupRequest
from small_files import SMALL_SETTINGS


def admin(cluster, group="g"):
    return cluster.client(group, timeout_ms=5_000)


async def made_small(client, members=None, **settings):
    settings = {**SMALL_SETTINGS, **settings}
    return await client.admin.groups.create("orders", members=members, settings=settings)


def hosts(cluster, name):
    return {node_id for node_id, node in cluster.nodes.items() if name in node.replicas}


async def test_163_a_group_is_made_while_nodes_run_used_and_found_again_after_a_restart(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            made = await made_small(client, retentionBytes=1 << 30)
            assert made.leader_id in cluster.ids
            assert made.members == cluster.addresses
        async with cluster.client("orders") as client:
            assert (await client.append(b"first")).index == 1
        assert hosts(cluster, "orders") == set(cluster.ids)
        await cluster.stop()
        await cluster.start()
        await until(lambda: cluster.leader_id("orders"))
        async with cluster.client("orders") as client:
            assert (await client.get(1)).body == b"first"
            assert (await client.append(b"second")).index > 1
        assert cluster.replica("n0", "orders").config.retention_bytes == 1 << 30


async def test_163_a_deleted_group_is_gone_and_one_of_its_name_starts_from_nothing(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            before = await made_small(client)
            async with cluster.client("orders") as orders:
                await orders.append(b"old")
                changed = await client.admin.groups.delete("orders")
                assert changed.nodes == cluster.ids
                with pytest.raises(UnknownGroupError):
                    await orders.append(b"late")
            after = await made_small(client)
            assert after.identity != before.identity
            async with cluster.client("orders") as orders:
                at = await orders.append(b"new")
                assert at.index == 1
                assert (await orders.get(1)).body == b"new"
            known = await client.admin.groups.list(deleted=True)
            states = {
                one.identity: set(one.states.values()) for one in known if one.group == "orders"
            }
            assert states == {before.identity: {"DELETED"}, after.identity: {"HOSTED"}}


async def test_a_member_that_was_away_deletes_the_group_once_it_is_back(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client)
            await cluster.stop("n2")
            changed = await client.admin.groups.delete("orders")
            assert changed.nodes == ["n0", "n1"]
            assert set(changed.pending) == {"n2"}
            await made_small(client, members=["n0", "n1"])
            async with cluster.client("orders") as orders:
                await orders.append(b"new")
            await cluster.start("n2")
            await until(lambda: hosts(cluster, "orders") == {"n0", "n1"})
            async with cluster.client("orders") as orders:
                assert (await orders.get(1)).body == b"new"


async def test_a_group_that_one_node_refuses_exists_nowhere(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            groups = client.admin.groups
            await made_small(client, members=["n2"])
            with pytest.raises(RequestError) as refused:
                await made_small(client)
            assert refused.value.code is ResponseCode.GROUP_EXISTS
            assert hosts(cluster, "orders") == {"n2"}
            with pytest.raises(UnexpectedArgumentError, match="did you mean retentionBytes"):
                await groups.create("other", settings={"retentionByte": 1})
            assert hosts(cluster, "other") == set()


async def test_what_all_nodes_answer_alike_is_said_once(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client)
            with pytest.raises(RequestError, match="'orders' is not made: n0, n1, n2: ") as refused:
                await made_small(client)
            assert str(refused.value).count("n1") == 1


async def test_a_group_needs_all_its_members_to_be_made_and_most_to_be_deleted(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            groups = client.admin.groups
            await made_small(client)
            await cluster.stop("n2")
            with pytest.raises(NetworkError, match="n2"):
                await groups.create("other", members=cluster.addresses)
            assert hosts(cluster, "other") == set()
            await cluster.stop("n1")
            with pytest.raises(NetworkError, match="no majority"):
                await groups.delete("orders")
            assert hosts(cluster, "orders") == {"n0"}


async def test_a_creation_that_was_interrupted_is_undone_by_the_members(
    make_cluster, until, monkeypatch
):
    monkeypatch.setattr("quorumlog.node.group_sync.QUERY_MS", 50)
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            groups = client.admin.groups
            addresses = {k: cluster.addresses[k] for k in ("n0", "n1")}
            peers = ";".join(f"{n}-{a}" for n, a in cluster.addresses.items())
            half = CreateGroupRequest(group="half", identity=bytes(range(16)), peers=peers)
            await groups._ask_each(addresses, half, Response)
            assert hosts(cluster, "half") == {"n0", "n1"}
            monkeypatch.setattr("quorumlog.node.group_sync.FOUNDING_MS", 200)  # not before
            nodes = cluster.nodes.values()
            await until(lambda: hosts(cluster, "half") == set())
            await until(lambda: not any(n.hosting.lifecycle.is_changing("half") for n in nodes))
            late = await groups._ask_each(cluster.addresses, half, Response)
            assert {one.code for one in late.values()} == {ResponseCode.GROUP_DELETED}


async def test_a_member_whose_disk_was_emptied_is_invited_again(
    make_cluster, until, monkeypatch, tmp_path
):
    monkeypatch.setattr("quorumlog.node.group_sync.QUERY_MS", 50)
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client, cleanInterval=777)
        async with cluster.client("orders") as orders:
            await orders.append(b"kept")
        await cluster.stop("n2")
        shutil.rmtree(tmp_path / "n2")
        await cluster.start("n2")
        await until(lambda: hosts(cluster, "orders") == set(cluster.ids))
        await until(lambda: cluster.replica("n2", "orders").core.committed_index >= 1)
        assert cluster.replica("n2", "orders").config.clean_interval == 777


async def test_settings_are_altered_while_the_group_runs_and_kept(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            groups = client.admin.groups
            await made_small(client)
            await cluster.stop("n2")
            changed = await groups.alter(
                "orders", {"electionTimeoutMinMs": "700", "digestEntries": 8}
            )
            assert changed.nodes == ["n0", "n1"]
            assert changed.after_restart == ["digestEntries"]
            assert (await groups.alter("orders", {"cleanInterval": 555})).after_restart == []
            await groups.alter("orders", {"mappedFileSizeForEntryData": 1 << 26})
            config = cluster.replica("n0", "orders").core.config
            assert config.election_timeout_min_ms == 700
            with pytest.raises(UnexpectedArgumentError, match="must exceed electionTimeoutMinMs"):
                await groups.alter("orders", {"electionTimeoutMaxMs": 600})
            with pytest.raises(UnexpectedArgumentError, match="chosen when a group is made"):
                await groups.alter("orders", {"stateMachine": "kv"})
            await cluster.start("n2")
            await until(
                lambda: cluster.replica("n2", "orders").core.config.election_timeout_min_ms == 700
            )
            _, described = await groups.describe("orders")
            by_key = {one.key: one for one in described["n0"]}
            assert by_key["electionTimeoutMinMs"].source == "runtime"
            assert by_key["snapshotBytes"].source == "default"
            of_files = by_key["mappedFileSizeForEntryData"]  # they keep the size they have
            assert (of_files.applies, of_files.value) == ("new", str(1 << 26))
            assert of_files.running == str(SMALL_SETTINGS[of_files.key])
            await groups.alter("orders", unset=["electionTimeoutMinMs"])
            assert cluster.replica("n2", "orders").core.config.election_timeout_min_ms == 500


async def test_f113_a_leader_that_is_preferred_at_run_time_takes_over(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client, cluster.client("orders") as orders:
            made = await made_small(client)
            first = await orders.append(b"first")
            wanted = max(set(cluster.ids) - {made.leader_id})
            changed = await client.admin.groups.alter("orders", {"preferredLeaderIds": wanted})
            assert changed.after_restart == []
            await until(lambda: cluster.leader_id("orders") == wanted)
            second = await orders.append(b"second")
            assert (await orders.get(first.index)).body == b"first"
            assert second.term > first.term
            await client.admin.groups.alter("orders", {"preferredLeaderIds": made.leader_id})
            await until(lambda: cluster.leader_id("orders") == made.leader_id)
            assert (await orders.append(b"third")).index > second.index


async def test_a_node_that_is_down_is_a_line_of_the_lists_and_the_exit_status_says_so(
    make_cluster, capsys
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client)
        servers = ",".join(cluster.addresses.values())
        await cluster.stop("n2")
        for command in (["list"], ["describe", "orders"]):
            arguments = ["group", *command, "--servers", servers]
            assert await asyncio.to_thread(main, arguments) == 1
            printed = capsys.readouterr()
            assert "orders" in printed.out
            assert "n2: cannot connect to " in printed.err
            assert "1 node does not answer" in printed.err
        await cluster.start("n2")
        assert await asyncio.to_thread(main, ["group", "list", "--servers", servers]) == 0
        assert not capsys.readouterr().err


async def test_a_group_that_exists_is_a_failure_unless_the_command_says_otherwise(
    make_cluster, capsys
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client)
        again = ["group", "create", "orders", "--servers", ",".join(cluster.addresses.values())]
        assert await asyncio.to_thread(main, again) == 1
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*again, "--if-not-exists"]) == 0
        assert "there is a group orders already; nothing is changed" in capsys.readouterr().err


async def test_a_name_that_a_node_has_which_is_not_chosen_is_not_given_again(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            groups = client.admin.groups
            await groups.create("one", members=["n0"], settings=SMALL_SETTINGS)
            for options in ({"members": ["n1"]}, {"replicas": 1}, {"members": ["n1", "n2"]}):
                with pytest.raises(RequestError, match="it exists already") as caught:
                    await groups.create("one", settings=SMALL_SETTINGS, **options)
                assert caught.value.code is ResponseCode.GROUP_EXISTS
            (summary,) = [one for one in await groups.list() if one.group == "one"]
            assert list(summary.members) == ["n0"]
            await groups.delete("one")
            made = await groups.create("one", members=["n1"], settings=SMALL_SETTINGS)
            assert list(made.members) == ["n1"]


async def test_settings_that_several_clients_alter_at_the_same_time_all_hold(make_cluster, until):
    wanted = {"cleanInterval": "777", "retentionBytes": "1000000000", "fileReservedHours": "24"}
    async with make_cluster() as cluster:
        await cluster.start()
        async with admin(cluster) as client:
            await made_small(client)
            clients = [admin(cluster) for _ in wanted]
            await asyncio.gather(
                *(
                    one.admin.groups.alter("orders", {key: value})
                    for one, (key, value) in zip(clients, wanted.items(), strict=True)
                )
            )
            for one in clients:
                await one.close()
            (found,) = [one for one in await client.admin.groups.list() if one.group == "orders"]
            assert wanted.items() <= found.settings.items()
            nodes = cluster.nodes.values()
            await until(
                lambda: all(
                    wanted.items() <= node.catalog.records["orders"].settings.items()
                    for node in nodes
                )
            )
