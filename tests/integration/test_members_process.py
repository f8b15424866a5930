"""Members come, go, lose their disks and lead, as an operator brings it about by the command."""

import asyncio
import json
import re
import shutil
import subprocess
import sys

import msgspec
import pytest

from integration.conftest import PATIENCE, have_patience
from integration.history import Fate, Recorder
from integration.workload import Workload
from quorumlog.cli import members
from quorumlog.cli.main import main
from quorumlog.client import Client
from quorumlog.local import LocalCluster
from quorumlog.local.ports import LOOPBACK, free_ports
from quorumlog.model.config import GroupConfig, dump_config, load_config, parse_address
from quorumlog.model.errors import RequestError
from scripted_cluster import metadata_of
from small_files import SMALL_FILES

pytestmark = pytest.mark.processes

FAILOVER_SECONDS = 5.0
TOLD_SECONDS = 60.0
CAMPAIGN_SECONDS = PATIENCE["election_timeout_max_ms"] / 1_000 + 1.5
"""Within this, a member of a patient cluster campaigns that hears of no leader."""
SELDOM_S = 0.3
"""Pause between linearizable reads, longer than a heartbeat."""


class Command:
    """The command, run in this process."""

    def __init__(self, capsys):
        self._capsys = capsys

    async def run(self, *arguments):
        """Return exit status, standard output and standard error."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(main, list(map(str, arguments)))
        return status, *self._capsys.readouterr()

    async def succeeds(self, *arguments):
        status, out, err = await self.run(*arguments)
        assert (status, err) == (0, ""), arguments
        return out

    async def adds(self, node, address, *where):
        """It adds a voter; returns what it prints, and how far the member was behind."""
        status, out, err = await self.run("members", "add", node, address, *where)
        waits, *notes = err.splitlines()
        assert waits == f"quorumlog: waiting for {node} at {address} to catch up, up to 300 s"
        for note in notes:
            assert re.fullmatch(rf"quorumlog: {node} is \d+ entr(y|ies) behind", note)
        assert status == 0
        return out

    async def fails(self, *arguments):
        """It fails as it should: exit status 1 and one line that says why, returned."""
        status, out, err = await self.run(*arguments)
        assert (status, out) == (1, ""), arguments
        assert err.startswith("quorumlog: ")
        assert err.count("\n") == 1
        return err

    async def until_told(self, said, *arguments):
        """It fails, in the end for a reason that a leader may come to know a little later."""
        async with asyncio.timeout(TOLD_SECONDS):
            while said not in await self.fails(*arguments):
                pass

    async def objects(self, *arguments):
        out = await self.succeeds(*arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    async def kinds(self, cluster):
        """Return node id → kind as `members list` shows them."""
        found = await self.objects("members", "list", "--dir", cluster.directory)
        return {member["node"]: member["kind"] for member in found}


@pytest.fixture
def cli(capsys):
    return Command(capsys)


async def leader_of(cluster):
    return await asyncio.to_thread(cluster.leader, "g")


async def until_leads(cluster, node_id, seconds=60.0):
    async with asyncio.timeout(seconds):
        while True:
            if await leader_of(cluster) == node_id:
                return
            await asyncio.sleep(0.05)


async def until_votes(cluster, node_id, *, since=-1, index=-1, seconds=60.0):
    """Wait until a node's own log says that it votes, and holds this index.

    `since`: by a membership later than the one of this index.
    """
    async with Client(cluster.servers, "g") as client, asyncio.timeout(seconds):
        while True:
            found = {status.node_id: status for status in await client.status()}
            status = found.get(node_id)
            if (
                status is not None
                and node_id in status.voters
                and not status.outgoing
                and status.membership_index > since
                and status.committed_index >= index
            ):
                return status
            await asyncio.sleep(0.05)


@pytest.fixture
def stopped(tmp_path):
    """A cluster that is not started."""
    made = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=8 << 20)
    yield made
    made.down()


@pytest.fixture
def cluster(stopped, request):
    """With the parameter "patient": no election because a busy machine stands still."""
    if getattr(request, "param", "") == "patient":
        have_patience(stopped)
    stopped.up()
    return stopped


class Newcomer:
    """A fourth node: its configuration and its process."""

    def __init__(self, cluster, directory):
        model = load_config(cluster.directory / "n0.toml")
        (port,) = free_ports(1)
        self.address = f"{LOOPBACK}:{port}"
        (group,) = model.groups
        peers = f"{group.peers};n3-{self.address}"
        config = msgspec.structs.replace(
            model,
            self_id="n3",
            store_base_dir=str(directory / "n3"),
            admin_listen="",
            groups=[msgspec.structs.replace(group, peers=peers)],
        )
        self._model = config
        self._config = directory / "n3.toml"
        self._log = directory / "n3.log"
        self._process = None

    @property
    def log(self):
        return self._log.read_text()

    @property
    def configured(self):
        """The groups that it has without changes."""
        return self._model.groups

    def _launch(self):
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quorumlog", "serve", "--config", self._config], stderr=log
            )

    async def start(self, **changes):
        """Start it, its configuration changed; return when it listens."""
        self._config.write_bytes(dump_config(msgspec.structs.replace(self._model, **changes)))
        self._launch()
        while True:
            assert self._process.poll() is None, self._log.read_text()
            try:
                _, writer = await asyncio.open_connection(*parse_address(self.address))
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            finally:
                self._process.kill()


@pytest.fixture
def newcomer(cluster, tmp_path):
    made = Newcomer(cluster, tmp_path)
    yield made
    made.stop()


# -- who belongs to it ----------------------------------------------------------------------------


async def test_175_a_member_comes_a_follower_and_the_leader_go_under_load(cluster, newcomer, cli):
    where = ("--dir", cluster.directory)
    async with Workload(cluster.servers, read_pause_s=SELDOM_S) as load:
        await load.acknowledged_after(100)
        await newcomer.start()
        added = await cli.adds("n3", newcomer.address, *where)
        assert added == "n3 votes in g\n"
        assert await cli.kinds(cluster) == dict.fromkeys(["n0", "n1", "n2", "n3"], "voter")
        shown = await cli.succeeds("members", "list", *where)
        (row,) = [line.split() for line in shown.splitlines() if line.startswith("n3 ")]
        assert row[:3] == ["n3", newcomer.address, "voter"]

        leader = await leader_of(cluster)
        gone = next(node_id for node_id in cluster.node_ids if node_id != leader)
        await cli.succeeds("members", "remove", gone, "--servers", cluster.address(leader))
        await load.acknowledged_after(50)
        assert gone not in await cli.kinds(cluster)

        await cli.succeeds("members", "remove", leader, "--servers", newcomer.address)
        newest = await load.acknowledged_after(50)
        (left,) = set(cluster.node_ids) - {gone, leader}
        assert await cli.kinds(cluster) == {left: "voter", "n3": "voter"}
        await knows_or_refuses(load, cluster.address(leader), newest)
        await knows_or_refuses(load, cluster.address(gone), newest)
        await load.verify(f"{cluster.address(left)},{newcomer.address}")
    assert load.history.longest_stall_s() < FAILOVER_SECONDS


async def knows_or_refuses(load, address, newest):
    """A member that was removed, its process still up, is asked for a linearizable read."""
    async with load.client(address, timeout_ms=500) as client:
        try:
            bound = await load.recorder.bound(client, f"removed {address}", leader_only=False)
        except RequestError:
            return
    assert bound.index >= newest.index


@pytest.mark.parametrize("cluster", ["patient"], indirect=True)
async def test_a_member_that_was_removed_disturbs_nobody_and_can_come_back(cluster, cli):
    where = ("--dir", cluster.directory)
    async with Workload(cluster.servers, read_pause_s=SELDOM_S) as load:
        await load.acknowledged_after(50)
        leader = await leader_of(cluster)
        gone = next(node_id for node_id in cluster.node_ids if node_id != leader)
        await asyncio.to_thread(cluster.kill, gone)
        await cli.succeeds("members", "remove", gone, *where)
        before = (await load.acknowledged_after(20)).index
        await asyncio.to_thread(cluster.start, gone)  # it does not know that it was removed
        async with load.client() as client:
            term = (await client.get(before)).term
            begun = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - begun < CAMPAIGN_SECONDS:
                newest = await load.acknowledged_after(20)
            assert (await client.get(newest.index)).term == term
        await cli.adds(gone, cluster.address(gone), *where)
        assert await cli.kinds(cluster) == dict.fromkeys(cluster.node_ids, "voter")
        await load.verify()


def next_to(cluster, leader):
    ids = cluster.node_ids
    return ids[(ids.index(leader) + 1) % len(ids)]


async def terms_led(cluster, cli):
    """Return node id → the terms in which it led, as its event history has them.

    A busy machine may bring about elections of its own: nobody can say which terms these are.
    """
    story = await cli.succeeds("status", "--history", "--dir", cluster.directory)
    for node_id in cluster.node_ids:
        assert f"{node_id} ({cluster.address(node_id)})\n" in story
    return {
        node_id: re.findall(rf"LEADER in term (\d+), leader {node_id}\b", story)
        for node_id in cluster.node_ids
    }


async def test_37_leadership_is_handed_over_under_load(cluster, cli):
    where = ("--dir", cluster.directory)
    async with Workload(cluster.servers, read_pause_s=SELDOM_S) as load:
        await load.acknowledged_after(50)
        before = await terms_led(cluster, cli)
        for _ in cluster.node_ids:
            target = next_to(cluster, await leader_of(cluster))
            assert await cli.succeeds("transfer", target, *where) == f"{target} leads g\n"
            await load.acknowledged_after(50)
            now = await terms_led(cluster, cli)
            assert len(now[target]) > len(before[target])
            before = now
        best, _, text = (await cli.succeeds("transfer", *where)).partition(" ")
        assert text == "leads g\n"
        now = await terms_led(cluster, cli)
        assert len(now[best]) > len(before[best])
        watched = await cli.succeeds("watch-leader", "--count", "1", *where)
        term, leader, address = re.fullmatch(r"term (\d+)  (\w+)  (\S+)\n", watched).groups()
        assert address == cluster.address(leader)
        assert term in (await terms_led(cluster, cli))[leader]
        await load.verify()
    print(f"longest stall {load.history.longest_stall_s():.3f} s, {load.history.fates()}")
    assert load.history.longest_stall_s() < FAILOVER_SECONDS


# -- lost disks -----------------------------------------------------------------------------------


def wipe(cluster, node_id):
    """Kill a node and empty its directory."""
    cluster.kill(node_id)
    shutil.rmtree(cluster.group_directory(node_id, "g"))


async def test_120_a_wiped_node_joins_again_by_itself_under_load(cluster, cli):
    async with Workload(cluster.servers, read_pause_s=SELDOM_S) as load:
        await load.acknowledged_after(100)
        leader = await leader_of(cluster)
        follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
        for victim in (follower, leader):
            before = (await until_votes(cluster, victim)).membership_index
            await asyncio.to_thread(wipe, cluster, victim)
            newest = await load.acknowledged_after(50)
            await asyncio.to_thread(cluster.start, victim)
            await until_votes(cluster, victim, since=before, index=newest.index)
            story = await cli.succeeds("status", "--history", "--dir", cluster.directory)
            assert f"{victim} has another data directory than before" in story
            assert await cli.kinds(cluster) == dict.fromkeys(cluster.node_ids, "voter")
        await load.acknowledged_after(50)
        await load.verify()


async def test_a_wiped_node_elects_nobody_who_lacks_what_was_acknowledged(cluster):
    """n1 lacks an entry, n2 held it and forgot: together they may not lead, until n0 is back."""
    recorder = Recorder()
    nodes = ("n0", "n1", "n2")
    async with Client(cluster.servers, "g") as client:
        await recorder.append(client, b"on all three")
        if await leader_of(cluster) != "n0":  # who leads is not what this is about
            await client.admin.transfer("n0")
        await asyncio.to_thread(cluster.kill, "n1")
        kept = await recorder.append(client, b"on n0 and n2")
        assert kept.fate is Fate.ACKNOWLEDGED
    await asyncio.to_thread(cluster.kill, "n0")
    await asyncio.to_thread(wipe, cluster, "n2")
    await asyncio.to_thread(cluster.start, "n1")
    await asyncio.to_thread(cluster.start, "n2")
    async with Client(cluster.servers, "g", timeout_ms=2_500) as client:
        refused = await recorder.append(client, b"while n0 is away")
        assert refused.fate is Fate.FAILED
    await asyncio.to_thread(cluster.start, "n0")
    load = Workload(cluster.servers, read_pause_s=SELDOM_S)
    load.recorder = recorder
    async with load:
        await load.acknowledged_after(50)
        for node_id in nodes:
            await until_votes(cluster, node_id)
        final = await load.verify(least=50)
    assert b"on n0 and n2" in [seen.value for seen in final.entries]


# -- how it begins, and who leads -----------------------------------------------------------------


async def test_9_a_preferred_leader_leads_and_takes_it_back_after_a_restart(stopped):
    for node_id in stopped.node_ids:
        path = stopped.directory / f"{node_id}.toml"
        config = load_config(path)
        groups = [msgspec.structs.replace(g, preferred_leader_ids="n2") for g in config.groups]
        path.write_bytes(dump_config(msgspec.structs.replace(config, groups=groups)))
    await asyncio.to_thread(stopped.up)
    async with Workload(stopped.servers, read_pause_s=SELDOM_S) as load:
        await until_leads(stopped, "n2")
        await load.acknowledged_after(50)
        await asyncio.to_thread(stopped.kill, "n2")
        await load.acknowledged_after(50)
        assert await leader_of(stopped) != "n2"
        await asyncio.to_thread(stopped.start, "n2")
        await until_leads(stopped, "n2")
        await load.acknowledged_after(50)
        await load.verify()


async def test_a_group_begins_once_all_its_founders_are_there(stopped, cli):
    where = ("--dir", stopped.directory)
    await asyncio.to_thread(stopped.start, "n0")
    await asyncio.to_thread(stopped.start, "n1")
    assert await cli.fails("append", "too early", "--timeout", "1", *where)
    waits_for = "the group begins once all of n0, n1, n2 are up together"
    told = {replica["node"]: replica for replica in await cli.objects("status", *where)}
    assert told["n0"]["text"] == told["n1"]["text"] == waits_for
    assert [told[node_id]["role"] for node_id in ("n0", "n1")].count("LEADER") == 0
    shown = await cli.succeeds("status", *where)
    assert shown.count(waits_for) == 2
    await asyncio.to_thread(stopped.start, "n2")
    (appended,) = await cli.objects("append", "now", *where)
    assert appended["index"] == 1
    told = await cli.objects("status", *where)
    assert all(replica["healthy"] for replica in told)


async def test_141_a_follower_serves_linearizable_reads(cluster):
    leader = await leader_of(cluster)
    followers = [node_id for node_id in cluster.node_ids if node_id != leader]
    load = Workload(cluster.servers, read_pause_s=SELDOM_S)
    async with load, load.client() as client:
        for node_id in followers:
            async with load.client(cluster.address(node_id)) as direct:
                for number in range(50):
                    value = f"{node_id} {number}".encode()
                    placed = await load.recorder.append(client, value)
                    assert placed.fate is Fate.ACKNOWLEDGED
                    bound = await load.recorder.bound(direct, node_id, leader_only=False)
                    assert bound.index >= placed.index
                    at = {"end": placed.index, "leader_only": False, "linearizable": True}
                    entries = direct.read(placed.index, follow=False, **at)
                    assert [entry.body async for entry in entries] == [value]
                    told = metadata_of(direct).members
                    assert not told, "it asked this follower only"
        await load.verify()


# -- what the operator is told --------------------------------------------------------------------


@pytest.mark.parametrize("cluster", ["patient"], indirect=True)
async def test_40_what_cannot_be_done_is_said_in_one_line(cluster, newcomer, cli, monkeypatch):
    where = ("--dir", cluster.directory)
    leader = await leader_of(cluster)
    dead, alive = [node_id for node_id in cluster.node_ids if node_id != leader]
    (term,) = [one["term"] for one in await cli.objects("status", *where) if one["node"] == leader]
    nowhere = f"{LOOPBACK}:{free_ports(1)[0]}"
    elsewhere = ("--servers", nowhere, "--group", "g", "--timeout", "0.5")
    for arguments, said in [
        (("members", "remove", "n9", *where), "n9 is no member"),
        (("members", "promote", "n9", *where), "n9 is no member: add it first"),
        (("members", "promote", alive, *where), f"{alive} is a voter already"),
        (("members", "add", alive, nowhere, *where), f"{alive} is a voter already"),
        (("members", "add", "n3", "nowhere", *where), "'nowhere' is not host:port"),
        (("members", "add", "n-3", nowhere, *where), "member id 'n-3' is not usable"),
        (("members", "list", *elsewhere), f"cannot connect to {nowhere}"),
        (("members", "add", "n3", nowhere, *elsewhere), f"cannot connect to {nowhere}"),
        (("members", "remove", alive, *elsewhere), f"cannot connect to {nowhere}"),
        (("transfer", alive, *elsewhere), f"cannot connect to {nowhere}"),
        (("members", "list", *where, "--group", "nope"), "does not host group 'nope'"),
        (("members", "remove", alive, *where, "--group", "nope"), "'nope'"),
        (
            ("transfer", "n9", *where),
            "n9 is no voter of the group ('quorumlog members list' shows those there are)",
        ),
        (("transfer", alive, "--term", "99", *where), f"the term is {term}, not 99"),
    ]:
        assert said in await cli.fails(*arguments)
    # who does not answer there as this node of this cluster is not added
    unknown = cluster.address(alive)
    for address, said in [
        (nowhere, f"cannot connect to {nowhere}"),
        (unknown, f"at {unknown} is node {alive} of cluster "),
    ]:
        for options in (), ("--learner",):
            refused = await cli.fails("members", "add", "n3", address, *where, *options)
            assert refused.startswith(f"quorumlog: n3 is not added to g: {said}")
    await newcomer.start(cluster="another")
    refused = await cli.fails("members", "add", "n3", newcomer.address, *where)
    assert "n3 of cluster 'another', not n3 of 'local-" in refused
    assert list(await cli.kinds(cluster)) == ["n0", "n1", "n2"]
    newcomer.stop()
    # one that stops just then stays a learner, and goes again
    monkeypatch.setattr(members, "_check_newcomer", lambda *_: None)
    status, out, err = await cli.run("members", "add", "n3", nowhere, *where, "--timeout", "1")
    waits, late = err.splitlines()
    assert (status, out) == (1, "")
    assert waits == f"quorumlog: waiting for n3 at {nowhere} to catch up, up to 1 s"
    assert "n3 is a learner of g and has not caught up within 1 s" in late
    assert "'quorumlog members remove n3'" in late
    await cli.until_told("n3 does not answer", "members", "promote", "n3", *where)
    assert "n3 is no voter of the group" in await cli.fails("transfer", "n3", *where)
    gone = await cli.succeeds("members", "remove", "n3", *where)
    assert gone == "n3 is no member of g any more\n"
    # one of three is dead
    await asyncio.to_thread(cluster.kill, dead)
    await cli.until_told(f"{dead} does not answer", "transfer", dead, *where)
    refused = await cli.fails("members", "remove", alive, *where)
    assert f"without {alive} no majority would be left" in refused
    assert await leader_of(cluster) == leader
    await cli.succeeds("append", "and goes on", *where)


async def test_a_node_with_other_groups_takes_no_invitation_of_strangers(cluster, newcomer, cli):
    """Though no other node is a member of its group."""
    where = ("--dir", cluster.directory)
    own = GroupConfig(group="own", peers=f"n3-{newcomer.address}", **SMALL_FILES)
    await newcomer.start(groups=[own])
    add = ("members", "add", "n3", newcomer.address, *where)
    status, out, err = await cli.run(*add, "--timeout", "3")
    assert (status, out) == (1, "")
    assert "quorumlog: n3 has other groups, and takes an invitation only of their members" in err
    assert "n3 is a learner of g and has not caught up within 3 s" in err
    assert '"event": "refuses an invitation"' in newcomer.log
    await asyncio.to_thread(newcomer.stop)
    (group,) = newcomer.configured
    await newcomer.start(groups=[own, group])
    await until_votes(cluster, "n3")


async def test_the_last_voter_stays(tmp_path, cli):
    single = LocalCluster.create(tmp_path / "one", nodes=1, groups=("g",))
    where = ("--dir", single.directory)
    await asyncio.to_thread(single.up)
    try:
        assert "n0 is the last voter" in await cli.fails("members", "remove", "n0", *where)
        await cli.succeeds("append", "and goes on", *where)
    finally:
        await asyncio.to_thread(single.down)
