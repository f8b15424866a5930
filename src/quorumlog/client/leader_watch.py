"""Watching who leads a group: each request waits for the leader of a later term."""

import asyncio
from collections.abc import AsyncGenerator

from quorumlog.client.connection import ServerConnection
from quorumlog.client.requester import Requester
from quorumlog.client.results import LeaderChange
from quorumlog.model.errors import UnsupportedError
from quorumlog.model.messages.client import (
    GroupMetadata,
    MetadataResponse,
    WatchLeaderRequest,
)

WATCH_WAIT_MS = 5_000
"""How long a server waits for a leader of a later term; then another one is asked."""
POLL_S = 0.5
"""Pause between two requests to servers of earlier versions, which do not wait."""
ATTEMPTS = 3
"""A server that should answer by now is given this share of the client's time, then another one is
asked."""


async def watch_leader(requester: Requester) -> AsyncGenerator[LeaderChange, None]:
    """Yield the leader of each term that has one; see `Client.watch_leader`."""
    term = -1
    while True:
        found = await _ask(requester, term)
        if found is not None and found.leader_id is not None and found.term > term:
            term = found.term
            yield LeaderChange(term, found.leader_id, found.peers.get(found.leader_id, ""))


async def _ask(requester: Requester, term: int) -> GroupMetadata | None:
    """Ask a server chosen by chance, which waits for the leader of a term above this one."""
    request = WatchLeaderRequest(group=requester.group, above_term=term, wait_ms=WATCH_WAIT_MS)
    limit_ms = requester.timeout_ms

    async def ask(connection: ServerConnection) -> MetadataResponse:
        answer = await requester.answer_within(
            connection, request, (), WATCH_WAIT_MS + limit_ms / ATTEMPTS
        )
        try:
            return requester.expect(connection, answer, MetadataResponse)
        except UnsupportedError:
            await asyncio.sleep(POLL_S)
            return await requester.metadata.ask(connection.address, requester.group)

    response = await requester.retrying(
        requester.any_server, ask, limit_ms + WATCH_WAIT_MS, repeat_unknown=True
    )
    found = next((one for one in response.groups if one.group == requester.group), None)
    if found is not None:
        requester.metadata.learn_members(found)
    return found
