"""Which cluster and which group a command is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster, LocalClusterError
from quorumlog.model.config import CLUSTER_GROUP, PARTITION_GROUP


@dataclass(frozen=True, slots=True)
class Target:
    """A group, and the addresses of nodes that host it. Time-out in milliseconds."""

    servers: str
    group: str
    timeout_ms: int

    def client(self) -> SyncClient:
        """Return a client for the group."""
        return SyncClient(self.servers, self.group, timeout_ms=self.timeout_ms)


def find_target(
    directory: Path | None, servers: str | None, group: str | None, timeout_s: float
) -> Target:
    """Return the target that `--dir` or `--servers`, and `--group`, name.

    Raises `typer.BadParameter` when they name none or not a single one, `LocalClusterError` when no
    node of the local cluster runs, `RequestError` when no server answers.
    """
    found, timeout_ms = find_servers(directory, servers), max(1, round(timeout_s * 1000))
    if group is None and directory is not None:
        own = LocalCluster.open(directory).hosted_groups()
        group = only_group(own, None, () if own else _groups_at(found, timeout_ms))
    elif group is None:
        names = _groups_at(found, timeout_ms)
        group = only_group(_own(names), None, names)
    return Target(found, group, timeout_ms)


def find_servers(directory: Path | None, servers: str | None) -> str:
    """Return the addresses of the nodes that `--dir` or `--servers` names.

    Raises `typer.BadParameter` unless it is one of the two, `LocalClusterError` when no node of the
    local cluster runs.
    """
    if (directory is None) == (servers is None):
        raise typer.BadParameter("give either --dir DIR or --servers HOST:PORT,...")
    if directory is None:
        return str(servers)
    return running_cluster(directory).servers


def running_cluster(directory: Path) -> LocalCluster:
    """Return the local cluster in a directory. Raises `LocalClusterError` if no node of it runs."""
    cluster = LocalCluster.open(directory)
    if not cluster.running():
        raise LocalClusterError(
            f"no node of the cluster in {directory} runs; "
            f"'quorumlog cluster up --dir {directory}' starts them"
        )
    return cluster


def only_group(groups: Sequence[str], wanted: str | None, of_brokers: Sequence[str] = ()) -> str:
    """Return the wanted group, or the single one there is.

    Raises `typer.BadParameter` when there are several and none is wanted, or only those in which
    brokers keep topics: `of_brokers`, if these are known.
    """
    if wanted is not None:
        return wanted
    if not groups:
        named = f" ({', '.join(of_brokers)})" if of_brokers else ""
        raise typer.BadParameter(
            f"the cluster has no groups but those of its brokers{named}; choose one of these with "
            "--group, or make another one with quorumlog group create"
        )
    if len(groups) != 1:
        raise typer.BadParameter(
            f"the cluster has the groups {', '.join(groups)}; choose one with --group"
        )
    return groups[0]


def _groups_at(servers: str, timeout_ms: int) -> list[str]:
    """Return the groups of the first of these nodes that answers."""
    with SyncClient(servers, timeout_ms=timeout_ms) as client:
        return sorted(group.group for group in client.metadata().groups)


def _own(names: Sequence[str]) -> Sequence[str]:
    """Return these groups without those that brokers keep topics in."""
    if CLUSTER_GROUP not in names:
        return names
    return [name for name in names if name != CLUSTER_GROUP and not PARTITION_GROUP.fullmatch(name)]
