"""Real nodes whose files were damaged while they were down: one bad group keeps no other down."""

import pytest
from prometheus_client import generate_latest

from quorumlog import Client, Producer
from quorumlog.model.errors import StorageError
from quorumlog.service.http import health_of
from quorumlog.service.metrics import NodeMetrics

GROUPS = ["bad", "good"]


def lose(path, name):
    for copy in ("", ".copy"):
        (path / f"{name}{copy}").write_bytes(b"")


async def append_to_all(cluster):
    for group in GROUPS:
        async with cluster.client(group) as client:
            await client.append(b"entry")


async def test_a_group_that_cannot_be_opened_does_not_keep_the_others_down(
    make_cluster, until, tmp_path, caplog
):
    async with make_cluster(groups=GROUPS) as cluster:
        await cluster.start()
        await append_to_all(cluster)
        await cluster.stop("n0")
        lose(tmp_path / "n0" / "bad", "quorumlog.state")
        (tmp_path / "n0" / "old" / "data").mkdir(parents=True)
        await cluster.start("n0")
        node = cluster.nodes["n0"]
        assert list(node.failed_groups) == ["bad"]
        assert any(f"{tmp_path / 'n0' / 'old'}" in str(vars(one)) for one in caplog.records)
        await until(lambda: node.replicas["good"].core.leader_id is not None)
        async with cluster.client("bad") as client:  # which the others serve
            await client.append(b"entry")
            status = {one.node_id: one for one in await client.status()}["n0"]
        assert (status.role, status.healthy) == ("FAILED", False)
        assert "quorumlog.state" in status.health_text
        assert "Removing this replica's directory" in status.health_text
        async with Client(cluster.addresses["n0"], "bad", timeout_ms=1_000) as client:
            with pytest.raises(Exception, match=r"node n0 cannot open group 'bad'"):
                await client.append(b"entry")
        async with cluster.client("good") as client:
            await client.append(b"entry")
        is_eligible, body = health_of(node)
        assert not is_eligible
        assert "quorumlog.state" in body["groups"]["bad"]["text"]
        assert body["groups"]["good"]["healthy"]
        text = generate_latest(NodeMetrics(node).registry).decode()
        assert 'quorumlog_replica_healthy{group="bad",self_id="n0"} 0.0' in text
        assert 'quorumlog_replica_healthy{group="good",self_id="n0"} 1.0' in text


async def test_a_node_with_nothing_to_serve_says_why_and_does_not_start(make_cluster, tmp_path):
    async with make_cluster(groups=GROUPS) as cluster:
        await cluster.start()
        await append_to_all(cluster)
        await cluster.stop()
        for group in GROUPS:
            lose(tmp_path / "n0" / group, "quorumlog.identity")
        with pytest.raises(StorageError, match=r"quorumlog\.identity.*Removing this replica's"):
            await cluster.start("n0")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("quorumlog.sessions", b""),
        ("quorumlog.sessions", None),
        ("quorumlog.checkpoint", b"x" * 5),
        ("quorumlog.state", b""),
        ("quorumlog.identity", b"{"),
        ("quorumlog.membership", b""),
        ("quorumlog.durable", b""),
        ("index/00000000000000000000", b"\0" * 100),
        ("data/00000000000000000000", b""),
        ("data/00000000000000000000", None),
    ],
)
async def test_a_damaged_file_is_made_good_and_the_replica_takes_part(
    make_cluster, until, tmp_path, name, damage
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            before = [await client.append(b"entry %d" % number) for number in range(20)]
        async with Producer(cluster.servers, "g") as producer:
            for number in range(50):
                await producer.send(b"of a producer %d" % number)
        await until(lambda: cluster.logs()["n1"] == cluster.logs()["n0"])
        await cluster.stop("n1")
        path = tmp_path / "n1" / "g" / name
        if damage is None:
            path.unlink(missing_ok=True)  # a table that was not saved yet is as good as lost
        else:
            path.write_bytes(damage)
        await cluster.start("n1")
        replica = cluster.replica("n1")

        def is_whole():
            others = cluster.replica("n0")
            return (
                not replica.log.damaged
                and not replica.tables.is_incomplete
                and replica.core.committed_index == others.core.committed_index
                and cluster.logs()["n1"] == cluster.logs()["n0"]
            )

        await until(is_whole)
        async with Client(cluster.addresses["n1"], "g") as client:
            entry = await client.get(before[7].index)
        assert entry.body == b"entry 7"
        assert replica.tables.count == cluster.replica("n0").tables.count
