"""What a consumer of a log asks the leader of `__cluster`, which coordinates all consumers."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from quorumlog.client.client import Client
from quorumlog.client.connection import ServerConnection
from quorumlog.client.requester import Requester
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.errors import (
    LeaderNotReadyError,
    UnknownGroupError,
    UnsupportedError,
    WrongClusterError,
)
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.consumers import (
    JOINING,
    LEAVING,
    NO_EPOCH,
    CommitPositionsRequest,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerRequest,
    PositionsRequest,
    PositionsResponse,
)

R = TypeVar("R", bound=Response)


async def identity_of(requester: Requester) -> bytes:
    """Return the identity of the log that a requester asks about; it is never empty.

    A group that was just founded has none until its first membership is committed; it is asked
    again until the deadline. Raises `RequestError`.
    """

    async def ask(connection: ServerConnection) -> bytes:
        found = await requester.metadata.ask(connection.address, requester.group)
        for one in found.groups:
            if one.group == requester.group and one.identity:
                return one.identity
        raise LeaderNotReadyError(
            f"{connection.address} does not know the identity of {requester.group} yet: the group "
            "has just been founded, or is not there any more"
        )

    return await requester.retrying(requester.metadata.leader, ask, None, repeat_unknown=True)


async def identity_of_log(log: Client) -> bytes:
    """Return the identity of a client's group, as `identity_of` does."""
    return await identity_of(log._requester)


class GroupOfLog(NamedTuple):
    """A consumer group, the log that it reads, and how many partitions it splits that into."""

    name: str
    log: str
    partitions: int


async def commit_as_nobody(
    cluster: Client, group: GroupOfLog, identity: bytes, positions: Mapping[int, int]
) -> None:
    """Commit positions of a consumer group that has no members.

    `cluster` is a client of `__cluster`; `identity` is that of the log (see `identity_of_log`).
    Raises `RequestError`.
    """

    async def identify() -> bytes:
        return identity

    await ConsumerRequests(cluster._requester, group, identify).commit(positions, NO_EPOCH)


class ConsumerRequests:
    """The requests of one member of a consumer group; of nobody's if it has no `member_id`.

    All of them may be sent again: repeating one changes nothing more. Heartbeats are numbered, so
    that a copy which comes late is not taken for what the member uses then. `requester` asks the
    group `__cluster`; `identify` returns the identity of the log, and is awaited each time that the
    member joins: to join by the identity of a log that is no more would end the positions of the
    one that took its place.
    """

    def __init__(
        self,
        requester: Requester,
        group: GroupOfLog,
        identify: Callable[[], Awaitable[bytes]],
        member_id: str = "",
        client_id: str = "",
    ) -> None:
        self._identify = identify
        self._identity: bytes | None = None
        self._requester = requester
        self._group = group
        self._member_id = member_id
        self._client_id = client_id
        self._heartbeats = 0

    async def heartbeat(self, epoch: int, owned: Iterable[int]) -> ConsumerHeartbeatResponse:
        """Say that the member is alive, and what it uses; return what it may use.

        Raises `ConsumerFencedError`: it is no member any more, and joins again with epoch 0;
        `WrongClusterError`: it joins, and the log is another one than it was.
        """
        if epoch == JOINING and self._identity is not None:
            await self._check_identity(self._identity)
        return await self._beat(epoch, owned, None)

    async def leave(self, timeout_ms: float) -> None:
        """Say that the member leaves. Raises `RequestError`, also if it was none any more."""
        await self._beat(LEAVING, (), timeout_ms)

    async def _beat(
        self, epoch: int, owned: Iterable[int], timeout_ms: float | None
    ) -> ConsumerHeartbeatResponse:
        common = await self._common()
        self._heartbeats += 1
        request = ConsumerHeartbeatRequest(
            **common,
            member_id=self._member_id,
            epoch=epoch,
            owned=sorted(owned),
            client_id=self._client_id,
            number=self._heartbeats,
        )
        return await self._ask(request, ConsumerHeartbeatResponse, timeout_ms)

    async def commit(self, positions: Mapping[int, int], epoch: int) -> None:
        """Commit the positions of some partitions.

        Raises `ConsumerFencedError`: the member has another epoch, or is none; or, without a
        member, the group has members.
        """
        request = CommitPositionsRequest(
            **await self._common(),
            member_id=self._member_id,
            epoch=epoch,
            positions=sorted(positions.items()),
        )
        await self._ask(request, Response)

    async def positions(self) -> dict[int, int]:
        """Return the committed positions by partition."""
        request = PositionsRequest(**await self._common())
        return dict((await self._ask(request, PositionsResponse)).positions)

    async def _check_identity(self, known: bytes) -> None:
        identity = await self._identify()
        if identity != known:
            raise WrongClusterError(
                f"log {self._group.log} has the identity {identity.hex()}, and had {known.hex()}: "
                "it was founded again since this consumer began; make a new consumer"
            )

    async def _common(self) -> dict[str, Any]:
        if self._identity is None:
            self._identity = await self._identify()
        return {
            "group": CLUSTER_GROUP,
            "consumer_group": self._group.name,
            "log": self._group.log,
            "identity": self._identity,
            "partitions": self._group.partitions,
        }

    async def _ask(
        self, request: ConsumerRequest, kind: type[R], timeout_ms: float | None = None
    ) -> R:
        try:
            return await self._requester.ask_leader(
                request, kind, timeout_ms=timeout_ms, repeat_unknown=True
            )
        except UnknownGroupError as error:
            raise UnsupportedError(
                "brokers coordinate consumers, and none was found: set kafkaListen in the "
                f"configuration of nodes, and add the group {CLUSTER_GROUP} to theirs ({error})"
            ) from None

    async def close(self) -> None:
        """End all connections."""
        await self._requester.metadata.close()
