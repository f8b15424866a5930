"""A consumer of a log: reads it, with a position that is committed and shared by its group."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar
from uuid import uuid4

from quorumlog.client import options
from quorumlog.client.arguments import ISOLATION, MILLISECONDS, Check, takes, text
from quorumlog.client.arguments import start as start_of
from quorumlog.client.client import Client, seen_entries
from quorumlog.client.consumer_membership import Callbacks, Membership, Revoked, loop_of
from quorumlog.client.consumer_requests import ConsumerRequests, GroupOfLog, identity_of
from quorumlog.client.consumer_share import Share
from quorumlog.client.contexts import Servers
from quorumlog.client.loop_thread import closed_text
from quorumlog.client.reader import BlockReader
from quorumlog.client.results import FetchedBlock, Isolation
from quorumlog.client.security import Security
from quorumlog.model.config import CLUSTER_GROUP, check_name
from quorumlog.model.entry import Entry
from quorumlog.model.errors import (
    ConfigError,
    IndexRemovedError,
    QuorumlogError,
    RequestError,
    UnexpectedArgumentError,
    WrongClusterError,
)
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.consumers import PARTITIONS_MAX

GROUP_LENGTH_MAX: Final = 249
"""Characters of the name of a consumer group, and of a client id."""
AUTO_COMMIT_LEAST_MS: Final = 10
_SKIP: Final = 'seek("earliest") goes on after what is missing, as if_removed="start" always does'
Start: TypeAlias = int | Literal["earliest", "latest"]
F = TypeVar("F", bound=Callable[..., Any])


class ConsumerOptions(TypedDict, total=False):
    """The options of a `Consumer`; see there."""

    partitions: int
    start: Start
    auto_commit_ms: float | None
    if_removed: Literal["raise", "start"]
    isolation: Isolation
    leader_only: bool
    on_assigned: Callable[[frozenset[int]], None] | None
    on_revoked: Revoked | None
    client_id: str
    timeout_ms: float
    cluster: str
    limits: Limits
    security: Security | None


class Consumer:
    """Reads a log as a member of a consumer group, which remembers how far it has come.

        async with Consumer(servers, group="billing", log="flights") as consumer:
            async for entry in consumer:
                handle(entry)
                await consumer.commit()

    Consumers of the same group share the log. With one partition, the default, one of them gets all
    entries in order, and the others stand by: one takes over when it leaves, dies, or is silent for
    longer than the session time-out. With more partitions the log is split by channel: an entry is
    in the partition of its channel modulo `partitions`, and each partition has one consumer, so
    that the entries of a channel are handled in order.

    Each entry is handled at least once: what was not committed is read again, by whoever has the
    partition then. A consumer never sets a committed position back. The members and the positions
    are kept by the brokers of the cluster: their nodes have `kafkaListen` (see
    docs/howto/consume.md). Heartbeats are sent by a task of the event loop, also while the program
    handles an entry, and until `close` or the end of the loop: a consumer that is only dropped
    keeps its partitions. Who blocks the loop for longer than the session time-out loses them.
    That time is measured by the clock of the event loop, which on Linux stands still while the
    machine is suspended: after that, entries may be yielded that another member has got, too.

    Nothing is asked of servers before the first entry is. One loop at a time: as a new one begins,
    the former one ends. The new one begins at the first entry not known to be handled. An entry is
    known to be handled once the program has asked for the next one, or has committed; so one at
    which a loop ended, by an error or by `break`, is yielded again unless it was committed.

    Args:
        servers: some addresses of the cluster, as `host:port` joined by commas or as a sequence.
        group: name of the consumer group.
        log: the plain group whose log is read, which a `Client` calls `group`.
        partitions: how many the log is split into; the same for all consumers of the group.
        start: where a partition begins of which nothing is committed: an index, "earliest" (the
            first entry that is kept) or "latest" (what is committed after that).
        auto_commit_ms: how often the position is committed by itself, in milliseconds. It is that
            of the first entry that may still be in work: those before it were handled, as the
            program has asked for the next. None: the program commits.
        if_removed: what to do when retention has removed entries that were not read yet: "raise"
            an `IndexRemovedError`, or go on where `start` says.
        isolation: which entries of transactions are seen (see `Isolation`).
        leader_only: False if any replica may answer, which may not know the newest entries.
        on_assigned: called with the partitions that the consumer has whenever these change; not to
            be awaited.
        on_revoked: called, and awaited, with partitions that another member is to get, once the
            program has asked for more than it was given of them: it may still `commit` here, and
            nothing is yielded meanwhile. It has 60 s from when they were revoked; after that the
            consumer has lost all of its partitions, the loop raises a `ConsumerFencedError`, and
            the consumer joins again once the callback has ended. It is not called for partitions
            that are lost, nor by `close`. What either of the two raises is raised by the loop;
            instead of a `CancelledError`, which would seem to be that of the loop, a
            `QuorumlogError`.
        client_id: what the consumer is called where members of the group are shown.
        timeout_ms: how long an outage may last, in milliseconds, and a request may take.
        cluster: see `Client`, as for `servers`, `limits` and `security`.

    Attributes:
        group: name of the consumer group.
        log: name of the log.

    Raises:
        ConfigError: an option has a wrong type or value.
        RequestError: this process has no free file descriptor.
    """

    def __init__(  # noqa: PLR0913  (one argument an option)
        self,
        servers: Servers,
        *,
        group: str,
        log: str,
        partitions: int = 1,
        start: Start = "earliest",
        auto_commit_ms: float | None = None,
        if_removed: Literal["raise", "start"] = "raise",
        isolation: Isolation = "read_committed",
        leader_only: bool = True,
        on_assigned: Callable[[frozenset[int]], None] | None = None,
        on_revoked: Revoked | None = None,
        client_id: str = "quorumlog",
        timeout_ms: float = 10_000,
        cluster: str = "",
        limits: Limits = DEFAULT_LIMITS,
        security: Security | None = None,
    ) -> None:
        self.group = _label("group", group)
        check_name("log", options.text("log", log))
        self.log = log
        _check_option("isolation", isolation, ISOLATION)
        _check_option("start", start, start_of)
        if if_removed not in ("raise", "start"):
            raise ConfigError(f"if_removed is 'raise' or 'start', not {options.shown(if_removed)}")
        commit_ms = auto_commit_ms
        if commit_ms is not None:
            least = AUTO_COMMIT_LEAST_MS
            commit_ms = options.milliseconds("auto_commit_ms", commit_ms, least=least)
        count = options.whole_number("partitions", partitions, 1, PARTITIONS_MAX)
        if on_revoked is not None and not callable(on_revoked):
            raise ConfigError(f"on_revoked is a function, not {options.shown(on_revoked)}")
        self._client = Client(
            servers,
            log,
            timeout_ms=timeout_ms,
            cluster=cluster,
            limits=limits,
            security=security,
        )
        self._start = start
        self._if_removed = if_removed
        self._isolation: Isolation = isolation
        self._leader_only = options.flag("leader_only", leader_only)
        self._loop: object = None
        """The loop over entries that was begun last: only that one goes on."""
        self._polled: AsyncGenerator[list[Entry], None] | None = None
        self._is_polling = self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._timeout_s = timeout_ms / 1_000
        self._answered_s: float | None = None
        """When the log last answered a request of this consumer, by the clock of the event loop."""
        self._requests = ConsumerRequests(
            self._client._requester.for_group(CLUSTER_GROUP),
            GroupOfLog(self.group, log, count),
            partial(identity_of, self._client._requester),
            str(uuid4()),
            _label("client_id", client_id),
        )
        self._membership = Membership(
            self._requests,
            self._begin,
            partitions=count,
            auto_commit_s=None if commit_ms is None else commit_ms / 1_000,
            callbacks=Callbacks(plain_function("on_assigned", on_assigned), on_revoked),
        )

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def close(self) -> Coroutine[Any, Any, None]:
        """Leave the group, so that another consumer takes over at once, and end all connections.

        Nothing is committed, unless there is `auto_commit_ms`: then what was handled is. A loop
        over the consumer ends; a new one, and each other call, raises `QuorumlogError`.

        In the consumer's event loop the call begins to close, not the await. Closing goes on in a
        task of its own if who waits is cancelled, as by `asyncio.wait_for`; further calls wait for
        it, except in `on_revoked`, which that task may wait for.
        """
        return _closing(self._begin_closing, loop_of(self._membership))

    def _begin_closing(self) -> asyncio.Task[None] | None:
        """Return the task that closes; None: whoever has called this must not wait for it."""
        caller = asyncio.current_task()
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.create_task(self._close(caller))
        elif self._membership.is_revoking_in(caller):
            return None
        return self._closing

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        await self._membership.close(caller)
        self._is_closed = True
        await self._requests.close()
        await self._client.close()

    # -- read ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[Entry, None]:
        return self.read()

    async def read(self) -> AsyncGenerator[Entry, None]:
        """Yield the entries of the partitions that the consumer has, and wait for new ones.

        While it has none, it waits for them. Reading goes on through changes of leaders, restarts,
        and outages of up to `timeout_ms`.

        Raises:
            IndexRemovedError: the next entry is not kept any more (see `if_removed`). Each loop
                raises it, until `seek` sets the consumer to an entry that is kept ("earliest").
            WrongClusterError: the log was founded again; a new consumer is needed.
            ConsumerFencedError: `on_revoked` took too long; a new loop goes on once it has ended.
            UnsupportedError: no broker coordinates consumers.
            UnexpectedArgumentError: the consumer group is used for another log, or with another
                number of partitions.
            RequestError: an outage was longer than `timeout_ms`.
            QuorumlogError: the consumer is closed.
        """
        self._check_open()
        self._loop = loop = object()
        parts = self._parts(loop)
        async with aclosing(parts):
            async for share, fetched, entries in parts:
                last = len(entries) - 1
                for place, entry in enumerate(entries):
                    if not self._may_yield(share, loop):
                        break
                    share.advance_to(entry)
                    if place == last:
                        share.advance(fetched.following)
                    with self._membership.handling(share):
                        yield entry

    async def read_blocks(self) -> AsyncGenerator[list[Entry], None]:
        """Like `read`, but yield the entries of one answer of a server at a time, at least one."""
        self._check_open()
        self._loop = loop = object()
        parts = self._parts(loop)
        async with aclosing(parts):
            async for share, fetched, entries in parts:
                if not self._may_yield(share, loop):
                    continue
                share.advance_over(entries)
                share.advance(fetched.following)
                with self._membership.handling(share):
                    yield entries

    @takes(timeout_ms=MILLISECONDS)
    async def poll(self, timeout_ms: float) -> list[Entry]:
        """Return the next entries, as `read_blocks` yields them, or none after `timeout_ms`.

        For a program that has something to do while nothing comes, such as to commit. A time that
        is shorter than an answer of a server takes returns none. Calling it again says that the
        entries returned before are handled. It begins a loop of its own if another one was begun
        since.

        Raises what `read` does: if the log has not answered for the consumer's own `timeout_ms`, it
        is asked where it ends, which takes as long again in an outage. Raises `QuorumlogError` once
        the consumer is closed, and while another task polls.
        """
        if self._is_polling:
            raise QuorumlogError("another task polls this consumer: let one at a time do so")
        self._is_polling = True
        try:
            return await self._poll(timeout_ms)
        finally:
            self._is_polling = False

    async def _poll(self, timeout_ms: float) -> list[Entry]:
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while not self._membership.is_closed:
                    if self._polled is None:
                        self._polled = self.read_blocks()
                    async for entries in self._polled:
                        return entries
                    self._polled = None  # another loop was begun since
        except TimeoutError:
            self._polled = None  # it has ended
            await self._look_for_outage()
            return []
        except BaseException:
            self._polled = None
            raise
        raise QuorumlogError(closed_text("consumer"))

    async def _look_for_outage(self) -> None:
        """Ask the log something short if it has not answered for long: polls end before a read.

        Raises `RequestError` if it does not answer that either.
        """
        now_s = asyncio.get_running_loop().time()
        if self._answered_s is None or not self.positions:
            self._answered_s = now_s
        elif now_s - self._answered_s > self._timeout_s:
            await self._bounds()
            self._answered_s = asyncio.get_running_loop().time()

    def _check_open(self) -> None:
        if self._is_closed:
            raise QuorumlogError(closed_text("consumer"))

    def _may_yield(self, share: Share, loop: object) -> bool:
        return self._loop is loop and self._membership.may_yield(share)

    async def _parts(
        self, loop: object
    ) -> AsyncGenerator[tuple[Share, FetchedBlock, list[Entry]], None]:
        """Yield what each block has of the present share, which may end meanwhile."""
        membership = self._membership
        membership.begin_again()
        while self._loop is loop:
            share = await membership.usable()
            if share is None:
                return
            try:
                blocks = self._blocks(share, loop)
                async with aclosing(blocks):
                    async for fetched in blocks:
                        entries = [one for one in self._seen(fetched) if share.has(one)]
                        if entries:
                            yield share, fetched, entries
                        else:
                            share.advance(fetched.following)
                            share.has_handled()
            except IndexRemovedError as error:
                if self._if_removed == "raise":
                    raise IndexRemovedError(f"{error}; {_SKIP}") from None
                begin, _ = await self._bounds()
                begin = max(begin, await self._begin())
                membership.seek(share, {p: max(at, begin) for p, at in share.positions.items()})
            except WrongClusterError as error:
                membership.fail(error)  # its positions are of a log that is no more
                raise

    async def _blocks(self, share: Share, loop: object) -> AsyncGenerator[FetchedBlock, None]:
        blocks = BlockReader(self._fetch, share.begin, None, follow=True).blocks()
        async with aclosing(blocks):
            while self._may_yield(share, loop):
                fetched = await share.unless_ended(anext(blocks))
                if fetched is None or self._loop is not loop:
                    return
                yield fetched

    async def _fetch(self, begin: int, last: int, wait_ms: int) -> FetchedBlock:
        fetched = await self._client.fetch(
            begin,
            last,
            wait_ms=wait_ms,
            leader_only=self._leader_only,
            isolation=self._isolation,
        )
        self._answered_s = asyncio.get_running_loop().time()
        return fetched

    def _seen(self, fetched: FetchedBlock) -> list[Entry]:
        return seen_entries(self.log, self._client.limits, fetched)

    async def _begin(self) -> int:
        """Return where a partition begins of which nothing is committed."""
        return await self._index_of(self._start)

    async def _bounds(self) -> tuple[int, int]:
        return await self._client.bounds(isolation=self._isolation)

    async def _index_of(self, place: Start) -> int:
        if isinstance(place, int):
            return place
        begin, last = await self._bounds()
        return begin if place == "earliest" else last + 1

    # -- positions ----------------------------------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """Where the consumer is: the index of the first entry not yielded yet, by partition.

        Of the partitions that it has at present; these are the keys.
        """
        share = self._membership.share
        return {} if share is None else dict(share.positions)

    def commit(self) -> Coroutine[Any, Any, None]:
        """Commit the positions: all entries that were yielded until this call are handled.

        The call itself takes the positions, not the await: with
        `asyncio.create_task(consumer.commit())` the loop may go on, and entries that are yielded
        after the call are not committed by it.

        Raises:
            ConsumerFencedError: entries that were yielded since the last commit are of partitions
                that the consumer has lost, so they are handled again. Undo what was not committed
                of these partitions, and go on: those that the consumer has again are read again
                from where they are committed. Positions of the others are committed.
            RequestError: the positions could not be committed within `timeout_ms`; they may be
                all the same.
            QuorumlogError: the consumer is closed.
        """
        self._check_open()
        return self._membership.commit(self._membership.taken())

    async def committed(self) -> dict[int, int]:
        """Return the committed positions of the group, by partition, whoever has committed them."""
        self._check_open()
        return await self._requests.positions()

    @takes(index=start_of)
    async def seek(self, index: Start) -> None:
        """Go on at an index, "earliest" or "latest", in all partitions that the consumer has now.

        What is committed stays, also with `auto_commit_ms`, until the consumer has read something
        there, or the program commits; and it never goes back, whatever the program commits.

        Raises:
            RequestError: the consumer has no partitions now; or no server said where the log
                begins and ends.
            QuorumlogError: the consumer is closed.
        """
        self._check_open()
        at = await self._index_of(index)
        share = self._membership.share
        if share is None or not share.places:
            raise RequestError("the consumer has no partitions now, so it cannot seek in them")
        self._membership.seek(share, dict.fromkeys(share.places, at))


def _closing(
    begin: Callable[[], asyncio.Task[None] | None], home: asyncio.AbstractEventLoop | None
) -> Coroutine[Any, Any, None]:
    """Begin to close now if the loop `home`, or any one if that is None, runs in this thread.

    Else once what this returns is awaited there. Waits for the task, which goes on if that ends.
    """

    async def ended(task: asyncio.Task[None] | None) -> None:
        if task is not None:
            await asyncio.shield(task)

    async def later() -> None:
        await ended(begin())

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return later()
    return ended(begin()) if home in (None, running) else later()


def plain_function(name: str, value: F | None) -> F | None:
    """Return a callback, if it is one that nobody has to await. Raises `ConfigError`."""
    if value is not None and (not callable(value) or iscoroutinefunction(value)):
        kind = "async function" if callable(value) else options.shown(value)
        raise ConfigError(f"{name} is a function that is not awaited, not {kind}")
    return value


def _label(name: str, value: object) -> str:
    """Return a text of 1 to `GROUP_LENGTH_MAX` printable characters. Raises `ConfigError`."""
    _check_option(name, value, text(1, GROUP_LENGTH_MAX))
    if not str(value).isprintable():
        raise ConfigError(f"{name} has printable characters only, not {options.shown(value)}")
    return str(value)


def _check_option(name: str, value: object, check: Check) -> None:
    """Check an option as the argument of a call is. Raises `ConfigError`."""
    try:
        check(name, value)
    except UnexpectedArgumentError as error:
        raise ConfigError(str(error)) from None
