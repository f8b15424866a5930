"""The calls of a group's state machine: commands, which change it, and queries.

Commands travel in sessions (`command_sessions`), so a client may send them again until it learns
what became of them: they are executed once.
"""

import asyncio
import copy
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from quorumlog.client.arguments import INDEX_OR_NONE, MILLISECONDS, flag, takes
from quorumlog.client.buffers import as_bodies, as_bytes, batch_sizes
from quorumlog.client.command_sessions import CommandSession, CommandSessions
from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.requester import Requester
from quorumlog.client.results import Executed, Queried
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.errors import (
    LeaderPendingFullError,
    Outcome,
    RemoteProtocolError,
    RequestError,
    UnexpectedArgumentError,
    UnknownProducerError,
    UnsupportedError,
)
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.model.messages.machine import QueryRequest, QueryResponse
from quorumlog.model.turn_batcher import TurnBatcher
from quorumlog.model.wording import counted
from quorumlog.sessions.entries import SESSION_ENTRY_SIZE, encode_session_block

COMMANDS_MAX = 1_024
"""At most this many commands of one turn of the loop share a block."""
ATTEMPTS = 3
"""A server that should answer by now is given this share of a question's time, then another one is
asked; only of questions that wait for something to happen: others may take long to answer."""
WAITING_MAX = 65_536
"""Commands of one client that are not answered yet; more are refused."""
_RESULTS: Final = msgspec.msgpack.Decoder(list[bytes])


@dataclass(slots=True)
class _Waiting:
    command: bytes
    future: "asyncio.Future[Executed]"


