"""Sends requests to a group: finds a server, asks it, and repeats what may be repeated.

Everything that a client does goes through the `Requester` of that client: appends, reads, the
state machine, transactions and administration.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from quorumlog.client import leader_discovery, options
from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.metadata import Metadata
from quorumlog.client.retry import Backoff
from quorumlog.client.security import Security
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LoginError,
    NetworkError,
    NoLeaderError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Request, Response
from quorumlog.model.messages.client import MetadataResponse

THROTTLE_CHECK_S = 1.0
"""A client that has to wait looks again after this time: it may be told another one meanwhile."""
T = TypeVar("T")
R = TypeVar("R", bound=Response)

ATTEMPT_MIN_S = 0.1
"""With less time left, a refusal is raised: a further attempt would have an unknown outcome."""

CLOCK_S = 0.01
"""A time-out may come this much before its time: the event loop's clock is not finer."""


class Requester:
    """Asks the servers of one group, each call within a deadline."""

    def __init__(
        self,
        servers: list[str],
        group: str,
        *,
        timeout_ms: float,
        cluster: str,
        limits: Limits,
        security: Security | None = None,
    ) -> None:
        self.group = group
        self.timeout_ms = timeout_ms
        self.limits = limits
        self._generator = random.Random()  # noqa: S311  (spreads retries; nothing secret)
        self.metadata = Metadata(servers, group, cluster, limits, self._generator, security)
        self._cluster = cluster
        self._security = security

    def for_group(self, group: str) -> "Requester":
        """Return one for another group of the same servers, with the same options."""
        return Requester(
            self.metadata.addresses(),
            group,
            timeout_ms=self.timeout_ms,
            cluster=self._cluster,
            limits=self.limits,
            security=self._security,
        )

    def limit_ms(self, timeout_ms: float | None) -> float:
        """Return how many milliseconds a call may take; None: the client's `timeout_ms`.

        Raises `UnexpectedArgumentError` for a value that is no time.
        """
        if timeout_ms is None:
            return self.timeout_ms
        return options.milliseconds("timeout_ms", timeout_ms, kind=UnexpectedArgumentError)

    async def ask_leader(
        self,
        request: Request,
        kind: type[R],
        attachments: Sequence[Buffer] = (),
        *,
        timeout_ms: float | None = None,
        repeat_unknown: bool,
    ) -> R:
        """Send a request to the leader and return its answer (see `retrying`)."""

        async def ask(connection: ServerConnection) -> R:
            answer = await connection.request(request, attachments)
            return self.expect(connection, answer, kind)

        return await self.retrying(
            self.metadata.leader, ask, timeout_ms, repeat_unknown=repeat_unknown
        )

    async def retrying(
        self,
        locate: Callable[[], Awaitable[ServerConnection]],
        ask: Callable[[ServerConnection], Awaitable[T]],
        timeout_ms: float | None,
        *,
        repeat_unknown: bool,
    ) -> T:
        """Find a server and ask it, until that succeeds, cannot succeed, or the deadline passes.

        The attributes of each error decide whether another attempt is made. A request whose outcome
        is unknown is only sent again with `repeat_unknown`. If a server names a leader, that one is
        asked at once, unless the server that names it was itself named just before.
        """
        self.metadata.check_process()
        loop = asyncio.get_running_loop()
        limit_ms = self.limit_ms(timeout_ms)
        deadline = loop.time() + limit_ms / 1000
        attempt_s = min(ATTEMPT_MIN_S, limit_ms / 4_000)
        backoff = Backoff(self._generator)
        last: RequestError | None = None
        # an attempt of unknown outcome may have been executed: a later refusal does not exclude it
        doubt: RequestError | None = None
        was_sent_on = False
        while True:
            connection: ServerConnection | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    found = await locate()
                await _unthrottled(found, deadline)
                async with asyncio.timeout_at(deadline):
                    if loop.time() >= deadline:
                        raise _not_sent_in_time(self.group, limit_ms)
                    connection = found
                    return await ask(connection)
            except TimeoutError:
                late = self._out_of_time(last, limit_ms, deadline, connection)
                raise _downgrade_outcome(late, doubt) from None
            except RequestError as error:
                if connection is None:  # no node was found that the request could be sent to
                    error.outcome = Outcome.DID_NOT_HAPPEN
                last = error
                if error.refresh_leader and error.leader_id is None and connection is not None:
                    self.metadata.forget_leader(connection.address)
                unknown = error.outcome is Outcome.UNKNOWN
                if not error.retriable or (unknown and not repeat_unknown):
                    _downgrade_outcome(error, doubt)
                    raise
                if unknown and connection is not None:
                    doubt = error
                was_sent_on = not was_sent_on and _names_another(error, connection)
            pause = 0.0 if was_sent_on else backoff.next_pause_s()
            if loop.time() + pause + attempt_s > deadline:
                raise _downgrade_outcome(last, doubt)
            await asyncio.sleep(pause)

    def expect(self, connection: ServerConnection, answer: Answer, kind: type[R]) -> R:
        """Return the response if it is a success of this kind, else raise its error."""
        response = answer.response
        if response.code == ResponseCode.SUCCESS and isinstance(response, kind):
            return response
        error = error_for(response.code, response.text, response.leader_id)
        if error.refresh_leader:
            self.metadata.redirect(response.leader_id, away_from=connection.address)
        raise error

    async def describe(self, address: str | None, group: str) -> MetadataResponse:
        """Ask the server at an address, once, or any that answers, for its groups."""
        if address is not None:
            return await self.metadata.ask(address, group)

        async def ask(connection: ServerConnection) -> MetadataResponse:
            return await self.metadata.ask(connection.address, group)

        return await self.retrying(self.any_server, ask, None, repeat_unknown=True)

    async def answer_within(
        self,
        connection: ServerConnection,
        request: Request,
        attachments: Sequence[Buffer],
        limit_ms: float,
    ) -> Answer:
        """Return a server's answer. Raises `NetworkError` after limit_ms: another can be asked."""
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await connection.request(request, attachments)
        except TimeoutError:
            what = type(request).__name__
            raise NetworkError(
                f"{connection.address} did not answer a {what} within {limit_ms:.0f} ms"
            ) from None

    async def any_server(self, *, without: Collection[str] = ()) -> ServerConnection:
        """Return a connection to a server chosen by chance. Raises if none can be reached.

        `without`: addresses of servers that are of no use.
        """
        error: RequestError | None = None
        refused: LoginError | None = None
        for address in self.metadata.candidates():
            if address in without:
                continue
            try:
                # once one has refused a login, see `OTHERS_S`
                async with asyncio.timeout(leader_discovery.OTHERS_S if refused else None):
                    return await self.metadata.connection(address)
            except TimeoutError:
                error = refused
                break
            except RequestError as failed:
                if isinstance(failed, LoginError) and failed.is_everywhere:
                    if refused is not None:
                        raise  # others would say the same, each of them late
                    refused = failed
                # one that may answer later says more than a refusal
                error = failed if error is None or failed.retriable else error
        if refused is not None and not self.metadata.members:
            raise refused  # else the group was found before, and who knows the user is away
        raise error or ConfigError("no servers")

    def _out_of_time(
        self,
        last: RequestError | None,
        limit_ms: float,
        deadline: float,
        asked: ServerConnection | None,
    ) -> RequestError:
        """Return the error for a passed deadline: if a server was asked, the outcome is unknown."""
        self.metadata.forget_leader(asked.address if asked is not None else None)
        said = f"; before that: {last}" if last is not None else ""
        login = self.metadata.connections.unanswered_logins(deadline - CLOCK_S)
        if asked is None and login:
            error = DeadlineExceededError(
                f"{login} within {limit_ms:g} ms: a node that has refused some answers late{said}"
            )
            error.outcome = Outcome.DID_NOT_HAPPEN
            return error
        if asked is None:
            servers = ", ".join(self.metadata.addresses())
            return NoLeaderError(
                f"found no leader of {self.group} among {servers} within {limit_ms:g} ms{said}"
            )
        return DeadlineExceededError(f"no answer from {self.group} within {limit_ms:g} ms{said}")


