"""Appends of blocks that a group appends once, however often they are sent."""

from collections.abc import Sequence

from quorumlog.client.client import Client
from quorumlog.model.block import Buffer
from quorumlog.model.messages.client import AppendRequest, AppendResponse


async def append_session_block(
    client: Client, parts: Sequence[Buffer], count: int, *, timeout_ms: float | None = None
) -> AppendResponse:
    """Append a block of `count` entries, given as the bytes of its parts, and return the answer.

    Its first entry is one of a producer session or of a transaction, by which the group recognizes
    a repetition: the block is sent again after an unknown outcome, until the deadline. Raises
    `RequestError`.
    """
    requester = client._requester
    request = AppendRequest(group=client.group, count=count)
    return await requester.ask_leader(
        request, AppendResponse, parts, timeout_ms=timeout_ms, repeat_unknown=True
    )
