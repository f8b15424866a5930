"""One client connection: requests in, answers out, in the order in which they are ready."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from quorumlog.auth.acls import CLUSTER_NAME, Operation, ResourceType
from quorumlog.auth.hosts import without_port
from quorumlog.auth.needs import on_cluster, on_transactional_id
from quorumlog.auth.permits import Authorizer, Permit
from quorumlog.log_events import log_event
from quorumlog.model.block import Buffer, bodies_fit, check_proposal, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import check_name, open_to_clients, parse_address
from quorumlog.model.errors import (
    ConfigError,
    RequestError,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.membership import Member, addresses_of
from quorumlog.model.messages.admin import (
    ChangeMembersRequest,
    HistoryRequest,
    HistoryResponse,
    MemberAction,
    TransferRequest,
)
from quorumlog.model.messages.base import Hello, Message, Response
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    GroupIdentity,
    GroupMetadata,
    MetadataRequest,
    MetadataResponse,
    StatusRequest,
    WatchLeaderRequest,
)
from quorumlog.model.messages.consumers import ConsumerRequest
from quorumlog.model.messages.groups import CreateGroupRequest
from quorumlog.model.messages.machine import (
    QueryRequest,
    QueryResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.model.messages.security import SecurityRequest
from quorumlog.model.messages.transactions import (
    TransactionalRequest,
    TransactionalResponse,
)
from quorumlog.model.wording import entries_text
from quorumlog.node.node import Node
from quorumlog.node.replica.pending_requests import Done
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.status import status_of, status_of_failed
from quorumlog.node.request_bounds import REQUEST_BYTES
from quorumlog.raft.events import (
    AddMember,
    ChangeRequested,
    PromoteMember,
    RemoveMember,
    TransferRequested,
)
from quorumlog.service.administration import RecordedRequests
from quorumlog.service.answers import Answers
from quorumlog.service.authorization import (
    check_right,
    refusal_of,
    refusal_of_secrets,
    why_not_ready,
)
from quorumlog.service.consumers import CONSUMER_REQUESTS, ConsumerService
from quorumlog.service.groups import (
    GROUPS_REQUESTS,
    GroupsRequest,
    answer_groups_request,
    unknown_to,
)
from quorumlog.service.security import SECURITY_REQUESTS, Asker, SecurityService
from quorumlog.service.streams import OrderedStreams
from quorumlog.service.unanswered import QUERY_BYTES, WAITING, Unanswered
from quorumlog.sessions.entries import system_entry_of, transactional_id_of
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import Outgoing

logger = logging.getLogger(__name__)


FETCH_BYTES_BESIDE_INTERACTIVE_MAX = 128 * 1024
"""The most bytes that answer a fetch of another client while interactive ones ask: an
answer of 4 MiB takes a slice of 1.3 ms, and each step of an append waits for a turn."""
POLLS_MAX = 32_768
"""Requests of all connections of a node that wait for something to happen; more are refused."""
_FULL = "too many bytes of {} of all clients wait for their answers here; try again later"


_JUDGED_AGAIN = (*WAITING, MetadataRequest)
"""Requests whose answers tell what is known by then: a right may have been taken away meanwhile."""
GROUPS_NAMED_MAX = 8
"""At most this many groups of a node are named to a client that asked for another."""


class ClientRequests:
    """Handles the requests of one client connection; `consumers`, `security`: of the node.

    `authorizer`: by whom it is judged what the client may do; None: everything.
    """

    def __init__(
        self,
        node: Node,
        consumers: ConsumerService | None = None,
        security: SecurityService | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._node = node
        self._consumers = consumers
        self._security = security or SecurityService(node.config)
        self._authorizer = authorizer
        self._permit: Permit | None = None
        self._limits = node.config.limits
        self._bounds = node.request_bounds
        self._streams = OrderedStreams(self._limits.ordered_streams_max)
        self._unanswered = Unanswered(self._bounds, self._limits)
        self._answers = 0
        self._out = Answers(node.turn.at_end)
        self._group, self._identity = "", b""
        self._identity_sent = False
        self._recorded = RecordedRequests(node.instruments.audit)
        self.gave: Callable[[int], None] = _uncounted
        """Is told how many bytes of entries or results an answer has."""

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self._group, self._identity = hello.group, hello.identity
        if self._authorizer is not None:
            self._permit = self._authorizer.permit(connection)
        self._send_identity(connection)

    def _refusal(self, connection: Connection, frame: Frame) -> tuple[ResponseCode, str] | None:
        """Return why the client may not have a request, or not yet; None: it may."""
        if self._authorizer is not None and self._permit is None:
            self._permit = self._authorizer.permit(connection)
        permit, message = self._permit, frame.message
        if permit is not None and (text := why_not_ready(permit, message)):
            return ResponseCode.LEADER_NOT_READY, text
        text = self._lacks(message)
        return (ResponseCode.NOT_AUTHORIZED, text) if text else None

    def _lacks(self, message: Message) -> str:
        """Return why the client may not have what is asked for; empty: it may."""
        if self._permit is not None:
            return refusal_of(self._permit, message)
        text = refusal_of_secrets(message)
        return text if text and self._security.keeps_secrets else ""

    def _sees(self, group: str) -> bool:
        """Whether the client may know of a group."""
        permit = self._permit
        return permit is None or permit.sees(Operation.DESCRIBE, ResourceType.GROUP, group)

    def _send_identity(self, connection: Connection) -> None:
        """Send the identity of the client's group, if it is known: before any answer about it."""
        replica = self._node.replicas.get(self._group)
        if replica is not None and replica.core.identity and self._sees(self._group):
            self._identity_sent = True
            connection.send(GroupIdentity(group=self._group, identity=replica.core.identity))

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Answer a request, now or later; every request gets an answer (spec 90, 167).

        Requests that wait for something to happen do not keep others from being read.
        """
        self._unanswered.count(connection, frame, 1)
        own_max = self._limits.fetch_waiters_max // 4
        if self._unanswered.polls > own_max or self._bounds.polls > POLLS_MAX:
            text = f"more than {own_max} requests of this connection wait, or {POLLS_MAX} of all"
            refused = Response(code=ResponseCode.LEADER_PENDING_FULL, text=text)
            self._answer(connection, frame, refused)
            return
        handler = _HANDLERS.get(type(frame.message))
        if handler is None:
            text = f"{type(frame.message).__name__} is not a client's request"
            self._answer(connection, frame, Response(code=ResponseCode.UNSUPPORTED, text=text))
            return
        if (refusal := self._refusal(connection, frame)) is not None:
            code, text = refusal
            kind = AppendResponse if handler is ClientRequests._append else Response
            self._answer(connection, frame, kind(code=code, text=text))
            return
        answers = self._answers
        try:
            self._recorded.begins(connection, frame.message)
            handler(self, connection, frame, frame.message)
            self._recorded.accessed(connection, frame.message)
        except RequestError as error:
            response = AppendResponse if handler is ClientRequests._append else Response
            answer = response(code=error.code, text=str(error), leader_id=error.leader_id)
            self._answer(connection, frame, answer)
        except Exception:
            if self._answers == answers:
                self._unanswered.count(
                    connection, frame, -1
                )  # the connection ends, the bounds do not
            raise

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self._unanswered.close()
        self._node.executor.forget(self)
        if self._unanswered.may_be_dropped:
            for replica in self._node.replicas.values():
                replica.fetches.forget(self)
                replica.applier.queries.forget(self)
                replica.pending_requests.leaders.forget(self)
        log_event(
            logger,
            logging.DEBUG,
            "client disconnected",
            client=connection.remote_address,
            reason=reason,
        )

    def _answer(
        self,
        connection: Connection,
        frame: Frame,
        response: Response,
        attachments: list[Buffer] | None = None,
    ) -> None:
        """Send an answer; a client that does not read its answers is cut off. Raises nothing."""
        is_known = self._permit is None or self._permit.is_ready
        if is_known and isinstance(frame.message, _JUDGED_AGAIN):
            is_refusal = response.code == ResponseCode.NOT_AUTHORIZED
            text = "" if is_refusal else self._lacks(frame.message)
            if text:
                response, attachments = Response(code=ResponseCode.NOT_AUTHORIZED, text=text), None
        self._answers += 1
        self._unanswered.count(connection, frame, -1)
        self._recorded.answered(connection, frame.message, response)
        if not self._identity_sent:
            self._send_identity(connection)
        attached = attachments or ()
        answer = Outgoing(response, attached, sum(map(len, attached)), frame.correlation_id)
        if attached:
            self.gave(answer.size)
        self._out.send(connection, answer, is_last=self._unanswered.is_empty)

    def _replica(self, group: str) -> Replica:
        replica, failed = self._node.replicas.get(group), self._node.failed_groups.get(group)
        if failed is not None:  # nothing happened here, and another replica may serve it
            text = f"node {self._node.config.self_id} cannot open group {group!r}: {failed}"
            raise error_for(ResponseCode.NOT_LEADER, text)
        if replica is None:
            hosted = self._node.replicas
            seen = [name for name in hosted if self._sees(name)]
            names = ", ".join(sorted(islice(seen, GROUPS_NAMED_MAX)))
            more = len(seen) - GROUPS_NAMED_MAX
            others = f"; it hosts {names}{f' and {more} more' if more > 0 else ''}" if seen else ""
            raise error_for(
                ResponseCode.UNKNOWN_GROUP,
                f"node {self._node.config.self_id} does not host group {group!r}{others}",
            )
        if self._identity and group == self._group:
            self._check_identity(replica, group)
        return replica

    def _check_identity(self, replica: Replica, group: str) -> None:
        own = replica.core.identity
        if own not in (b"", self._identity):
            raise error_for(
                ResponseCode.WRONG_CLUSTER,
                f"group {group} of node {self._node.config.self_id} has the identity {own.hex()}, "
                f"not {self._identity.hex()}: it was founded again since this client began to use "
                "it, or is another cluster's. Make a new client to use this one",
            )

    def _placed_replica(self, group: str) -> Replica:
        """Return a replica that may redirect a client.

        A copied replica may not: it would send the client to the cluster that it was copied from.
        """
        replica = self._replica(group)
        if replica.placement.misplaced_text:
            raise error_for(ResponseCode.WRONG_CLUSTER, replica.placement.misplaced_text)
        return replica

    # -- requests ---------------------------------------------------------------------------

    def _append(self, connection: Connection, frame: Frame, request: AppendRequest) -> None:
        replica = self._replica(open_to_clients(request.group))
        size = len(frame.attachment) + REQUEST_BYTES
        if self._bounds.appends.has_taken_too_much(size) and replica.core.role is Role.LEADER:
            raise error_for(ResponseCode.LEADER_PENDING_FULL, _FULL.format("appends"))
        if request.count <= 0:
            code = ResponseCode.REQUEST_WITH_EMPTY_BODYS
            raise error_for(code, "a batch needs at least one body")
        limits = self._limits
        if request.count > limits.block_entries_max or (
            len(frame.attachment) > limits.block_bytes_max
        ):
            raise UnexpectedArgumentError(
                f"{entries_text(request.count)}, {len(frame.attachment)} bytes: a block has up to "
                f"{limits.block_entries_max} entries and {limits.block_bytes_max} bytes"
            )
        block = parse_block(
            frame.attachment, count=request.count, entry_bytes_max=limits.entry_bytes_max
        )
        entry = system_entry_of(block)
        if self._permit is not None and (named := transactional_id_of(entry)) is not None:
            check_right(self._permit, on_transactional_id(Operation.WRITE, named))
        check_proposal(block, begin=0 if entry is None else 1)
        if not bodies_fit(block):
            raise UnexpectedArgumentError("a body does not fit its CRC; send the block again")
        if request.stream:
            self._streams.accept(request.stream, request.sequence)

        def answer(response: AppendResponse, results: Sequence[bytes]) -> None:
            # also after an unknown outcome: a later block must not overtake this one
            if request.stream and response.code != ResponseCode.SUCCESS:
                self._streams.refused(request.stream, request.sequence)
            if results and request.wants_results:
                self._answer_results(connection, frame, response, results)
            else:
                self._answer(connection, frame, response)

        replica.propose(block, answer, entry, request.level)

    def _answer_results(
        self,
        connection: Connection,
        frame: Frame,
        response: AppendResponse,
        results: Sequence[bytes],
    ) -> None:
        encoded = msgspec.msgpack.encode(results)
        if len(encoded) > self._limits.block_bytes_max:
            text = (
                f"applied, but the {len(encoded)} bytes of results are above "
                f"{self._limits.block_bytes_max}; append fewer commands at a time"
            )
            code = ResponseCode.INTERNAL_ERROR
            response, encoded = msgspec.structs.replace(response, code=code, text=text), b""
        self._answer(connection, frame, response, [encoded])

    def _query(self, connection: Connection, frame: Frame, request: QueryRequest) -> None:
        replica = self._replica(open_to_clients(request.group))
        if request.wait_ms < 0:
            raise UnexpectedArgumentError(f"waitMs {request.wait_ms} is below 0")
        size, own = len(frame.attachment) + QUERY_BYTES, self._unanswered.waiting_query_bytes
        memory = self._bounds.waiting_queries if request.wait_ms else self._bounds.queries
        if memory.has_taken_too_much(size) or own > max(size, self._unanswered.query_bytes_max):
            raise error_for(ResponseCode.LEADER_PENDING_FULL, _FULL.format("queries"))

        def answer(code: ResponseCode, text: str, applied_index: int, answer: bytes) -> None:
            core = replica.core
            response = QueryResponse(
                code=code,
                text=text,
                leader_id=core.leader_id,
                term=core.term,
                applied_index=applied_index,
            )
            self._answer(connection, frame, response, [answer] if answer else [])

        replica.query(request, frame.attachment, answer, self)

    def _snapshot(self, connection: Connection, frame: Frame, request: SnapshotRequest) -> None:
        def saved(code: ResponseCode, text: str, index: int) -> None:
            response = SnapshotResponse(code=code, text=text, last_included_index=index)
            self._answer(connection, frame, response)

        self._replica(request.group).applier.snapshotter.ask(saved)

    def _transactional(
        self, connection: Connection, frame: Frame, request: TransactionalRequest
    ) -> None:
        def answer(response: TransactionalResponse) -> None:
            self._answer(connection, frame, response)

        self._replica(request.group).transactions.answer_state(request, answer)

    def _fetch(self, connection: Connection, frame: Frame, request: FetchRequest) -> None:
        replica = self._replica(request.group)
        if request.bytes_max <= 0 or request.begin_index < 0 or request.wait_ms < 0:
            raise UnexpectedArgumentError(
                "a fetch needs beginIndex ≥ 0, bytesMax > 0 and waitMs ≥ 0, not "
                f"{request.begin_index}, {request.bytes_max}, {request.wait_ms}"
            )

        if request.machine and not self._may_know_places():
            request = msgspec.structs.replace(request, machine="")
        if connection.yields_to_interactive:
            bytes_max = min(request.bytes_max, FETCH_BYTES_BESIDE_INTERACTIVE_MAX)
            request = msgspec.structs.replace(request, bytes_max=bytes_max)

        def answer(response: FetchResponse, attachments: list[Buffer]) -> None:
            self._answer(connection, frame, response, attachments)

        replica.fetch(request, answer, self)

    def _may_know_places(self) -> bool:
        """Whether the client may know where files are; else it is sent what they hold."""
        permit = self._permit
        return permit is None or permit.sees(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)

    def _metadata(self, connection: Connection, frame: Frame, request: MetadataRequest) -> None:
        names = [request.group]
        if not request.group:
            replicas = self._node.replicas.items()
            placed = [name for name, one in replicas if not one.placement.misplaced_text]
            names = [name for name in placed if self._sees(name)]
        self._answer_metadata(connection, frame, [self._placed_replica(name) for name in names])

    def _answer_metadata(
        self, connection: Connection, frame: Frame, replicas: Sequence[Replica]
    ) -> None:
        config = self._node.config
        groups = [
            GroupMetadata(
                replica.config.group,
                addresses_of(replica.core.membership),
                replica.core.leader_id,
                replica.core.term,
                replica.core.identity,
            )
            for replica in replicas
        ]
        response = MetadataResponse(cluster=config.cluster, node_id=config.self_id, groups=groups)
        self._answer(connection, frame, response)

    def _watch_leader(
        self, connection: Connection, frame: Frame, request: WatchLeaderRequest
    ) -> None:
        replica = self._placed_replica(request.group)
        replica.pending_requests.leaders.wait(
            request.above_term,
            min(request.wait_ms, self._limits.fetch_wait_ms_max),
            lambda: self._answer_metadata(connection, frame, [replica]),
            self,
        )

    def _status(self, connection: Connection, frame: Frame, request: StatusRequest) -> None:
        node, failed = self._node, self._node.failed_groups.get(request.group)
        if failed is not None:
            status = status_of_failed(node.config, request.group, failed)
        else:
            replica = self._replica(request.group)
            found = [] if self._consumers is None else self._consumers.positions(replica)
            status = status_of(replica, node.config.self_id)
            status = msgspec.structs.replace(status, consumers=found)
        status = msgspec.structs.replace(
            status,
            connections=len(node.listener.connections),
            connections_max=node.descriptors.connections,
            loop_lag_ms=round(node.lag.recent_max_s * 1_000),
        )
        self._answer(connection, frame, status)

    # -- of operators -----------------------------------------------------------------------

    def _transfer(self, connection: Connection, frame: Frame, request: TransferRequest) -> None:
        replica = self._replica(request.group)
        target, term = request.transferee_id, request.term
        replica.pending_requests.ask(
            lambda number: TransferRequested(number, target, term),
            self._answer_of(connection, frame, replica),
        )

    def _change_members(
        self, connection: Connection, frame: Frame, request: ChangeMembersRequest
    ) -> None:
        replica, node_id = self._replica(request.group), request.node_id
        change: AddMember | PromoteMember | RemoveMember = RemoveMember(node_id)
        if request.action is MemberAction.PROMOTE:
            change = PromoteMember(node_id)
        elif request.action is MemberAction.ADD:
            try:
                check_name("member id", node_id, dash=False)
                parse_address(request.address)
            except ConfigError as error:
                raise UnexpectedArgumentError(str(error)) from error
            change = AddMember(Member(node_id, request.address, joining=not request.learner))
        replica.pending_requests.ask(
            lambda number: ChangeRequested(number, change),
            self._answer_of(connection, frame, replica),
        )

    def _answer_of(self, connection: Connection, frame: Frame, replica: Replica) -> Done:
        """Return a callback that answers a client once the core has answered."""

        def done(code: ResponseCode, text: str, index: int) -> None:
            leader_id, term = replica.core.leader_id, replica.core.term
            response = Response(code=code, text=text, leader_id=leader_id, term=term)
            self._answer(connection, frame, response)

        return done

    def _history(self, connection: Connection, frame: Frame, request: HistoryRequest) -> None:
        lines = self._replica(request.group).history()
        self._answer(connection, frame, HistoryResponse(lines=lines))


def _uncounted(size: int) -> None:
    """Where there are no quotas, nobody is told of what clients read."""


def _of_groups(
    client: ClientRequests, connection: Connection, frame: Frame, request: GroupsRequest
) -> None:
    permit = client._permit
    if permit is not None and isinstance(request, CreateGroupRequest):
        new = unknown_to(client._node, request)
        if new:
            about = f"{new} is not known to node {client._node.config.self_id}"
            rights = (*on_cluster(Operation.CREATE), *on_cluster(Operation.ALTER))
            check_right(permit, rights, about)
    answer = partial(client._answer, connection, frame)
    answer_groups_request(client._node, request, answer, client._sees)


def _consumer(
    client: ClientRequests, connection: Connection, frame: Frame, request: ConsumerRequest
) -> None:
    if client._consumers is None:
        raise error_for(ResponseCode.UNSUPPORTED, "this node coordinates no consumers")
    host = without_port(connection.remote_address)
    client._consumers.answer(request, host, partial(client._answer, connection, frame))


def _secured(
    client: ClientRequests, connection: Connection, frame: Frame, request: SecurityRequest
) -> None:
    asker = Asker(connection.principal, connection.remote_address)
    client._security.answer(request, asker, partial(client._answer, connection, frame))


_HANDLERS: dict[type[Any], Callable[[ClientRequests, Connection, Frame, Any], None]] = {
    AppendRequest: ClientRequests._append,
    FetchRequest: ClientRequests._fetch,
    QueryRequest: ClientRequests._query,
    SnapshotRequest: ClientRequests._snapshot,
    TransactionalRequest: ClientRequests._transactional,
    MetadataRequest: ClientRequests._metadata,
    WatchLeaderRequest: ClientRequests._watch_leader,
    StatusRequest: ClientRequests._status,
    TransferRequest: ClientRequests._transfer,
    ChangeMembersRequest: ClientRequests._change_members,
    HistoryRequest: ClientRequests._history,
    **dict.fromkeys(GROUPS_REQUESTS, _of_groups),
    **dict.fromkeys(CONSUMER_REQUESTS, _consumer),
    **dict.fromkeys(SECURITY_REQUESTS, _secured),
}
