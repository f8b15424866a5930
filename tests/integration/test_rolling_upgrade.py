"""Nodes of the last release are replaced by this one's under load, one by one, back and forth."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

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
LOAD = ROOT / "tests" / "rolling_load.py"
STEP = 10
"""Entries of each client, and records, that are acknowledged in each step, at least."""
STEP_S = 60.0
OFTEN = 20
"""Entries of `__cluster` after which it saves a snapshot, and its members compare their states."""
SLOWEST_S = 10.0
"""The time-out of a client's calls: no append takes longer."""
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
        self._processes = {
            name: subprocess.Popen(
                [sys.executable, "-P", str(LOAD), name, cluster.servers, "g"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=running(source),
            )
            for name, source in sources.items()
        }
        self._lines = {name: [] for name in sources}
        self._threads = [
            threading.Thread(target=self._listen, args=(name,), daemon=True) for name in sources
        ]
        self._is_over = threading.Event()
        self.records = {}
        self.refused = []
        options = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer(options)
        self._threads.append(threading.Thread(target=self._produce, daemon=True))
        self._commits = 0
        options |= {"group.id": "load", "enable.auto.commit": False}
        del options["enable.idempotence"]
        self._consumer = Consumer(options | {"on_commit": self._committed})
        self._threads.append(threading.Thread(target=self._commit, daemon=True))
        for thread in self._threads:
            thread.start()

    def _listen(self, name):
        for line in self._processes[name].stdout:
            self._lines[name].append(line)

    def _produce(self):
        number = 0
        while not self._is_over.wait(0.05):
            self._producer.produce("t", b"%d" % number, partition=number % 2, callback=self._done)
            self._producer.poll(0)
            number += 1
        self._producer.flush(STEP_S)

    def _done(self, error, message):
        if error is not None:
            self.refused.append(str(error))
        else:
            self.records[int(message.value())] = message.partition(), message.offset()

    def _commit(self):
        """Give `__cluster` commands all the time."""
        while not self._is_over.wait(0.05):
            self._consumer.commit(offsets=[TopicPartition("t", 0, self._commits)])
            self._consumer.poll(0)
        self._consumer.close()

    def _committed(self, error, partitions):
        self._commits += error is None  # a commit is not sent again while its coordinator moves

    def progress(self):
        return {"t": len(self.records), "commits": self._commits} | {
            name: len(has) for name, has in self._lines.items()
        }

    def go_on(self):
        """Wait until all have got further answers."""
        begun, deadline = self.progress(), time.monotonic() + STEP_S
        while any(now < begun[name] + STEP for name, now in self.progress().items()):
            assert time.monotonic() < deadline, f"from {begun} to {self.progress()} only"
            time.sleep(0.02)

    def end(self):
        """Let all end; return what each client of the log knows."""
        self._is_over.set()
        for process in self._processes.values():
            process.stdin.close()
        for thread in self._threads:
            thread.join(2 * STEP_S)
        return {name: json.loads(lines[-1]) for name, lines in self._lines.items()}

    def kill(self):
        self._is_over.set()
        for process in self._processes.values():
            process.kill()
            process.wait()


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


def test_nodes_are_upgraded_one_by_one_under_load(tmp_path, last, monkeypatch):
    with cluster_of(tmp_path / "cluster", last, monkeypatch) as cluster:
        clients = Clients(cluster, {"old": last, "new": OWN})
        try:
            clients.go_on()  # both clients, at three nodes of the last release
            run_by(cluster, "n0", OWN, monkeypatch, clients)
            run_by(cluster, "n1", OWN, monkeypatch, clients)
            assert releases_of_peers(cluster, "n0") == {"n1": (RELEASE, "1"), "n2": ("", "1")}
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
        check_log(cluster, reports)
        check_topic(cluster, clients)
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


def check_log(cluster, reports):
    with SyncClient(cluster.servers, "g") as client:
        entries = {entry.index: entry.body.decode() for entry in client.read(follow=False)}
    assert max(Counter(entries.values()).values()) == 1, "an entry was appended twice"
    for name, report in reports.items():
        numbers = {int(number): index for number, index in report["indexes"].items()}
        assert len(numbers) >= 6 * STEP
        assert sorted(numbers) == list(range(len(numbers))), "all were acknowledged"
        assert all(entries.get(at) == f"{name} {number}" for number, at in numbers.items())
        assert report["read"] == [list(one) for one in sorted(numbers.items())]
        assert report["slowest_s"] < SLOWEST_S


def check_topic(cluster, clients):
    assert clients.refused == []
    assert sorted(clients.records) == list(range(len(clients.records)))
    options = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "check"}
    consumer = Consumer(options | {"enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", number, 0) for number in (0, 1)])
        read, deadline = [], time.monotonic() + STEP_S
        while len(read) < len(clients.records) and time.monotonic() < deadline:
            read += consumer.consume(1_000, timeout=0.2)
        assert consumer.poll(0.2) is None
    finally:
        consumer.close()
    found = [(int(one.value()), (one.partition(), one.offset())) for one in read]
    assert sorted(found) == sorted(clients.records.items())


def check_replicas(cluster):
    """All replicas of all groups come to be the same."""
    deadline = time.monotonic() + STEP_S
    for group in cluster.hosted_groups():
        with SyncClient(cluster.servers, group) as client:
            while True:
                found = client.status()
                ends = {(one.end_index, one.end_chain_crc, one.committed_index) for one in found}
                is_same = len(ends) == 1 and all(
                    one.committed_index == one.end_index for one in found
                )
                if is_same and all(one.code == ResponseCode.SUCCESS for one in found):
                    break
                assert time.monotonic() < deadline, f"{group}: {ends}"
                time.sleep(0.05)


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
