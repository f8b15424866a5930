"""Spark's tasks carry what the driver has read, where executors have no files of their own."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from client_programs import output_of

from integration.command_line import command
from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("carried_credentials.py")
SECONDS = 500
"""For a driver, executors and all their Python workers, which a busy machine starts slowly."""
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
    where = ("--dir", cluster.directory)
    everything = [
        part
        for kind in ("topic", "group", "consumer-group", "transactional-id")
        for part in (f"--{kind}", "*")
    ]
    admin = msgspec.to_builtins(cluster.context)
    for user in ("alice", "bob"):
        password, contexts = tmp_path / f"{user}.password", tmp_path / f"{user}.toml"
        password.write_text(PASSWORD)
        prod = {**admin, "user": user, "passwordFile": str(password)}
        contexts.write_bytes(msgspec.toml.encode({"contexts": {"prod": prod, "admin": admin}}))
        for path in (password, contexts):
            path.chmod(0o600)
        with SyncClient(cluster.context, "default") as client:
            client.security.add_user(user, PASSWORD)
        acl = ("acl", "add", "--user", user, "--operation", "all", "--cluster", *everything)
        assert command(*acl, *where)[0] == 0
    assert command("topic", "create", "carried", *where)[0] == 0
    key, events = Path(admin["key"]).read_text(), tmp_path / "events"
    (tmp_path / "alice.toml").rename(tmp_path / "contexts.toml")
    (tmp_path / "bob.toml").rename(tmp_path / "later.toml")
    events.mkdir()
    printed = output_of(
        PROGRAM,
        events,
        seconds=SECONDS,
        env={**os.environ, "QUORUMLOG_CONTEXTS": "contexts.toml", "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
    )
    found = json.loads(printed)
    assert found["group"] == list(range(300))
    assert (found["topic"], found["stream"]) == (400, 300)
    assert "there is no context 'prod'" in found["here"]
    shown = found["plan"] + "".join(
        path.read_text() for path in events.rglob("*") if path.is_file()
    )
    assert "credentials" in shown
    for secret in (PASSWORD, *key.splitlines()[1:-1]):
        assert secret not in shown
