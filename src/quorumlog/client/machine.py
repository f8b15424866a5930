"""What a client asks of a group's state machine: commands, which change it, and questions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.values import Executed, Queried
from quorumlog.model.block import Buffer, encode_block
from quorumlog.model.errors import Outcome, RemoteProtocolError, UnsupportedError
from quorumlog.model.machine_message import QueryRequest, QueryResponse
from quorumlog.model.message import (
    AppendRequest,
    AppendResponse,
)

if TYPE_CHECKING:
    from quorumlog.client.client import Client


class MachineCalls:
    """Of a client; get it as `client.machine`."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def execute(self, command: Buffer, *, timeout_ms: int | None = None) -> Executed:
        """Append a command; return what the state machine made of it, once a majority has it.

        Raises `RequestError` as `append` does, and `UnsupportedError` if the group has no machine.
        """
        (executed,) = await self.execute_batch([command], timeout_ms=timeout_ms)
        return executed

    async def execute_batch(
        self, commands: Sequence[Buffer], *, timeout_ms: int | None = None
    ) -> list[Executed]:
        """Append several commands, all or none; return what became of each."""
        client = self._client
        client.checked_sizes(commands)
        block = encode_block(commands)
        request = AppendRequest(group=client.group, count=len(commands), wants_results=True)

        async def ask(connection: ServerConnection) -> tuple[AppendResponse, list[bytes]]:
            answer = await connection.request(request, [block])
            response = client.expect(connection, answer, AppendResponse)
            return response, _results(answer, len(commands), client.group)

        response, results = await client.retrying(
            client.view.leader, ask, timeout_ms, repeat_unknown=client.retry_unknown
        )
        first = response.first_index
        return [
            Executed(first + number, response.term, result) for number, result in enumerate(results)
        ]

    async def query(
        self,
        question: Buffer,
        *,
        linearizable: bool = True,
        after_index: int = -1,
        wait_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> Queried:
        """Ask the state machine, without changing it.

        A linearizable answer sees everything acknowledged before. With `linearizable=False` any
        replica answers from what it has applied, once that reaches `after_index` or `wait_ms` are
        over; the applied index that comes along says how fresh it is. Raises `RequestError`.
        """
        client = self._client

        async def ask(connection: ServerConnection) -> Queried:
            request = QueryRequest(
                group=client.group,
                linearizable=linearizable,
                after_index=after_index,
                wait_ms=wait_ms,
            )
            answer = await connection.request(request, [question])
            response = client.expect(connection, answer, QueryResponse)
            return Queried(response.applied_index, bytes(answer.attachment))

        locate = client.view.leader if linearizable else client.any_server
        limit_ms = client.timeout_ms if timeout_ms is None else timeout_ms
        return await client.retrying(locate, ask, limit_ms + wait_ms, repeat_unknown=True)


def _results(answer: Answer, count: int, group: str) -> list[bytes]:
    if not len(answer.attachment):
        error = UnsupportedError(
            f"group {group} has no state machine: the commands were appended, but nothing executes "
            "them"
        )
        error.outcome = Outcome.HAPPENED
        raise error
    try:
        results = msgspec.msgpack.decode(answer.attachment, type=list[bytes])
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the results of {count} commands are malformed") from error
    if len(results) != count:
        raise RemoteProtocolError(f"{len(results)} results came for {count} commands")
    return results
