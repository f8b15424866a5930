"""The client that `user`, `acl` and `quota` ask with: any node of a cluster answers it."""

from pathlib import Path

from quorumlog.cli.target import find_servers
from quorumlog.client import SyncClient
from quorumlog.model.config import CLUSTER_GROUP


def cluster_client(directory: Path | None, servers: str | None, timeout_s: float) -> SyncClient:
    """Return a client for the cluster that `--dir` or `--servers` names (see `find_servers`)."""
    found = find_servers(directory, servers)
    return SyncClient(found, CLUSTER_GROUP, timeout_ms=max(1, round(timeout_s * 1000)))
