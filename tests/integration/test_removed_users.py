"""What a removed user's password was checked by is in no file of any node any more."""

import base64
import json
import time
from pathlib import Path

import pytest

from kafka_nodes import files_with, kafka_nodes
from quorumlog.cli.main import main
from quorumlog.client import SyncClient

SECONDS = 60


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_removed_user_had_is_in_no_file_a_moment_later(tmp_path, count, capsys):
    with (
        kafka_nodes(tmp_path, count) as cluster,
        SyncClient(cluster.addresses) as client,
        SyncClient(cluster.addresses, "__cluster") as of_cluster,
    ):
        client.security.add_user("alice", "first", iterations=4_096)
        cluster.settle()
        kept = cluster.nodes[0].broker.security.users["alice"]
        secrets = [key for one in kept.values() for key in (one.stored_key, one.server_key)]
        assert files_with(cluster, *secrets)
        store = Path(cluster.nodes[0].node.config.store_base_dir) / "__cluster"
        assert main(["store", "dump", str(store), "--body", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        shown = [base64.b64decode(line["body_base64"]) for line in lines]
        assert any(b"alice" in one for one in shown)
        assert not any(secret in one for one in shown for secret in secrets)
        of_cluster.admin.save_snapshot()
        client.security.remove_user("alice")
        ends_at = time.monotonic() + SECONDS
        while (left := files_with(cluster, *secrets)) and time.monotonic() < ends_at:
            client.metadata()
        assert left == []
        client.security.add_user("bob", "second", iterations=4_096)
