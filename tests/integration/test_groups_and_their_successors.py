"""Deleted groups, successors of their names, nodes that share no group yet, and copies of nodes."""

import shutil
from contextlib import AsyncExitStack

import msgspec
import pytest

import quorumlog.errors as qe
from embedding import Program
from quorumlog import Client, Node, NodeConfig
from quorumlog.local.ports import free_ports
from small_files import SMALL_SETTINGS

SECONDS = 60.0


def bare(directory, node_id, port):
    """Return the configuration of a node without groups."""
    return NodeConfig(
        self_id=node_id, store_base_dir=str(directory / node_id), listen=f"127.0.0.1:{port}"
    )


@pytest.fixture
async def nodes(tmp_path):
    """Three nodes without groups, inside the test."""
    made = {}
    async with AsyncExitStack() as stack:
        for number, port in enumerate(free_ports(3)):
            node_id = f"n{number}"
            made[node_id] = await stack.enter_async_context(Node(bare(tmp_path, node_id, port)))
        yield made


def members_of(nodes, *ids):
    return {node_id: nodes[node_id].config.listen_address for node_id in ids or nodes}


async def make(nodes, name="orders", *ids):
    first = nodes[(ids or tuple(nodes))[0]]
    await first.create_group(name, members=members_of(nodes, *ids), settings=SMALL_SETTINGS)


def has(node, index):
    """Whether a node hosts the group, and knows that an entry is committed."""
    try:
        return node.group("orders").committed_index >= index
    except qe.UnknownGroupError:
        return False


async def test_a_handle_of_a_deleted_group_does_not_append_to_its_successor(nodes):
    await make(nodes)
    former = await Program(nodes, "orders").leader()
    await nodes["n0"].delete_group("orders")
    with pytest.raises(qe.UnknownGroupError):
        await former.append(b"late")
    await make(nodes)
    with pytest.raises(qe.WrongClusterError, match="another one of that name") as refused:
        await former.append(b"late")
    assert refused.value.outcome is qe.Outcome.DID_NOT_HAPPEN
    with pytest.raises(qe.WrongClusterError):
        _ = former.role
    leader = await Program(nodes, "orders").leader()
    assert (await leader.append(b"first")).index == 1


async def test_a_purge_means_the_deleted_group_on_all_its_members_and_never_a_successor(
    nodes, tmp_path
):
    await make(nodes)
    await nodes["n0"].delete_group("orders")
    graves = [tmp_path / node_id / "quorumlog.deleted" for node_id in nodes]
    assert all(len(list(grave.glob("orders.*/data"))) == 1 for grave in graves)
    (former,) = {one.name.removeprefix("orders.") for grave in graves for one in grave.iterdir()}
    await make(nodes)
    with pytest.raises(qe.UnexpectedArgumentError, match=f"deleted one .*{former}.*say which"):
        await nodes["n0"].delete_group("orders", purge=True)
    async with Client(nodes["n1"].config.listen_address, timeout_ms=30_000) as client:
        purged = await client.admin.groups.delete("orders", purge=True, identity=former)
    assert set(purged.nodes) == set(nodes)
    assert not any(list(grave.glob("orders.*/data")) for grave in graves)
    leader = await Program(nodes, "orders").leader()
    await leader.append(b"still there")


async def test_a_program_purges_a_group_that_was_deleted_before_on_all_its_members(nodes, tmp_path):
    """Its node knows the others by nothing but that group."""
    await make(nodes)
    await nodes["n0"].delete_group("orders")
    purged = await nodes["n0"].delete_group("orders", purge=True)
    assert set(purged.nodes) == set(nodes)
    for node_id in nodes:
        assert not list((tmp_path / node_id).glob("quorumlog.deleted/orders.*/data"))


async def test_a_new_group_needs_three_nodes_unless_it_is_said(nodes):
    await make(nodes, "first", "n0", "n1")
    with pytest.raises(
        qe.UnexpectedArgumentError,
        match=r"replicas is 3, and 2 nodes were found.*replicas=2.*--replicas 2",
    ):
        await nodes["n0"].create_group("orders", settings=SMALL_SETTINGS)
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    servers = f"{nodes['n0'].config.listen_address},{dead}"
    async with Client(servers, timeout_ms=30_000) as client:
        with pytest.raises(qe.NetworkError, match=f"2 nodes were found; {dead}"):
            await client.admin.groups.create("orders", settings=SMALL_SETTINGS)
        made = await client.admin.groups.create("orders", replicas=2, settings=SMALL_SETTINGS)
    assert set(made.members) == {"n0", "n1"}


