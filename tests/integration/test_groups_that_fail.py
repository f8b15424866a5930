"""One group whose files or state machine fail: its node and the other groups go on."""

import pytest
from msgspec.structs import replace

from embedding import Program, configs
from quorumlog import Client, Node, NodeConfig
from quorumlog.errors import RequestError
from quorumlog.local.ports import free_ports
from quorumlog.machine import StateMachine
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import NoSpaceError, StorageError
from quorumlog.model.group_records import GroupState
from quorumlog.storage.files.os_files import OsFile, OsFileSystem, remove_tree
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.metadata.group_files import GroupFiles
from small_files import SMALL_SETTINGS


class Moody(StateMachine):
    """Raises in what `raises` names; an exception that is none of the errors of the node."""

    raises = ""
    opened = None

    def _act(self, name):
        if name in Moody.raises.split():
            raise SystemExit(name)

    @classmethod
    def open(cls, directory):
        if Moody.opened is not None:
            return Moody.opened()
        machine = cls()
        machine._act("open")
        return machine

    def recover(self):
        self._act("recover")

    @property
    def applied_index(self):
        return "none" if Moody.raises == "applied_index" else -1

    def apply(self, entries):
        self._act("apply")
        return [b""] * len(entries)

    def query(self, query):
        self._act("query")
        return b""

    def digest(self):
        self._act("digest")
        return b""

    def save_snapshot(self, writer):
        self._act("save_snapshot")

    def load_snapshot(self, reader):
        reader.read()

    def on_role_change(self, term, role):
        self._act("on_role_change")

    def close(self):
        self._act("close")


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    monkeypatch.setattr(Moody, "raises", "")
    monkeypatch.setattr(Moody, "opened", None)


MOODY = {**SMALL_SETTINGS, "stateMachine": f"{__name__}:Moody"}


async def make(cluster, **settings):
    async with cluster.client(timeout_ms=10_000) as client:
        return await client.admin.groups.create(
            "orders", replicas=len(cluster.ids), settings={**MOODY, **settings}
        )


async def execute(client):
    await client.execute(b"1")


async def query(client):
    await client.query(b"")


async def save(client):
    await client.admin.save_snapshot()


async def goes_on(cluster):
    """Append to the other group: the node has not ended."""
    async with cluster.client() as client:
        await client.append(b"entry")
    assert not any(node.failure.done() for node in cluster.nodes.values())


async def test_a_group_whose_first_files_do_not_fit_is_refused_and_at_a_start_it_fails_alone(
    make_cluster, monkeypatch, tmp_path
):
    resize, full = OsFile.resize, []

    def refuse(file, size):
        if full and "/orders/" in file.path and size:
            raise NoSpaceError(f"{file.path}: no space left")
        resize(file, size)

    monkeypatch.setattr(OsFile, "resize", refuse)
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        with pytest.raises(RequestError, match="mappedFileSizeForEntryData") as refused:
            await make(cluster, mappedFileSizeForEntryData=1 << 40)
        assert refused.value.code is ResponseCode.GROUP_REFUSED
        full.append(True)
        with pytest.raises(RequestError, match="no space left") as refused:
            await make(cluster)
        assert refused.value.code is ResponseCode.DISK_FULL
        assert not (tmp_path / "n0" / "orders").exists()
        assert list(cluster.nodes["n0"].replicas) == ["g"]
        await goes_on(cluster)
        full.clear()
        await make(cluster)
        await cluster.stop()
        for path in (tmp_path / "n0" / "orders").rglob("0" * 20):
            path.unlink()
        for path in (tmp_path / "n0" / "orders").glob("quorumlog.[cdm]*"):
            path.unlink()  # as if it had never appended
        full.append(True)
        await cluster.start()
        assert "no space left" in cluster.nodes["n0"].failed_groups["orders"]
        await goes_on(cluster)
        full.clear()
        await cluster.stop()
        await cluster.start()
        assert set(cluster.nodes["n0"].replicas) == {"g", "orders"}