class MachineCalls:
    """The state machine of the group of a client; get it as `client.machine`."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester
        self._sessions = CommandSessions()
        self._given: TurnBatcher[float | None, _Waiting] = TurnBatcher(
            lambda flush: asyncio.get_running_loop().call_soon(flush),
            self._send_blocks,
            bytes_max=requester.limits.block_bytes_max,
            entries_max=COMMANDS_MAX,
            lead_bytes=SESSION_ENTRY_SIZE,
        )
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def execute(
        self, command: Buffer, *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Executed]:
        """Append a command; return the state machine's result once a majority has it.

        It is sent again until its result is known, and executed once. Commands of one turn of the
        loop travel together: all of them are appended, or none. Raises `RequestError` as `append`
        does, `UnsupportedError` if the group has no machine, and `ResultsForgottenError` (it was
        executed) when the answer comes too late.
        """
        return self._execute(as_bytes("command", command), timeout_ms)

    async def _execute(self, command: bytes, timeout_ms: float | None) -> Executed:
        self._requester.metadata.check_process()
        self._requester.limit_ms(timeout_ms)
        self._check([command])
        if self._waiting >= WAITING_MAX:
            raise LeaderPendingFullError(f"{WAITING_MAX} commands are not answered yet")
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._waiting += 1
        waiting.future.add_done_callback(self._answered)
        self._given.add(timeout_ms, waiting, HEADER_SIZE + len(command))
        return await waiting.future

    def _answered(self, _: "asyncio.Future[Executed]") -> None:
        self._waiting -= 1

    def _check(self, commands: Sequence[bytes]) -> None:
        """Raise if commands cannot be sent together: a session entry goes before them."""
        sizes = batch_sizes(commands, self._requester.limits)
        limits = self._requester.limits
        total = SESSION_ENTRY_SIZE + sum(sizes) + HEADER_SIZE * len(sizes)
        if total > limits.block_bytes_max or len(sizes) >= limits.block_entries_max:
            raise UnexpectedArgumentError(
                f"{counted(len(sizes), 'command')}, with their session {total} bytes, are above "
                f"{limits.block_entries_max - 1} or {limits.block_bytes_max} bytes"
            )

    def _send_blocks(self, blocks: list[tuple[float | None, list[_Waiting]]]) -> None:
        for timeout_ms, waiting in blocks:
            task = asyncio.get_running_loop().create_task(self._send(waiting, timeout_ms))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, waiting: "list[_Waiting]", timeout_ms: float | None) -> None:
        try:
            commands = [item.command for item in waiting]
            found = await self.execute_batch(commands, timeout_ms=timeout_ms)
        except BaseException as error:
            if isinstance(error, UnexpectedArgumentError) and len(waiting) > 1:
                for item in waiting:  # one of them is at fault: the others are not
                    await self._send([item], timeout_ms)
                return
            for item in waiting:
                if not item.future.done():
                    item.future.set_exception(_own(error))
            if not isinstance(error, Exception):
                raise
            return
        for item, executed in zip(waiting, found, strict=True):
            if not item.future.done():
                item.future.set_result(executed)

    def execute_batch(
        self, commands: Iterable[Buffer], *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, list[Executed]]:
        """Append several commands, all or none; return the result of each."""
        return self._execute_batch(as_bodies("command", commands, "execute"), timeout_ms)

    async def _execute_batch(
        self, commands: Sequence[bytes], timeout_ms: float | None
    ) -> list[Executed]:
        self._requester.metadata.check_process()
        limit_ms = self._requester.limit_ms(timeout_ms)
        self._check(commands)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1_000
        while True:
            left_ms = max(0.0, (deadline - loop.time()) * 1_000)
            try:
                async with self._sessions.one(left_ms) as session:
                    left_ms = max(0.0, (deadline - loop.time()) * 1_000)
                    return await self._execute_in(session, commands, int(left_ms))
            except UnknownProducerError as error:
                # the group has forgotten the session, as many others came: use a new one
                if error.outcome is not Outcome.DID_NOT_HAPPEN:
                    raise

    async def _execute_in(
        self, session: CommandSession, commands: Sequence[bytes], timeout_ms: int
    ) -> list[Executed]:
        requester, count = self._requester, len(commands)
        block = encode_session_block(
            session.producer_id, session.next_sequence, commands, keeps_results=True
        )
        request = AppendRequest(group=requester.group, count=count + 1, wants_results=True)

        async def ask(connection: ServerConnection) -> tuple[AppendResponse, list[bytes]]:
            answer = await connection.request(request, [block])
            response = requester.expect(connection, answer, AppendResponse)
            return response, _results(answer, count, requester.group)

        response, results = await requester.retrying(
            requester.metadata.leader, ask, timeout_ms, repeat_unknown=True
        )
        session.next_sequence += count
        first = response.first_index + 1
        return [
            Executed(first + number, response.term, result) for number, result in enumerate(results)
        ]

    @takes(linearizable=flag, after_index=INDEX_OR_NONE, wait_ms=MILLISECONDS)
    def query(
        self,
        question: Buffer,
        *,
        linearizable: bool = True,
        after_index: int = -1,
        wait_ms: int = 0,
        timeout_ms: float | None = None,
    ) -> Coroutine[Any, Any, Queried]:
        """Ask the state machine, without changing it.

        A linearizable answer sees everything acknowledged before. With `linearizable=False` any
        replica answers from the entries that it has applied, once these reach `after_index` or
        `wait_ms` are over; the applied index in the answer says how fresh it is. Raises
        `RequestError`.
        """
        request = QueryRequest(
            group=self._requester.group,
            linearizable=linearizable,
            after_index=after_index,
            wait_ms=wait_ms,
        )
        return self._query(as_bytes("question", question), request, timeout_ms)

    async def _query(
        self, question: bytes, request: QueryRequest, timeout_ms: float | None
    ) -> Queried:
        requester = self._requester
        loop = asyncio.get_running_loop()
        limit_ms, started = requester.limit_ms(timeout_ms), loop.time()

        async def ask(connection: ServerConnection) -> Queried:
            while True:
                left_ms = max(0, request.wait_ms - int((loop.time() - started) * 1_000))
                if request.wait_ms <= 0:
                    answer = await connection.request(request, [question])
                else:
                    waiting = msgspec.structs.replace(request, wait_ms=left_ms)
                    answer = await requester.answer_within(
                        connection, waiting, [question], left_ms + limit_ms / ATTEMPTS
                    )
                response = requester.expect(connection, answer, QueryResponse)
                # a server waits for its fetchWaitMsMax at most
                if left_ms <= 0 or response.applied_index >= request.after_index:
                    return Queried(response.applied_index, bytes(answer.attachment))

        locate = requester.metadata.leader if request.linearizable else requester.any_server
        return await requester.retrying(
            locate, ask, limit_ms + request.wait_ms, repeat_unknown=True
        )


def _own(error: BaseException) -> BaseException:
    """Return a new error for each caller: one raised twice would show the traceback of both."""
    if not isinstance(error, RequestError):
        return error
    own = copy.copy(error)
    own.__cause__ = error
    return own


def _results(answer: Answer, count: int, group: str) -> list[bytes]:
    if not len(answer.attachment):
        error = UnsupportedError(
            f"group {group} has no state machine: the commands were appended, but nothing executes "
            "them"
        )
        error.outcome = Outcome.HAPPENED
        raise error
    try:
        results = _RESULTS.decode(answer.attachment)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(
            f"the results of {counted(count, 'command')} are malformed"
        ) from error
    if len(results) != count:
        raise RemoteProtocolError(
            f"{counted(len(results), 'result')} came for {counted(count, 'command')}"
        )
    return results
