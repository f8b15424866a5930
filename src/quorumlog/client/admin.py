"""Administration of a group: leadership transfer, changes of members, status and history."""

import asyncio
from dataclasses import dataclass

from quorumlog.client.arguments import (
    NODE_ID,
    TERM,
    address,
    flag,
    optional,
    seconds,
    takes,
)
from quorumlog.client.deprecation import warn_renamed
from quorumlog.client.groups import Groups
from quorumlog.client.requester import Requester
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import LoginError, RequestError
from quorumlog.model.messages.admin import (
    ChangeMembersRequest,
    HistoryRequest,
    HistoryResponse,
    MemberAction,
    TransferRequest,
)
from quorumlog.model.messages.base import Request, Response
from quorumlog.model.messages.client import StatusRequest, StatusResponse
from quorumlog.model.messages.machine import SnapshotRequest, SnapshotResponse

POLL_S = 0.2
"""Pause between two checks of a member that is catching up."""


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """What happened to one replica lately.

    Attributes:
        address: where the replica was asked.
        node_id: its node, or "" if that is not known.
        lines: (milliseconds ago, sentence), the oldest first.
        error: why the replica did not answer, or "".
    """

    address: str
    node_id: str
    lines: list[tuple[int, str]]
    error: str = ""


class GroupAdmin:
    """Administration of the group of a client; get it as `client.admin`.

    `groups` makes, changes and deletes groups of the cluster (`Groups`).

    Every method raises `RequestError` (see `quorumlog.errors`), and `UnexpectedArgumentError` for
    an argument of a wrong type or value.
    """

    def __init__(self, requester: Requester) -> None:
        self._requester = requester
        self.groups = Groups(requester)

    @takes(node_id=optional(NODE_ID), term=TERM)
    async def transfer(self, node_id: str | None = None, *, term: int = -1) -> str:
        """Transfer leadership to a member; return its id once it leads.

        A leader that was just elected does not know yet how far the other logs go; it is asked
        again until the client's time is over.

        Args:
            node_id: the member; None: the voter that answers and has most of the log.
            term: transfer only in this term; -1: in any.

        Raises:
            RequestError: with code FALL_BEHIND_TOO_MUCH, TAKE_LEADERSHIP_FAILED, UNKNOWN_MEMBER,
                INCONSISTENT_TERM or LEADER_TRANSFERRING; the old leader goes on leading then.
        """
        request = TransferRequest(
            group=self._requester.group, transferee_id=node_id or "", term=term
        )
        response = await self._requester.ask_leader(request, Response, repeat_unknown=False)
        self._requester.metadata.forget_leader()  # what comes next is for the new one
        return response.leader_id or node_id or ""

    @takes(node_id=NODE_ID, address=address, learner=flag)
    async def add_member(self, node_id: str, address: str, *, learner: bool = False) -> None:
        """Add a member, first as a learner; it becomes a voter once it has caught up.

        Returns when the learner is committed; `wait_until_voter` waits until it votes.

        Args:
            node_id: the node to add; it must run and host the group.
            address: where other members reach it, as host:port.
            learner: True if it is to stay a learner.

        Raises:
            RequestError: with code REPEATED_REQUEST, CHANGE_IN_PROGRESS or UNEXPECTED_ARGUMENT.
        """
        await self._change(MemberAction.ADD, node_id, address, learner=learner)

    @takes(node_id=NODE_ID)
    async def promote_member(self, node_id: str) -> None:
        """Make a learner a voter. Raises `RequestError`; code MEMBER_NOT_READY: it lags too far."""
        await self._change(MemberAction.PROMOTE, node_id)

    @takes(node_id=NODE_ID)
    async def remove_member(self, node_id: str) -> None:
        """Remove a member. A leader that is removed transfers leadership once that is committed."""
        await self._change(MemberAction.REMOVE, node_id)

    async def _change(
        self, action: MemberAction, node_id: str, address: str = "", *, learner: bool = False
    ) -> None:
        request = ChangeMembersRequest(
            group=self._requester.group,
            action=action,
            node_id=node_id,
            address=address,
            learner=learner,
        )
        await self._ask_leader(request)

    async def save_snapshot(self) -> int:
        """Have the leader save a snapshot of its state machine now.

        Returns the last index it includes, once it is durable. Raises `RequestError`.
        """
        request = SnapshotRequest(group=self._requester.group)
        response = await self._requester.ask_leader(request, SnapshotResponse, repeat_unknown=True)
        return response.last_included_index

    @takes(node_id=NODE_ID, timeout_s=seconds)
    async def wait_until_voter(self, node_id: str, *, timeout_s: float) -> None:
        """Wait until a member votes. Raises `TimeoutError` after `timeout_s` seconds."""
        async with asyncio.timeout(timeout_s):
            while True:
                self._requester.metadata.check_open()
                found = await self.status()
                known = [status for status in found if status.code == ResponseCode.SUCCESS]
                newest = max(known, key=lambda status: status.membership_index, default=None)
                if newest is not None and node_id in newest.voters and not newest.outgoing:
                    return
                await asyncio.sleep(POLL_S)

    async def status(self) -> list[StatusResponse]:
        """Return what every known server says of its replica.

        A server that does not answer has another `code` than SUCCESS, and the reason in `text`.
        """
        view = self._requester.metadata
        if not view.members:
            await self._learn_members()
        return list(await asyncio.gather(*map(self._status_of, view.addresses())))

    async def _learn_members(self) -> None:
        is_refused = False
        for server in self._requester.metadata.addresses():
            try:
                found = await self._requester.metadata.ask(server, self._requester.group)
            except RequestError as error:
                if isinstance(error, LoginError) and error.is_everywhere:
                    if is_refused:
                        return  # each of them is told so for itself
                    is_refused = True  # or the first one is behind
                continue
            self._requester.metadata.members = dict(found.groups[0].peers) if found.groups else {}
            return

    async def _status_of(self, address: str) -> StatusResponse:
        node_ids = {member: node_id for node_id, member in self._requester.metadata.members.items()}
        node_id = node_ids.get(address, "")
        try:
            connection = await self._requester.metadata.connection(address)
            future = connection.request(StatusRequest(group=self._requester.group))
            answer = await self._requester.metadata.wait(connection, future)
            return self._requester.expect(connection, answer, StatusResponse)
        except RequestError as error:
            return StatusResponse(
                code=error.code,
                text=str(error),
                group=self._requester.group,
                address=address,
                node_id=node_id,
                healthy=False,
                health_text="unreachable",
            )

    async def history(self) -> list[ReplicaHistory]:
        """Return what happened to each replica lately, one value for each known server."""
        self._requester.metadata.check_open()
        statuses = await self.status()
        return list(
            await asyncio.gather(
                *(self._history_of(status.address, status.node_id) for status in statuses)
            )
        )

    async def stories(self) -> list[ReplicaHistory]:
        """Deprecated: use `history`, which is the same."""
        warn_renamed("GroupAdmin.stories", "GroupAdmin.history")
        return await self.history()

    async def _history_of(self, address: str, node_id: str) -> ReplicaHistory:
        requester = self._requester
        try:
            connection = await requester.metadata.connection(address)
            future = connection.request(HistoryRequest(group=requester.group))
            answer = await requester.metadata.wait(connection, future)
            response = requester.expect(connection, answer, HistoryResponse)
        except RequestError as error:
            return ReplicaHistory(address, node_id, [], str(error))
        return ReplicaHistory(address, node_id, response.lines)

    async def _ask_leader(self, request: Request) -> None:
        await self._requester.ask_leader(request, Response, repeat_unknown=False)