async def test_a_group_whose_machine_cannot_be_opened_is_refused_and_at_a_start_it_fails_alone(
    make_cluster, monkeypatch, tmp_path, until
):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        for raises, opened, said in (("open", None, "SystemExit: open"), ("", str, "gave ''")):
            monkeypatch.setattr(Moody, "raises", raises)
            monkeypatch.setattr(Moody, "opened", opened)
            with pytest.raises(RequestError, match=f"cannot be opened: .*{said}"):
                await make(cluster)
            assert not (tmp_path / "n0" / "orders").exists()
            await goes_on(cluster)
        monkeypatch.setattr(Moody, "opened", None)
        await make(cluster)
        await cluster.stop()
        monkeypatch.setattr(Moody, "raises", "open")
        await cluster.start()
        assert "SystemExit: open" in cluster.nodes["n0"].failed_groups["orders"]
        await goes_on(cluster)
        monkeypatch.setattr(Moody, "raises", "")
        await cluster.stop()
        await cluster.start()
        await until(lambda: cluster.leader_id("orders"))


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("recover", None),
        ("applied_index", None),
        ("on_role_change", None),
        ("apply", execute),
        ("query", query),
        ("digest", save),
        ("save_snapshot", save),
    ],
)
async def test_a_machine_whose_method_raises_anything_fails_alone(
    make_cluster, monkeypatch, until, method, use
):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        await make(cluster)
        monkeypatch.setattr(Moody, "raises", method)
        await cluster.stop()
        await cluster.start()
        if use is not None:
            async with cluster.client("orders", timeout_ms=3_000) as client:
                with pytest.raises(RequestError):
                    await use(client)
        await until(lambda: cluster.replica("n0", "orders").applier.state.failed_text)
        assert method in cluster.replica("n0", "orders").applier.state.failed_text
        await goes_on(cluster)


async def test_a_machine_that_raises_when_it_is_closed_does_not_keep_its_group(
    make_cluster, monkeypatch
):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        await make(cluster)
        monkeypatch.setattr(Moody, "raises", "close")
        async with cluster.client() as client:
            await client.admin.groups.delete("orders", purge=True)
        monkeypatch.setattr(Moody, "raises", "")
        await make(cluster)
        await goes_on(cluster)


async def test_a_program_whose_machine_cannot_be_opened_keeps_its_other_groups(tmp_path):
    class Raises(Moody):
        @classmethod
        def open(cls, directory):
            raise RuntimeError("not today")

    (config,) = configs(tmp_path, count=1).values()
    node = Node(config)
    node.expect_group("orders", machine=Raises)
    async with node:
        group = await Program({"n0": node}, "g").leader()
        with pytest.raises(RequestError, match="RuntimeError: not today"):
            await node.create_group("orders", replicas=1, settings=SMALL_SETTINGS)
        await group.append(b"entry")


async def test_a_node_of_groups_that_all_fail_goes_on_if_one_was_made_while_it_ran(tmp_path):
    (port,) = free_ports(1)
    config = NodeConfig(
        self_id="n0", store_base_dir=str(tmp_path / "n0"), listen=f"127.0.0.1:{port}"
    )
    async with Node(config) as node:
        await node.create_group(
            "orders", members={"n0": config.listen_address}, settings=SMALL_SETTINGS
        )
    for copy in ("", ".copy"):
        (tmp_path / "n0" / "orders" / f"quorumlog.state{copy}").unlink()
    async with Node(config) as node:
        with pytest.raises(StorageError, match=r"quorumlog\.state is gone"):
            node.group("orders")
        await node.delete_group("orders", purge=True)
        await node.create_group(
            "orders", members={"n0": config.listen_address}, settings=SMALL_SETTINGS
        )


async def test_a_record_that_cannot_be_read_is_one_groups_and_journals_are_settled_first(
    tmp_path, monkeypatch
):
    (port,) = free_ports(1)
    base = tmp_path / "n0"
    config = NodeConfig(self_id="n0", store_base_dir=str(base), listen=f"127.0.0.1:{port}")
    async with Node(config) as node:
        for name in ("orders", "gone", "kept"):
            await node.create_group(
                name, members={"n0": config.listen_address}, settings=SMALL_SETTINGS
            )
    for path in (base / "orders").glob("quorumlog.group*"):
        path.write_bytes(b"x" * path.stat().st_size)
    records = GroupFiles(OsFileSystem(), str(base), remove_tree)
    record = next(one for one in records.load(0).hosted if one.group == "gone")
    records.save(replace(record, state=GroupState.DELETED))
    there_when_settled = []

    def settle(*arguments):
        there_when_settled.append((base / "gone").is_dir())
        return settle_node(*arguments)

    monkeypatch.setattr("quorumlog.node.groups.settle_node", settle)
    async with Node(config) as node:
        assert "all its copies are damaged" in node.failed_groups["orders"]
        await Program({"n0": node}, "kept").leader()
        async with Client(config.listen_address) as client:
            listed = {one.group: one for one in await client.admin.groups.list()}
    assert listed["orders"].states == {"n0": "FAILED"}
    assert "It may say that the group was deleted" in listed["orders"].problems["n0"]
    assert "gone" not in listed
    assert there_when_settled == [True]
    assert not (base / "gone").exists()