@pytest.mark.parametrize("has_own", [False, True])
async def test_a_node_that_shares_no_group_yet_is_added_as_a_member(nodes, until, has_own):
    """One that has a group already takes the invitation of those whom it knows by another one."""
    await make(nodes, "orders", "n0", "n1")
    if has_own:
        await make(nodes, "own", "n2")
    leader = await Program({one: nodes[one] for one in ("n0", "n1")}, "orders").leader()
    at = await leader.append(b"before it came")
    servers = ",".join(members_of(nodes, "n0", "n1").values())
    async with Client(servers, "orders", timeout_ms=60_000) as client:
        await client.admin.add_member("n2", nodes["n2"].config.listen_address)
    if has_own:
        counters = nodes["n2"]._inside.inbox_counters
        await until(lambda: counters.unknown_member, seconds=SECONDS)
        with pytest.raises(qe.UnknownGroupError):
            nodes["n2"].group("orders")
        await make(nodes, "common", "n0", "n1", "n2")
    await until(lambda: has(nodes["n2"], at.index), seconds=SECONDS)


async def test_a_copy_of_a_node_takes_no_part_in_groups_that_were_made_at_run_time(tmp_path, until):
    configs = {
        f"n{number}": bare(tmp_path, f"n{number}", port)
        for number, port in enumerate(free_ports(3))
    }
    async with AsyncExitStack() as stack:
        nodes = {one: Node(config) for one, config in configs.items()}
        for one in ("n0", "n1"):
            await stack.enter_async_context(nodes[one])
        async with nodes["n2"]:
            await make(nodes)
            leader = await Program(nodes, "orders").leader()
            await leader.append(b"entry")
        shutil.copytree(tmp_path / "n2", tmp_path / "copy")
        copy = Node(
            msgspec.structs.replace(
                configs["n2"],
                store_base_dir=str(tmp_path / "copy"),
                listen=f"127.0.0.1:{free_ports(1)[0]}",
            )
        )
        await stack.enter_async_context(copy)
        assert "was copied or moved" in copy.group("orders").status().address_text
        again = await stack.enter_async_context(Node(configs["n2"]))
        assert not again.group("orders").status().address_text
        leader = await Program(
            {one: nodes[one] for one in ("n0", "n1")} | {"n2": again}, "orders"
        ).leader()
        at = await leader.append(b"more")
        await until(lambda: again.group("orders").committed_index >= at.index)
        assert copy.group("orders").committed_index < at.index


async def test_a_deleted_group_of_the_file_does_not_come_back_on_an_emptied_node(
    make_cluster, until, tmp_path, monkeypatch
):
    monkeypatch.setattr("quorumlog.node.group_sync.QUERY_MS", 200)
    async with make_cluster(groups=("g", "f")) as cluster:
        await cluster.start()
        async with cluster.client("f") as client:
            await client.append(b"entry")
        async with cluster.client() as client:
            await client.admin.groups.delete("f", purge=True)
            await cluster.stop("n2")
            shutil.rmtree(tmp_path / "n2")
            await cluster.start("n2")
            await until(lambda: "f" not in cluster.nodes["n2"].replicas, seconds=SECONDS)
            await cluster.stop("n2")
            await cluster.start("n2")
            assert "f" not in cluster.nodes["n2"].replicas
            await client.admin.groups.create("f", settings=SMALL_SETTINGS)
        async with cluster.client("f") as client:
            assert (await client.append(b"new")).index == 1


async def test_a_refused_deletion_names_the_node_that_may_have_the_group(nodes):
    servers = [node.config.listen_address for node in nodes.values()]
    async with Client(servers, timeout_ms=10_000) as client:
        await make(nodes)
        await client.admin.groups.delete("orders")
        await make(nodes, "orders", "n2")
        await nodes["n2"].stop()
        with pytest.raises(qe.UnknownGroupError, match=r"did not answer, and may have one"):
            await client.admin.groups.delete("orders")
