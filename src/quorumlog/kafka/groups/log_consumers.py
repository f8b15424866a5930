"""Requests of the consumers of logs: they are members of groups of the consumer protocol (KIP-848).

To the coordinator a log is a topic (`LogToRead`), and a position is a committed offset in it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.groups.consumers import JOINING, ConsumerHeartbeat, HeartbeatAnswer
from quorumlog.kafka.groups.coordinator import SAVE_MS, AnyGroup, GroupCoordinator
from quorumlog.machine.cluster.commands import (
    NO_GENERATION,
    CommitOffsets,
    GroupsChanged,
    OffsetToCommit,
    ReadLog,
)
from quorumlog.machine.cluster.consumer_groups import LogToRead
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.consumers import (
    CommitPositionsRequest,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerRequest,
    PositionsRequest,
    PositionsResponse,
)

REBALANCE_MS: Final = 60_000
"""How long a member may take to give up partitions, such as to end what it does with an entry."""
Answer: TypeAlias = Callable[[Response], None]

_FENCED: Final = "the member was removed from consumer group {!r}, or has another epoch"
_ELSEWHERE: Final = "another node leads __cluster, or is about to"
_BUSY: Final = "__cluster did not carry it out: try again"
_CODES: Final = {
    ErrorCode.NONE: (ResponseCode.SUCCESS, ""),
    ErrorCode.UNKNOWN_MEMBER_ID: (ResponseCode.CONSUMER_FENCED, _FENCED),
    ErrorCode.FENCED_MEMBER_EPOCH: (ResponseCode.CONSUMER_FENCED, _FENCED),
    ErrorCode.STALE_MEMBER_EPOCH: (ResponseCode.CONSUMER_FENCED, _FENCED),
    ErrorCode.NOT_COORDINATOR: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (ResponseCode.LEADER_NOT_READY, _BUSY),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (ResponseCode.LEADER_NOT_READY, _BUSY),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        ResponseCode.CLUSTER_FULL,
        "consumer group {!r}, or the cluster, has no room for more members",
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        ResponseCode.UNEXPECTED_ARGUMENT,
        "consumer group {!r} is used for something else",
    ),
}
_LOG_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.CHANGE_IN_PROGRESS: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ResponseCode.CLUSTER_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.NODE_STOPPING: ErrorCode.NOT_COORDINATOR,
}
_COMMIT_CODES: Final = {
    ResponseCode.SUCCESS: (ResponseCode.SUCCESS, ""),
    ResponseCode.INCONSISTENT_TERM: (ResponseCode.CONSUMER_FENCED, _FENCED),
    ResponseCode.UNKNOWN_TOPIC: (
        ResponseCode.CONSUMER_FENCED,
        "consumer group {!r} was deleted, or has no such partition",
    ),
    ResponseCode.CLUSTER_FULL: (
        ResponseCode.CLUSTER_FULL,
        "the cluster has no room for more positions, of consumer group {!r} or others",
    ),
    ResponseCode.NOT_LEADER: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ResponseCode.DISK_FULL: (ResponseCode.DISK_FULL, "the disks of __cluster are full"),
}


class LogConsumers:
    """Answers consumers of logs, as long as this node coordinates.

    `leader` returns the node that leads `__cluster`, as far as is known here.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        broker: BrokerView,
        leader: Callable[[], str | None],
    ) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self._leader = leader

    def answer(self, request: ConsumerRequest, host: str, answer: Answer) -> None:
        """Answer a request from a host once, now or later."""
        if not self._coordinator.is_current():
            answer(self._response(ErrorCode.NOT_COORDINATOR, request))
        elif isinstance(request, ConsumerHeartbeatRequest):
            self._heartbeat(request, host, answer)
        elif isinstance(request, CommitPositionsRequest):
            self._commit(request, answer)
        elif isinstance(request, PositionsRequest):
            self._positions(request, answer)

    def _response(self, error: ErrorCode, request: ConsumerRequest, text: str = "") -> Response:
        code, usual = _CODES.get(error, (ResponseCode.INTERNAL_ERROR, error.name))
        text = text or usual.format(request.consumer_group)
        leader_id = self._leader() if code is ResponseCode.NOT_LEADER else None
        return Response(code=code, text=text, leader_id=leader_id)

    # -- members ------------------------------------------------------------------------------

    def _heartbeat(self, request: ConsumerHeartbeatRequest, host: str, answer: Answer) -> None:
        name, log = request.consumer_group, _log_of(request)
        if not request.member_id:
            text = "a member of a consumer group has an id"
            answer(Response(code=ResponseCode.UNEXPECTED_ARGUMENT, text=text))
            return

        def done(found: HeartbeatAnswer) -> None:
            if found.error is ErrorCode.NONE:
                answer(self._heartbeat_response(found))
            else:
                answer(self._response(found.error, request, found.text))

        def go(error: ErrorCode, text: str) -> None:
            if error is ErrorCode.NONE:
                self._coordinator.heartbeat(name, _asked(request, log, host), done, log)
            else:
                answer(self._response(error, request, text))

        if request.epoch == JOINING:
            self._read_log(name, log, go)
        else:
            go(ErrorCode.NONE, "")

    def _heartbeat_response(self, found: HeartbeatAnswer) -> ConsumerHeartbeatResponse:
        settings = self._coordinator.protocol_settings
        return ConsumerHeartbeatResponse(
            epoch=found.epoch,
            assigned=sorted(number for _, number in found.assigned or ()),
            interval_ms=settings.interval_ms,
            session_ms=settings.session_ms,
        )

    def _read_log(self, name: str, log: LogToRead, done: Callable[[ErrorCode, str], None]) -> None:
        """Have a group read a log, as long as it is used for nothing else; `done` is called once.

        Nobody joins it meanwhile, so that no member is one of a group that reads something else.
        """
        coordinator = self._coordinator
        group, read = coordinator.find(name), coordinator.log_of(name)
        if read == log:
            done(ErrorCode.NONE, "")
        elif group is not None and not group.is_unused:
            done(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, log.refusal(name, read))
        elif name in coordinator.held or (group is not None and not self._is_settled(group)):
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "")
        elif group is None and coordinator.is_full:
            done(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        else:
            self._order_log(name, log, done)

    def _is_settled(self, group: AnyGroup) -> bool:
        """Whether the record of a group without members says all that there is to say of it."""
        is_saved = not isinstance(group, ProtocolGroup) or group.saves.is_saved
        return is_saved and self._coordinator.may_change(group)

    def _order_log(self, name: str, log: LogToRead, done: Callable[[ErrorCode, str], None]) -> None:
        coordinator, term = self._coordinator, self._coordinator.term

        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            coordinator.held.discard(name)
            if isinstance(result, GroupsChanged):
                code, text = result.code, result.text
            if coordinator.term == term:
                coordinator.forget(name)  # it has no members, and may consume something else now
            done(_LOG_ERRORS.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE), text)

        coordinator.held.add(name)
        command = ReadLog(term, name, log.log, log.identity, log.partitions)
        self._broker.order(command, SAVE_MS, ordered)

    # -- positions ----------------------------------------------------------------------------

    def _commit(self, request: CommitPositionsRequest, answer: Answer) -> None:
        name, log = request.consumer_group, _log_of(request)
        if request.member_id:
            error = self._fault_of_commit(request, log)
            if error is ErrorCode.NONE:
                self._order(request, log, answer)
            else:
                answer(self._response(error, request))
            return

        def go(error: ErrorCode, text: str) -> None:
            group = self._coordinator.find(name) if error is ErrorCode.NONE else None
            if error is not ErrorCode.NONE:
                answer(self._response(error, request, text))
            elif group is not None and not group.is_unused:
                text = f"consumer group {name!r} has members, which commit its positions"
                answer(Response(code=ResponseCode.CONSUMER_FENCED, text=text))
            else:
                self._order(request, log, answer)

        self._read_log(name, log, go)

    def _fault_of_commit(self, request: CommitPositionsRequest, log: LogToRead) -> ErrorCode:
        """Return why a member must not commit; NONE: it may, in partitions that it has."""
        group = self._coordinator.find(request.consumer_group)
        if not isinstance(group, ProtocolGroup) or group.log != log:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.may_commit(request.member_id, None, request.epoch, self._coordinator.now_ms())
        if error is ErrorCode.NONE:
            held = group.members.by_id[request.member_id].held
            numbers = {number for _, number in held.assigned | held.revoking}
            if not {number for number, _ in request.positions} <= numbers:
                error = ErrorCode.STALE_MEMBER_EPOCH
        return error

    def _order(self, request: CommitPositionsRequest, log: LogToRead, answer: Answer) -> None:
        topic_id = log.topic_id
        offsets = [OffsetToCommit(topic_id, *one) for one in request.positions]
        name, member_id = request.consumer_group, request.member_id
        epoch = request.epoch if member_id else NO_GENERATION
        command = CommitOffsets(self._coordinator.term, name, epoch, offsets, member_id)

        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            if isinstance(result, GroupsChanged):
                failed = (one for one in result.codes if one is not ResponseCode.SUCCESS)
                code = next(failed, result.code)
            outcome, usual = _COMMIT_CODES.get(code, (ResponseCode.LEADER_NOT_READY, _BUSY))
            leader_id = self._leader() if outcome is ResponseCode.NOT_LEADER else None
            answer(Response(code=outcome, text=usual.format(name), leader_id=leader_id))

        self._broker.order(command, SAVE_MS, ordered)

    def _positions(self, request: PositionsRequest, answer: Answer) -> None:
        log = _log_of(request)

        def passed(has_passed: bool) -> None:
            if not has_passed:
                answer(self._response(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, request))
                return
            record = self._broker.consumer_groups.get(request.consumer_group)
            offsets = record.offsets if record is not None and record.log == log else {}
            found = [(place[1], one.offset) for place, one in offsets.items() if one.offset >= 0]
            answer(PositionsResponse(positions=sorted(found)))

        self._broker.ask_barrier(SAVE_MS, passed)


def _log_of(request: ConsumerRequest) -> LogToRead:
    return LogToRead(request.log, request.identity, request.partitions)


def _asked(request: ConsumerHeartbeatRequest, log: LogToRead, host: str) -> ConsumerHeartbeat:
    topic_id, is_joining = log.topic_id, request.epoch == JOINING
    return ConsumerHeartbeat(
        request.member_id,
        request.epoch,
        rebalance_timeout_ms=REBALANCE_MS,
        topics=(log.topic,),
        owned=frozenset((topic_id, one) for one in (() if is_joining else request.owned)),
        client_id=request.client_id,
        client_host=host,
    )
