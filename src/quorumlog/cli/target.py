"""Which cluster and which group a command is about."""

import getpass
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.client import Context, SyncClient
from quorumlog.client.contexts import Access, OpenContext, chosen_access
from quorumlog.local import LocalCluster, LocalClusterError
from quorumlog.model.config import CLUSTER_GROUP, PARTITION_GROUP
from quorumlog.model.errors import UnknownGroupError

_USUAL_GROUP: Final = "default"


@dataclass(frozen=True, slots=True)
class Target:
    """A group, and how the cluster is reached that has it. Time-out in milliseconds.

    `access` says the same as `cluster` without secrets, for other processes.
    """

    cluster: OpenContext
    access: Access
    group: str
    timeout_ms: int

    @property
    def where(self) -> str | Access:
        """How Spark's jobs reach the cluster."""
        return for_jobs(self.access, self.cluster.servers)

    def client(self) -> SyncClient:
        """Return a client for the group."""
        return SyncClient(self.cluster, self.group, timeout_ms=self.timeout_ms)


def find_target(
    directory: Path | None,
    servers: str | None,
    group: str | None,
    timeout_s: float,
    context: str | None = None,
) -> Target:
    """Return the target that `--context`, `--dir` or `--servers`, and `--group`, name.

    Raises `typer.BadParameter` when they name none or not a single one, `LocalClusterError` when no
    node of the local cluster runs, `RequestError` when no server answers.
    """
    access = find_access(directory, servers, context)
    found, timeout_ms = opened(access), max(1, round(timeout_s * 1000))
    if group is None and directory is not None:
        own = LocalCluster.open(directory).hosted_groups()
        group = only_group(own, None, () if own else _groups_at(found, timeout_ms))
    elif group is None:
        names = _groups_at(found, timeout_ms)
        if not _own(names):
            _check_sees(found, timeout_ms)
        group = only_group(_own(names), None, names)
    return Target(found, access, group, timeout_ms)


def find_servers(
    directory: Path | None, servers: str | None, context: str | None = None
) -> OpenContext:
    """Return the cluster that `--context`, `--dir` or `--servers` names, for a client.

    Raises what `find_access` and `opened` raise.
    """
    return opened(find_access(directory, servers, context))


def find_access(
    directory: Path | None,
    servers: str | None,
    context: str | None,
    addresses: str = "--servers",
) -> Access:
    """Return what `--context`, `--dir` or the option of `addresses` names.

    Without any of them the environment says it, or the default context. Raises
    `typer.BadParameter` if it is more than one or nothing says it, `ConfigError` for a file of
    contexts that cannot be used, `LocalClusterError` when no node of the local cluster runs.
    """
    if [directory, servers, context].count(None) < 2:
        raise typer.BadParameter(f"give one of --context, --dir and {addresses}")
    if directory is not None:
        cluster = running_cluster(directory)
        return Access(given=cluster.context)
    if servers is not None:
        is_kafka = addresses != "--servers"
        return Access(given=Context(kafka=servers) if is_kafka else Context(servers=servers))
    found = chosen_access(context or "", wants="servers" if addresses == "--servers" else "kafka")
    if found is None:
        raise typer.BadParameter(
            f"give --dir DIR or {addresses} HOST:PORT,..., or --context NAME "
            "('quorumlog context use NAME' makes one the default)"
        )
    return found


def for_jobs(access: Access, addresses: str) -> str | Access:
    """Return how Spark's jobs reach a cluster: addresses, if nothing else was said."""
    return access if access.context or access.given.is_secure else addresses


def opened(access: Access) -> OpenContext:
    """Return what is named, with its secrets; a password that is in no file is asked for.

    Raises `ConfigError`, or `CommandError` if nobody can be asked.
    """
    return access.found().open(ask=_ask)


def _ask(question: str) -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(
            f"{question.rstrip(': ')} is in no file, and there is no terminal to ask for it: give "
            "the context passwordFile or passwordEnv"
        )
    return getpass.getpass(question)


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


def _groups_at(servers: OpenContext, timeout_ms: int) -> list[str]:
    """Return the groups of the first of these nodes that answers."""
    with SyncClient(servers, timeout_ms=timeout_ms) as client:
        return sorted(group.group for group in client.metadata().groups)


def _check_sees(servers: OpenContext, timeout_ms: int) -> None:
    """Raise `NotAuthorizedError` if groups may be there that are hidden from who asks.

    A group that may not be seen is refused whether it exists or not.
    """
    with SyncClient(servers, timeout_ms=timeout_ms) as client, suppress(UnknownGroupError):
        client.metadata(group=_USUAL_GROUP)


def _own(names: Sequence[str]) -> Sequence[str]:
    """Return these groups without those that brokers keep topics in."""
    if CLUSTER_GROUP not in names:
        return names
    return [name for name in names if name != CLUSTER_GROUP and not PARTITION_GROUP.fullmatch(name)]