async def _unthrottled(connection: ServerConnection, deadline: float) -> None:
    """Wait while the server has told this client to, but not beyond a time."""
    loop = asyncio.get_running_loop()
    while connection.is_open:
        pause = min(connection.throttled_until, deadline) - loop.time()
        if pause <= 0:
            return
        await asyncio.sleep(min(pause, THROTTLE_CHECK_S))


def _not_sent_in_time(group: str, limit_ms: float) -> RequestError:
    error = DeadlineExceededError(f"{limit_ms:g} ms are over; nothing was sent to {group}")
    error.outcome = Outcome.DID_NOT_HAPPEN
    return error


def _names_another(error: RequestError, asked: ServerConnection | None) -> bool:
    """Whether a server that does not lead says who does."""
    return (
        error.refresh_leader and asked is not None and error.leader_id not in (None, asked.node_id)
    )


def _downgrade_outcome(error: RequestError, doubt: RequestError | None) -> RequestError:
    """Make "did not happen" unknown if an earlier attempt may have been executed, and say why.

    `doubt` is what the last such attempt was answered.
    """
    if doubt is not None and error.outcome is Outcome.DID_NOT_HAPPEN:
        error.outcome = Outcome.UNKNOWN
        if str(doubt) not in str(error):
            error.args = (f"{error}; before that: {doubt}",)
    return error
