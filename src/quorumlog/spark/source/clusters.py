"""The cluster as the data source sees it, and the connections that a process keeps to it."""

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from quorumlog.client import Client, FetchedBlock, Isolation, SyncClient
from quorumlog.client.consumer import GROUP_LENGTH_MAX
from quorumlog.client.consumer_requests import GroupOfLog, commit_as_nobody, identity_of_log
from quorumlog.client.contexts import OpenContext
from quorumlog.model.block import INDEX_RECORD_DTYPE
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    NetworkError,
    RemoteProtocolError,
    RequestError,
    UnknownGroupError,
    UnsupportedError,
)
from quorumlog.model.messages.client import MetadataResponse
from quorumlog.spark.access import AnyAccess, open_nodes, said_where
from quorumlog.spark.source.local_reads import local_blocks

logger = logging.getLogger(__name__)

PLAN_TIMEOUT_MS = 10_000
"""Servers that do not answer for this long are reported before a job starts."""
FETCH_BYTES = 4 * 1024 * 1024
FETCH_WAIT_MS = 1_000
"""How long a replica that is behind may wait for an entry before another one is asked."""
REPORT_TIMEOUT_MS = 2_000
"""A reader's report that takes longer is skipped; a later one is newer anyway."""
CLIENTS_MAX = 64
"""Clients a process keeps; each has a thread and its connections. The oldest one is closed."""
NODES_MAX = 1_024
"""Nodes asked which groups they host."""
ANY_GROUP = "default"
"""Clients are of a group; this one asks for all groups, and need not exist."""

NAME_DIGEST_DIGITS = 16
"""Hexadecimal digits of a digest in the name of a consumer group that would be too long."""

Fetch: TypeAlias = Callable[[int, int, bool], Awaitable[FetchedBlock]]
"""(begin index, last index, whether only the leader may answer) → a block, empty if not there."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Entries begin … beyond - 1 can be read."""

    begin: int
    beyond: int


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """Term and size of an entry, and its byte position in the leader's data files."""

    term: int
    pos: int
    size: int


class Cluster(Protocol):
    """What the data source asks of a cluster. All methods raise `RequestError`."""

    def groups(self) -> frozenset[str]:
        """Return the groups that any node hosts."""
        ...

    def bounds(self, group: str, isolation: Isolation, *, unconfirmed: bool = False) -> Bounds:
        """Return what the leader can serve, once a majority has confirmed that it leads.

        `unconfirmed`: without that, so that it may lack what is new if it was deposed and has not
        noticed; it is asked for again soon. Raises `UnknownGroupError`.
        """
        ...

    def record(self, group: str, index: int) -> IndexRecord:
        """Return the leader's index record of a committed entry, even of a rejected one.

        Raises `IndexRemovedError`, `IndexOutOfRangeError`.
        """
        ...

    def report(self, group: str, reader: str, index: int) -> None:
        """Commit that a reader has processed everything before an index, to be shown by `status`.

        A cluster without brokers keeps no positions: the log of this process says so, at level
        INFO.
        """
        ...

    def blocks(
        self,
        group: str,
        first: int,
        last: int,
        isolation: Isolation,
        *,
        leader_only: bool,
        headers_only: bool = False,
        local_reads: bool = True,
    ) -> Iterator[FetchedBlock]:
        """Yield entries first … last, all of them, with index records or only their headers.

        `local_reads`: what the replica that is asked has in files of this machine is read there.
        Raises `IndexRemovedError` when the leader does not have them any more.
        """
        ...


Connect: TypeAlias = Callable[[AnyAccess, int], Cluster]
"""(servers, milliseconds that an outage is ridden out) → the cluster; opens nothing."""

_clients: OrderedDict[tuple[OpenContext, str, int], SyncClient] = OrderedDict()
"""By cluster and user, group and timeout: kept between tasks, and for the life of a stream."""
_lock = threading.Lock()  # guards the table


