"""A node as a process: how it starts, refuses, shows itself, fails and stops."""

import asyncio
import json
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.conftest import have_patience
from quorumlog.client import Client, SyncClient
from quorumlog.local import LocalCluster

pytestmark = pytest.mark.processes

EXIT_SECONDS = 120


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster for tests that neither stop a node nor hurt one; one of them appends.

    It has the leader that it had at first, however busy the machine is.
    """
    made = LocalCluster.create(
        tmp_path_factory.mktemp("shared") / "cluster", groups=("g",), data_file_bytes=8 << 20
    )
    have_patience(made)
    made.up()
    yield made
    made.down()


def config_of(cluster, node_id):
    (path,) = cluster.directory.rglob(f"{node_id}.toml")
    return path


def serve(config):
    """Run a node until it exits by itself; return its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog", "serve", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=EXIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


def page(cluster, node_id, path):
    url = f"http://{cluster.admin_address(node_id)}{path}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(cluster, node_id):
    status, text = page(cluster, node_id, "/metrics")
    assert status == 200
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "bucket" not in sample.name
    }


def test_a_directory_in_use_is_refused(shared):
    status, said = serve(config_of(shared, "n0"))
    assert status == 1
    assert "in use by another process" in said
    assert "Traceback" not in said


def test_a_port_in_use_is_refused(shared, tmp_path):
    text = config_of(shared, "n0").read_text()
    directory = str(shared.group_directory("n0", "g").parent)
    config = tmp_path / "other.toml"
    config.write_text(text.replace(directory, str(tmp_path / "elsewhere")))
    status, said = serve(config)
    assert status == 1
    assert "cannot listen on" in said or "adminListen" in said


async def test_damaged_data_is_repaired_from_the_other_nodes(cluster, until):
    async with Client(cluster.servers, "g") as client:
        await client.append_batch([b"x" * 1_000] * 200)
        leader = cluster.leader("g")
        victim = next(node for node in cluster.node_ids if node != leader)
        cluster.stop(victim)
        state = cluster.group_directory(victim, "g") / "quorumlog.checkpoint"
        state.unlink()  # so that everything is read again
        path = cluster.group_directory(victim, "g") / "data" / f"{0:020d}"
        raw = bytearray(path.read_bytes())
        raw[50_000] ^= 0x10
        path.write_bytes(bytes(raw))
        cluster.start(victim)
        whole = (await client.append(b"the others go on")).index
        committed, damaged = (
            "quorumlog_replica_committed_index",
            "quorumlog_replica_damaged_entries",
        )
        await until(lambda: metrics(cluster, victim)[committed] >= whole)
        await until(lambda: metrics(cluster, victim)[damaged] == 0)
        raw[50_000] ^= 0x10
        assert path.read_bytes()[:200_000] == bytes(raw)[:200_000]
        assert '"event": "repaired"' in cluster.log_file(victim).read_text()


def test_sigterm_is_a_clean_stop_and_opening_reads_nothing(cluster):
    with SyncClient(cluster.servers, "g") as client:
        client.append_batch([b"x"] * 1_000)
    cluster.down()
    for node_id in cluster.node_ids:
        log = cluster.log_file(node_id).read_text()
        assert '"event": "node stopped"' in log
        assert "Traceback" not in log
    cluster.up()
    for node_id in cluster.node_ids:
        lines = cluster.log_file(node_id).read_text().splitlines()
        opened = [json.loads(line) for line in lines if '"group opened"' in line][-1]
        assert opened["report"]["scanned_entries"] == 0


def test_166_metrics_and_health_tell_the_truth(shared):
    with SyncClient(shared.servers, "g") as client:
        client.append_batch([b"x" * 100] * 50)
        client.get(client.bounds()[1])
    leader = shared.leader("g")
    values = metrics(shared, leader)
    assert values["quorumlog_replica_is_leader"] == 1
    assert values["quorumlog_service_append_entries_total"] == 50
    assert values["quorumlog_service_append_bytes_total"] == 50 * 148
    assert values["quorumlog_service_append_seconds_count"] == 1
    assert 0 < values["quorumlog_service_append_seconds_sum"] < 10
    assert values["quorumlog_disk_commit_seconds_count"] > 0
    assert values["quorumlog_replica_committed_index"] == 50
    assert values["quorumlog_service_fetch_entries_total"] == 1
    status, text = page(shared, leader, "/health")
    health = json.loads(text)
    assert (status, health["healthy"], health["groups"]["g"]["role"]) == (200, True, "LEADER")
    assert page(shared, leader, "/nothing")[0] == 404


async def test_an_idle_group_is_reported_to_rest(shared, until):
    for node_id in shared.node_ids:
        await until(lambda node_id=node_id: metrics(shared, node_id)["quorumlog_groups_quiescent"])


def test_without_a_majority_health_says_so(cluster, until):
    leader = cluster.leader("g")
    for node_id in cluster.node_ids:
        if node_id != leader:
            cluster.kill(node_id)

    answers = []

    def unhealthy():
        answers.append(page(cluster, leader, "/health"))
        return answers[-1][0] == 503

    asyncio.run(until(unhealthy))
    assert json.loads(answers[-1][1])["groups"]["g"]["text"] == "no leader known"


