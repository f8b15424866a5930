"""Spark's tasks carry what the driver has read, where executors have no files of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from integration.command_line import command
from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("carried_credentials.py")
PASSWORD = "canary-7f3a-of-the-driver"


@pytest.fixture
def cluster(tmp_path):
    directory = tmp_path / "nodes"
    status, _, err = command(
        "cluster", "up", "--secure", "--dir", directory, "--nodes", 1, "--kafka-port", 0
    )
    assert (status, err) == (0, "")
    made = LocalCluster.open(directory)
    yield made
    made.down()


def test_executors_without_a_context_read_and_write_and_nothing_shows_a_secret(cluster, tmp_path):
    with SyncClient(cluster.context, "default") as client:
        client.security.add_user("alice", PASSWORD)
    where = ("--dir", cluster.directory)
    everything = [
        part
        for kind in ("topic", "group", "consumer-group", "transactional-id")
        for part in (f"--{kind}", "*")
    ]
    acl = ("acl", "add", "--user", "alice", "--operation", "all", "--cluster", *everything)
    assert command(*acl, *where)[0] == 0
    assert command("topic", "create", "carried", *where)[0] == 0
    password = tmp_path / "alice.password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    keys = msgspec.to_builtins(cluster.context)
    key = Path(keys["key"]).read_text()
    keys |= {"user": "alice", "passwordFile": str(password)}
    contexts, events = tmp_path / "contexts.toml", tmp_path / "events"
    contexts.write_bytes(msgspec.toml.encode({"contexts": {"prod": keys}}))
    contexts.chmod(0o600)
    events.mkdir()
    done = subprocess.run(
        [sys.executable, PROGRAM, events],
        env={**os.environ, "QUORUMLOG_CONTEXTS": contexts.name, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["group"] == list(range(100))
    assert (found["topic"], found["stream"]) == (100, 100)
    assert "there is no context 'prod'" in found["here"]
    shown = found["plan"] + "".join(
        path.read_text() for path in events.rglob("*") if path.is_file()
    )
    assert "credentials" in shown
    for secret in (PASSWORD, *key.splitlines()[1:-1]):
        assert secret not in shown
