"""What `user`, `acl` and `quota` share: the client that they ask with, and names of users."""

from pathlib import Path

import typer

from quorumlog.auth.principals import USER
from quorumlog.cli.target import find_servers
from quorumlog.client import SyncClient
from quorumlog.model.config import CLUSTER_GROUP


def cluster_client(
    directory: Path | None, servers: str | None, context: str | None, timeout_s: float
) -> SyncClient:
    """Return a client for the cluster that is named: any of its nodes answers.

    Raises what `find_servers` raises.
    """
    found = find_servers(directory, servers, context)
    return SyncClient(found, CLUSTER_GROUP, timeout_ms=max(1, round(timeout_s * 1000)))


def without_prefix(user: str | None) -> str | None:
    """Return the name of a user as it was given, unless it is a principal.

    Kafka's tools are given `User:alice`. As a name, it would be that of another user, whose rights
    help nobody. Raises `typer.BadParameter`.
    """
    if user is not None and user.startswith(USER):
        raise typer.BadParameter(f"give the name alone, {user.removeprefix(USER)!r}: not {user!r}")
    return user
