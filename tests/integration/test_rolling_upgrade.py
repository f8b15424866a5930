"""Nodes of the last release are replaced by this one's under load, one by one, back and forth."""

import io
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.rolling_clients import (
    STEP,
    STEP_S,
    KafkaClient,
    LogClient,
    check_log,
    check_replicas,
    check_topic,
    go_on,
)
from quorumlog import SyncClient
from quorumlog.errors import RequestError
from quorumlog.local import LocalCluster
from quorumlog.model.codes import ResponseCode
from quorumlog.model.release import RELEASE
from quorumlog.wire.kinds import KIND_OF_MESSAGE
from wire_samples import read_golden, sample_of

LAST_RELEASE = "a293495a"
"""The commit that nodes are upgraded from: the last release before this one."""
ROOT = Path(__file__).parents[2]
OWN = str(ROOT / "src")
OFTEN = 20
"""Entries of `__cluster` after which it saves a snapshot, and its members compare their states."""
CREATE = """
import sys
from quorumlog.local import LocalCluster
LocalCluster.create(sys.argv[1], groups=("g",), topics=True, kafka_port=0)
"""
READ_BY_LAST = """
import json, sys
from base64 import b64decode
from quorumlog.wire.decoder import DECODERS
for kind, encoded in json.load(sys.stdin).items():
    DECODERS[int(kind)].decode(b64decode(encoded))
    print(kind)
"""


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """Where the code of the last release is."""
    command = ["git", "-C", str(ROOT), "archive", LAST_RELEASE, "src"]
    try:
        found = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the repository does not have commit {LAST_RELEASE} (a shallow clone?)")
    directory = tmp_path_factory.mktemp("last")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return str(directory / "src")


def running(source):
    return os.environ | {"PYTHONPATH": source}


class Clients:
    """Two clients of a log, each of another release, and a producer of a topic."""

    def __init__(self, cluster, sources):
        where = cluster.servers, "g"
        self.of_log = [LogClient(name, where, running(source)) for name, source in sources.items()]
        self.of_topic = KafkaClient("k", {"bootstrap.servers": cluster.bootstrap_servers})
        self._all = [*self.of_log, self.of_topic]

    def go_on(self):
        """Wait until all have got further answers."""
        go_on(self._all)

    def end(self):
        """Let all end; return what each client of the log knows."""
        self.of_topic.end()
        return {one.name: one.end() for one in self.of_log}

    def kill(self):
        for one in self._all:
            one.kill()


@contextmanager
def cluster_of(directory, source, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", source)
    made = [sys.executable, "-P", "-c", CREATE, str(directory)]
    subprocess.run(made, env=running(source), check=True, timeout=STEP_S)
    cluster = LocalCluster.open(directory)
    for config in cluster.directory.glob("n*.toml"):
        before, name, own = config.read_text().partition('group = "__cluster"')
        for key in ("snapshotThreshold", "digestEntries"):
            own, count = re.subn(rf"{key} = \d+", f"{key} = {OFTEN}", own, count=1)
            assert count == 1
        config.write_text(before + name + own)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def run_by(cluster, node_id, source, monkeypatch, clients):
    """Restart a node with the code of a release, as an operator does; the load goes on."""
    monkeypatch.setenv("PYTHONPATH", source)
    cluster.restart(node_id)
    expected = RELEASE if source == OWN else ""
    with SyncClient(cluster.servers, "g") as client:
        found = {status.node_id: status for status in client.status()}
    assert found[node_id].release == expected
    clients.go_on()
    return found


def metrics_of(cluster, node_id):
    """Return the families of a node's metrics, by name."""
    url = f"http://{cluster.admin_address(node_id)}/metrics"
    with urllib.request.urlopen(url, timeout=STEP_S) as page:
        return {one.name: one for one in text_string_to_metric_families(page.read().decode())}


def releases_of_peers(cluster, node_id):
    """Return what a node says its peers run, and the version that it speaks with each."""
    links = metrics_of(cluster, node_id)["quorumlog_peer_link_info"]
    labels = [sample.labels for sample in links.samples]
    return {has["remote_id"]: (has["release"], has["wire_version"]) for has in labels}


def await_peers(cluster, node_id, expected):
    """Wait until a node says that of its peers: it may connect to one a second after its start."""
    deadline = time.monotonic() + STEP_S
    while (found := releases_of_peers(cluster, node_id)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_nodes_are_upgraded_one_by_one_under_load(tmp_path, last, monkeypatch):
    with cluster_of(tmp_path / "cluster", last, monkeypatch) as cluster:
        clients = Clients(cluster, {"old": last, "new": OWN})
        try:
            clients.go_on()  # both clients, at three nodes of the last release
            run_by(cluster, "n0", OWN, monkeypatch, clients)
            run_by(cluster, "n1", OWN, monkeypatch, clients)
            await_peers(cluster, "n0", {"n1": (RELEASE, "1"), "n2": ("", "1")})
            check_security_waits(cluster)
            run_by(cluster, "n2", OWN, monkeypatch, clients)
            run_by(cluster, "n1", last, monkeypatch, clients)  # somebody has second thoughts
            found = run_by(cluster, "n1", OWN, monkeypatch, clients)
            assert {status.release for status in found.values()} == {RELEASE}
            check_states(cluster)
            with SyncClient(cluster.servers) as client:
                client.security.add_user("alice", "a password of hers")
                assert [user.name for user in client.security.users()] == ["alice"]
            reports = clients.end()
        finally:
            clients.kill()
        check_log(cluster, reports, 6 * STEP)
        kafka = {"bootstrap.servers": cluster.bootstrap_servers}
        check_topic(kafka, [clients.of_topic])
        check_replicas(cluster)


def check_security_waits(cluster):
    """No user is made while n2 would not know it."""
    with SyncClient(cluster.address("n0")) as client:
        with pytest.raises(RequestError) as refused:
            client.security.add_user("alice", "a password of hers")
        assert refused.value.code is ResponseCode.UNSUPPORTED_VERSION, refused.value
        assert client.security.users() == []


def check_states(cluster):
    """Both releases agreed on the state of `__cluster`, and load each other's snapshots of it."""
    for node_id in cluster.node_ids:
        found = metrics_of(cluster, node_id)
        values = {
            name: sum(
                sample.value
                for sample in found[name].samples
                if sample.labels["group"] == "__cluster" and not sample.name.endswith("_created")
            )
            for name in ("quorumlog_machine_rebuilds", "quorumlog_snapshot_last_index")
        }
        assert values["quorumlog_machine_rebuilds"] == 0
        assert values["quorumlog_snapshot_last_index"] >= OFTEN
        log = (cluster.directory / f"{node_id}.log").read_text()
        assert "states differ" not in log
        assert "another state than was saved" not in log


def test_the_last_release_reads_every_message_of_this_one(last):
    """Each with a value in every field, also in those that the last release does not know."""
    known = read_golden().kinds
    messages = {
        kind: msgspec.msgpack.encode(sample_of(message))
        for message, kind in KIND_OF_MESSAGE.items()
        if kind in known
    }
    command = [sys.executable, "-P", "-c", READ_BY_LAST]
    found = subprocess.run(
        command,
        input=msgspec.json.encode(messages),
        capture_output=True,
        env=running(last),
        check=False,
    )
    assert found.returncode == 0, found.stderr.decode()
    assert len(found.stdout.split()) == len(messages) == len(known)
