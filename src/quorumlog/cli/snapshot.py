"""`quorumlog snapshot`: have a group's state machine saved now."""

import asyncio

from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Group,
    Servers,
    Timeout,
)
from quorumlog.cli.output import print_json, print_line
from quorumlog.cli.target import Target, find_target
from quorumlog.client import Client


def snapshot_command(
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Save a snapshot on the leader; print the last index that it includes."""
    index = asyncio.run(_save(find_target(directory, servers, group, timeout, context)))
    if as_json:
        print_json({"last_included_index": index})
    else:
        print_line(f"snapshot up to index {index}")


async def _save(target: Target) -> int:
    async with Client(target.cluster, target.group, timeout_ms=target.timeout_ms) as client:
        return await client.admin.save_snapshot()