def client_for(servers: AnyAccess, group: str, timeout_ms: int) -> SyncClient:
    """Return this process's client of a group, made when first needed.

    It stays open while no more than `CLIENTS_MAX` others are asked for.
    """
    key = (open_nodes(servers), group, timeout_ms)
    with _lock:
        client = _clients.pop(key, None)
        if client is None:
            with said_where():
                client = SyncClient(key[0], group, timeout_ms=timeout_ms)
        _clients[key] = client
        while len(_clients) > CLIENTS_MAX:
            _clients.popitem(last=False)[1].close()
    return client


def consumer_group_of(reader: str, log: str) -> str:
    """Return the consumer group that shows how far a reader has come in a log: `READER.LOG`.

    A name that would be too long is cut, and ends with a digest of the whole one.
    """
    name = f"{reader}.{log}"
    if len(name) <= GROUP_LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:NAME_DIGEST_DIGITS]
    return f"{name[: GROUP_LENGTH_MAX - NAME_DIGEST_DIGITS - 1]}-{digest}"


def is_in_use(servers: AnyAccess, group: str, timeout_ms: int) -> bool:
    """Whether this process has a client of a group, which has been reached then."""
    key = (open_nodes(servers), group, timeout_ms)
    with _lock:
        return key in _clients


def check_cluster(servers: AnyAccess, group: str | None, timeout_ms: int) -> None:
    """Raise within about `timeout_ms` unless a server answers and the cluster hosts a group.

    A group without a leader passes: that may be an outage, which jobs ride out. Raises
    `NetworkError` naming the servers, `UnknownGroupError`.
    """
    found = open_nodes(servers)
    with said_where():
        made = SyncClient(found, group or ANY_GROUP, timeout_ms=timeout_ms)
    with made as client:
        try:
            client.metadata()
        except RequestError as error:
            raise NetworkError(
                f"none of the servers {found.servers} answered within {timeout_ms / 1_000:g} s; "
                f"are the addresses right, and do the nodes run? {error}"
            ) from error
        if group is None:
            return
        try:
            client.bounds()
        except UnknownGroupError:
            raise
        except RequestError as error:
            logger.warning("group %s does not answer, going on all the same: %s", group, error)


class RemoteCluster:
    """A cluster by the addresses of some of its nodes; see `Cluster`."""

    def __init__(self, servers: AnyAccess, timeout_ms: int) -> None:
        self._servers = servers
        self._timeout_ms = timeout_ms

    def _client(self, group: str) -> SyncClient:
        return client_for(self._servers, group, self._timeout_ms)

    def groups(self) -> frozenset[str]:
        """See `Cluster`. Nodes that cannot be reached are skipped, unless it is all of them."""
        client = self._client(ANY_GROUP)
        return client.wait(_hosted_groups(client.asynchronous))

    def bounds(self, group: str, isolation: Isolation, *, unconfirmed: bool = False) -> Bounds:
        """See `Cluster`."""
        client = self._client(group)
        begin, last = client.bounds(linearizable=not unconfirmed, isolation=isolation)
        return Bounds(begin, last + 1)

    def record(self, group: str, index: int) -> IndexRecord:
        """See `Cluster`."""
        fetched = self._client(group).fetch(
            index, index, bytes_max=1, index_records=True, isolation="read_uncommitted"
        )
        (record,) = np.frombuffer(fetched.records, INDEX_RECORD_DTYPE)
        return IndexRecord(int(record["term"]), int(record["pos"]), int(record["size"]))

    def report(self, group: str, reader: str, index: int) -> None:
        """See `Cluster`."""
        log = client_for(self._servers, group, REPORT_TIMEOUT_MS)
        identity = log.wait(identity_of_log(log.asynchronous))
        cluster = client_for(self._servers, CLUSTER_GROUP, REPORT_TIMEOUT_MS)
        consumer_group = GroupOfLog(consumer_group_of(reader, group), group, 1)
        try:
            cluster.wait(
                commit_as_nobody(cluster.asynchronous, consumer_group, identity, {0: index})
            )
        except UnsupportedError as error:
            logger.info("the position of %s in %s is shown nowhere: %s", reader, group, error)

    def blocks(
        self,
        group: str,
        first: int,
        last: int,
        isolation: Isolation,
        *,
        leader_only: bool,
        headers_only: bool = False,
        local_reads: bool = True,
    ) -> Iterator[FetchedBlock]:
        """See `Cluster`."""
        client = self._client(group)
        if local_reads:
            locate = partial(client.fetch, isolation=isolation, leader_only=leader_only)
            for fetched in local_blocks(locate, group, first, last, headers_only=headers_only):
                yield fetched
                first = fetched.first_index + fetched.count
        if first > last:
            return

        async def fetch(begin: int, end: int, ask_leader: bool) -> FetchedBlock:
            return await client.asynchronous.fetch(
                begin,
                end,
                bytes_max=FETCH_BYTES,
                wait_ms=FETCH_WAIT_MS,
                index_records=not headers_only,
                headers_only=headers_only,
                leader_only=ask_leader,
                isolation=isolation,
            )

        found = blocks_of(
            group, fetch, first, last, leader_only=leader_only, patience_ms=self._timeout_ms
        )
        yield from client.each(found)