async def test_a_follower_whose_writes_fail_stops_and_comes_back(cluster, until):
    """RELIABILITY 2.2 rule 1."""
    leader = await asyncio.to_thread(cluster.leader, "g")
    victim = next(node for node in cluster.node_ids if node != leader)
    pid = cluster.running()[victim]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    async with Client(cluster.servers, "g") as client:
        places = [await client.append_batch([b"y" * 1_000] * 500) for _ in range(30)]
        await until(lambda: victim not in cluster.running())
        log = cluster.log_file(victim).read_text()
        assert "File too large" in log
        assert "node must stop" in log
        await asyncio.to_thread(cluster.start, victim)
        async with asyncio.timeout(EXIT_SECONDS):
            while True:
                states = {s.node_id: s.committed_index for s in await client.status()}
                if states[victim] >= places[-1].last_index:
                    break
                await asyncio.sleep(0.05)


async def test_a_leader_whose_writes_fail_hands_over_and_loses_nothing(cluster, until):
    """RELIABILITY 2.2 rule 1."""
    leader = await asyncio.to_thread(cluster.leader, "g")
    async with Client(cluster.servers, "g", timeout_ms=20_000, retry_unknown=True) as client:
        await client.append(b"before")
        pid = cluster.running()[leader]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        acknowledged = []
        for batch in range(40):
            bodies = [f"{batch} {i}".encode().ljust(1_000) for i in range(300)]
            await client.append_batch(bodies)
            acknowledged += bodies
        await until(lambda: leader not in cluster.running())
        found = {entry.body async for entry in client.read(0, follow=False)}
        assert set(acknowledged) <= found


def test_a_stopped_process_is_replaced_and_follows_when_it_goes_on(cluster):
    leader = cluster.leader("g")
    cluster.pause(leader)
    try:
        with SyncClient(cluster.servers, "g", timeout_ms=20_000) as client:
            place = client.append(b"by the new leader")
            assert place.term > 1
    finally:
        cluster.resume(leader)
    with SyncClient(cluster.servers, "g", timeout_ms=20_000) as client:
        client.append(b"all three")

        async def until_follows():
            async with asyncio.timeout(60):
                while True:
                    states = {s.node_id: s for s in await asyncio.to_thread(client.status)}
                    if (
                        states[leader].role == "FOLLOWER"
                        and states[leader].committed_index >= place.index
                    ):
                        return
                    await asyncio.sleep(0.05)

        asyncio.run(until_follows())


def test_ctrl_c_is_a_clean_stop(tmp_path):
    made = LocalCluster.create(tmp_path / "one", nodes=1, groups=("g",))
    process = subprocess.Popen(
        [sys.executable, "-m", "quorumlog", "serve", "--config", str(config_of(made, "n0"))],
        stderr=subprocess.PIPE,
        text=True,
    )
    started = ""
    while '"node started"' not in started:
        started = process.stderr.readline()
        assert started
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=EXIT_SECONDS)
    assert process.returncode == 0
    assert "node stopped" in said


async def test_the_log_level_of_a_group_is_altered_while_nodes_run(tmp_path):
    made = LocalCluster.create(tmp_path / "cluster", groups=("told", "quiet"))
    made.up()

    def elections(group):
        lines = [made.log_file(node_id).read_text().splitlines() for node_id in made.node_ids]
        events = [json.loads(line) for of_node in lines for line in of_node]
        return sum(one.get("group") == group and one["event"] == "role changed" for one in events)

    try:
        for is_quiet in (True, False):
            async with Client(made.servers, "quiet") as client:
                level = "WARNING" if is_quiet else "INFO"
                await client.admin.groups.alter("quiet", {"logLevel": level})
            before = {group: elections(group) for group in ("told", "quiet")}
            for group in before:
                async with Client(made.servers, group) as client:
                    await client.admin.transfer()
                    await client.append(b"by the next leader")
            assert elections("told") > before["told"]
            assert (elections("quiet") == before["quiet"]) == is_quiet
    finally:
        made.down()


async def test_debug_lines_are_those_of_one_group_while_it_is_looked_into(tmp_path):
    made = LocalCluster.create(tmp_path / "cluster", groups=("asked", "other"))
    made.up()

    def debug_lines():
        lines = [made.log_file(node_id).read_text().splitlines() for node_id in made.node_ids]
        events = [json.loads(line) for of_node in lines for line in of_node]
        return [one for one in events if one["level"] == "DEBUG"]

    async def lead_elsewhere():
        for group in ("asked", "other"):
            async with Client(made.servers, group) as client:
                await client.admin.transfer()
                await client.append(b"by the next leader")

    try:
        async with Client(made.servers, "asked") as client:
            await client.admin.groups.alter("asked", {"logLevel": "DEBUG"})
            await lead_elsewhere()
            await client.admin.groups.alter("asked", {}, unset=("logLevel",))
        lines = debug_lines()
        assert {one.get("group") for one in lines} == {"asked"}
        told = [one["text"] for one in lines if one["event"] == "history"]
        assert [text for text in told if text.startswith("transfers leadership to ")]
        assert [text for text in told if "votes in term" in text]
        assert [text for text in told if "TRUNCATE → APPEND" in text]
        await lead_elsewhere()
        assert debug_lines() == lines
    finally:
        made.down()