async def _hosted_groups(client: Client) -> frozenset[str]:
    """Ask all nodes that can be found, those named by others too."""

    async def ask(address: str) -> MetadataResponse:
        return await client.metadata(address)  # an address that is none fails by itself

    first = await client.metadata()  # rides out an outage of all
    found = {each.group for each in first.groups}
    waiting = set(client.servers())
    waiting |= {peer for each in first.groups for peer in each.peers.values()}
    asked: set[str] = set()
    while waiting and len(asked) < NODES_MAX:
        answers = await asyncio.gather(*map(ask, waiting), return_exceptions=True)
        asked |= waiting
        waiting = set()
        for answer in answers:
            if isinstance(answer, RequestError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found |= {each.group for each in answer.groups}
            waiting |= {peer for each in answer.groups for peer in each.peers.values()} - asked
    return frozenset(found)


async def blocks_of(
    group: str,
    fetch: Fetch,
    first: int,
    last: int,
    *,
    leader_only: bool,
    patience_ms: int,
    now_ms: Callable[[], float] | None = None,
) -> AsyncGenerator[FetchedBlock, None]:
    """Yield entries first … last in blocks, the next one already on its way.

    They were committed when the read was planned, so a replica without them lags. It is asked again
    for up to `patience_ms` after the last block; then `IndexOutOfRangeError` is raised. Only the
    leader can say that entries were removed.
    """
    clock = now_ms or (lambda: asyncio.get_running_loop().time() * 1_000)

    async def following(index: int) -> FetchedBlock:
        ask_leader, deadline = leader_only, clock() + patience_ms
        while True:
            try:
                fetched = await fetch(index, last, ask_leader)
                if fetched.count:
                    return fetched
            except IndexOutOfRangeError:  # the last entry of the range is not there yet
                pass
            except IndexRemovedError:
                if ask_leader:
                    raise
                ask_leader = True
            if clock() >= deadline:
                raise IndexOutOfRangeError(
                    f"entries up to {last} of {group} were there when the read was planned, but "
                    f"{index} could not be had for {patience_ms} ms; is the replica asked far "
                    "behind (readFrom=leader asks the leader), or was the log cut?"
                )

    async def taken(ahead: asyncio.Task[FetchedBlock], index: int) -> FetchedBlock:
        if ahead.done() and not ahead.cancelled() and ahead.exception() is not None:
            return await following(index)  # an outage while nobody waited may be over
        return await ahead

    index = first
    ahead = asyncio.ensure_future(following(index))
    try:
        while True:
            fetched = await taken(ahead, index)
            end = fetched.first_index + fetched.count
            if fetched.first_index != index or end > last + 1:
                raise RemoteProtocolError(
                    f"asked for entries {index} to {last} of {group}, a server sent "
                    f"{fetched.first_index} to {end - 1}"
                )
            index = end
            if index > last:
                yield fetched
                return
            ahead = asyncio.ensure_future(following(index))
            yield fetched
    finally:
        ahead.cancel()
        ahead.add_done_callback(_seen)


def _seen(task: "asyncio.Task[FetchedBlock]") -> None:
    """Mark an error as seen: nobody may ever ask for a block that was fetched ahead."""
    if not task.cancelled():
        task.exception()
