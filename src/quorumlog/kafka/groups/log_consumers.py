"""Requests of the consumers of logs: they are members of groups of the consumer protocol (KIP-848).

To the coordinator a log is a topic (`LogToRead`), and a position is a committed offset in it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.groups.consumers import (
    JOINING,
    LEAVING,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from quorumlog.kafka.groups.coordinator import AnyGroup, GroupCoordinator
from quorumlog.kafka.groups.group_saves import SAVE_MS
from quorumlog.kafka.groups.offset_commits import OffsetCommits
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
from quorumlog.model.wording import counted

REBALANCE_MS: Final = 60_000
"""How long a member may take to give up partitions, such as to end what it does with an entry."""
Answer: TypeAlias = Callable[[Response], None]
Readied: TypeAlias = Callable[[Response | None], None]
"""Is called with None once a group reads a log, or with the refusal."""

_GONE: Final = (
    "the member was removed from consumer group {!r}, as it was silent for longer than the session "
    "time-out, or did not give up a partition in time: it has to join again (epoch 0); others "
    "handle the entries that it has not committed"
)
_STALE: Final = (
    "the member has another epoch in consumer group {!r} by now, or does not have the partition: "
    "the next heartbeat says which it has, or that it has to join again; others handle the entries "
    "that it has not committed"
)
_ELSEWHERE: Final = "another node leads __cluster, or is about to: ask that one"
_BUSY: Final = "__cluster has not applied it, or consumer group {!r} is being changed: try again"
_DISK_FULL: Final = "the disks of __cluster are full: free space on its nodes"
_CODES: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: (ResponseCode.CONSUMER_FENCED, _GONE),
    ErrorCode.FENCED_MEMBER_EPOCH: (ResponseCode.CONSUMER_FENCED, _STALE),
    ErrorCode.STALE_MEMBER_EPOCH: (ResponseCode.CONSUMER_FENCED, _STALE),
    ErrorCode.NOT_COORDINATOR: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (ResponseCode.LEADER_NOT_READY, _BUSY),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (ResponseCode.LEADER_NOT_READY, _BUSY),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        ResponseCode.CLUSTER_FULL,
        "consumer group {!r}, or the cluster, has no room for more members (docs/kafka.md, Limits)",
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        ResponseCode.UNEXPECTED_ARGUMENT,
        "consumer group {!r} is used for something else: use another group",
    ),
}
_OTHER_LOG: Final = (
    "consumer group {0!r} consumes another log, which 'quorumlog consumer-group describe {0}' "
    "shows: use another group, or stop its members and delete it with its positions (quorumlog "
    "consumer-group delete {0})"
)
_LOG_CODES: Final = {
    ResponseCode.CHANGE_IN_PROGRESS: (ResponseCode.UNEXPECTED_ARGUMENT, ""),
    ResponseCode.CLUSTER_FULL: (ResponseCode.CLUSTER_FULL, ""),
    ResponseCode.NOT_LEADER: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ResponseCode.NODE_STOPPING: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ResponseCode.DISK_FULL: (ResponseCode.DISK_FULL, _DISK_FULL),
}
"""Why a group does not read a log; an empty text: `__cluster` says it."""
_NOT_COMMITTED: Final = (ResponseCode.LEADER_NOT_READY, _BUSY)
_COMMIT_CODES: Final = {
    ResponseCode.SUCCESS: (ResponseCode.SUCCESS, ""),
    ResponseCode.INCONSISTENT_TERM: (ResponseCode.CONSUMER_FENCED, _STALE),
    ResponseCode.UNKNOWN_TOPIC: (
        ResponseCode.CONSUMER_FENCED,
        "consumer group {!r} was deleted meanwhile: its members have to join again (epoch 0)",
    ),
    ResponseCode.CLUSTER_FULL: (
        ResponseCode.CLUSTER_FULL,
        "the cluster has no room for more positions, of consumer group {!r} or others: delete "
        "consumer groups that are not used any more (quorumlog consumer-group delete)",
    ),
    ResponseCode.NOT_LEADER: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ResponseCode.NODE_STOPPING: (ResponseCode.NOT_LEADER, _ELSEWHERE),
    ResponseCode.DISK_FULL: (ResponseCode.DISK_FULL, _DISK_FULL),
}
_NO_MEMBER_ID: Final = "a member of a consumer group has an id: give it one, such as a UUID"
_NO_PARTITION: Final = (
    "consumer group {!r} splits its log into {}, which are counted from 0: there is none {}"
)
_HAS_MEMBERS: Final = "consumer group {!r} has members, which commit its positions: stop them first"
_WRONG_LOG: Final = (
    "the log {!r} of the node that coordinates consumers has another identity: it was deleted and "
    "founded again, and this consumer knows the former one; start the consumer anew"
)


class LogConsumers:
    """Answers consumers of logs, as long as this node coordinates.

    `leader` returns the node that leads `__cluster`, as far as is known here.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        commits: OffsetCommits,
        broker: BrokerView,
        leader: Callable[[], str | None],
    ) -> None:
        self._coordinator = coordinator
        self._commits = commits
        self._broker = broker
        self._leader = leader

    def answer(self, request: ConsumerRequest, host: str, answer: Answer) -> None:
        """Answer a request from a host once, now or later."""
        if not self._coordinator.is_current():
            answer(self._refusal(request, ErrorCode.NOT_COORDINATOR))
            return
        log = self._log_of(request)
        if log is None:
            text = _WRONG_LOG.format(request.log)
            answer(Response(code=ResponseCode.WRONG_CLUSTER, text=text))
        elif isinstance(request, ConsumerHeartbeatRequest):
            self._heartbeat(request, log, host, answer)
        elif isinstance(request, CommitPositionsRequest):
            self._commit(request, log, answer)
        elif isinstance(request, PositionsRequest):
            self._positions(request, log, answer)

    def _refusal(self, request: ConsumerRequest, error: ErrorCode, text: str = "") -> Response:
        code, usual = _CODES.get(error, (ResponseCode.INTERNAL_ERROR, error.name))
        return self._response(request, code, text or usual)

    def _response(self, request: ConsumerRequest, code: ResponseCode, text: str = "") -> Response:
        """Return an answer; `text` may have a place for the name of the consumer group."""
        leader_id = self._leader() if code is ResponseCode.NOT_LEADER else None
        text = text.replace("{!r}", repr(request.consumer_group))
        return Response(code=code, text=text, leader_id=leader_id)

    # -- logs ---------------------------------------------------------------------------------

    def _identity_here(self, log: str) -> bytes:
        """Return the identity of a log as the replica on this node has it; empty: it has none."""
        replica = self._broker.replica(log)
        return b"" if replica is None else replica.core.identity

    def _log_of(self, request: ConsumerRequest) -> LogToRead | None:
        """Return the log that a request is about; None: it is none of this cluster, or was deleted.

        Where only one of consumer and group knows the identity of the log, that one counts. A group
        takes it over once it has no members. Who leaves may do so whatever became of the log.
        """
        name, here = request.consumer_group, self._identity_here(request.log)
        if isinstance(request, ConsumerHeartbeatRequest) and request.epoch == LEAVING:
            known = LogToRead(request.log, request.identity, request.partitions)
            return self._coordinator.log_of(name) or known
        if here and request.identity and here != request.identity:
            return None
        log = LogToRead(request.log, request.identity or here, request.partitions)
        read = self._coordinator.log_of(name)
        if read is None or read == log or not log.may_be(read):
            return log
        group = self._coordinator.find(name)
        is_unused = group is None or group.is_unused
        return log if log.identity and is_unused else read

    def _read_log(self, request: ConsumerRequest, log: LogToRead, done: Readied) -> None:
        """Have a group read a log, as long as it is used for nothing else; `done` is called once.

        Nobody joins it meanwhile, so that no member is one of a group that reads something else.
        """
        name, coordinator = request.consumer_group, self._coordinator
        group, read = coordinator.find(name), coordinator.log_of(name)
        if read == log:
            done(None)
        elif group is not None and not group.is_unused:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            done(self._refusal(request, error, _why_not(name, log, read)))
        elif name in coordinator.held or (group is not None and not self._is_settled(group)):
            done(self._refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        elif group is None and coordinator.is_full:
            done(self._refusal(request, ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            self._order_log(request, log, done)

    def _is_settled(self, group: AnyGroup) -> bool:
        """Whether the record of a group without members says all that there is to say of it."""
        coordinator = self._coordinator
        is_saved = not isinstance(group, ProtocolGroup) or group.saves.is_saved
        return is_saved and coordinator.may_change(group) and group.name not in coordinator.to_save

    def _order_log(self, request: ConsumerRequest, log: LogToRead, done: Readied) -> None:
        name, coordinator, term = request.consumer_group, self._coordinator, self._coordinator.term

        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            coordinator.held.discard(name)
            if isinstance(result, GroupsChanged):
                code, text = result.code, result.text
            if coordinator.term == term:
                coordinator.forget(name)  # it has no members, and may consume something else now
            if code is ResponseCode.SUCCESS:
                done(None)
                return
            if code is ResponseCode.CHANGE_IN_PROGRESS:
                text = _why_not(name, log, coordinator.log_of(name))
            code, usual = _LOG_CODES.get(code, (ResponseCode.LEADER_NOT_READY, _BUSY))
            done(self._response(request, code, usual or text))

        coordinator.held.add(name)
        is_certain = bool(log.identity) and self._identity_here(log.log) == log.identity
        command = ReadLog(term, name, log.log, log.identity, log.partitions, is_certain)
        self._broker.order(command, SAVE_MS, ordered)

    # -- members ------------------------------------------------------------------------------

    def _heartbeat(
        self, request: ConsumerHeartbeatRequest, log: LogToRead, host: str, answer: Answer
    ) -> None:
        if not request.member_id:
            answer(Response(code=ResponseCode.UNEXPECTED_ARGUMENT, text=_NO_MEMBER_ID))
            return

        def done(found: HeartbeatAnswer) -> None:
            if found.error is ErrorCode.NONE:
                answer(self._heartbeat_response(request.consumer_group, found))
            else:
                answer(self._refusal(request, found.error, found.text))

        def go(refused: Response | None) -> None:
            if refused is None:
                asked = _asked(request, log, host)
                self._coordinator.heartbeat(request.consumer_group, asked, done, log)
            else:
                answer(refused)

        if request.epoch == JOINING:
            self._read_log(request, log, go)
        else:
            go(None)

    def _heartbeat_response(self, name: str, found: HeartbeatAnswer) -> ConsumerHeartbeatResponse:
        settings = self._coordinator.protocol_settings
        return ConsumerHeartbeatResponse(
            epoch=found.epoch,
            assigned=sorted(number for _, number in found.assigned or ()),
            interval_ms=settings.interval_ms,
            session_ms=found.session_ms,
            rebalance_ms=self._rebalance_ms(name, found.member_id),
        )

    def _rebalance_ms(self, name: str, member_id: str) -> int:
        """Return how long a member may still take to give up what it is to give up.

        It may have been told before, and the answer been lost.
        """
        group = self._coordinator.find(name)
        member = group.members.by_id.get(member_id) if isinstance(group, ProtocolGroup) else None
        if member is None or member.revoke_by_ms is None:
            return REBALANCE_MS
        return max(0, member.revoke_by_ms - self._coordinator.now_ms())

    # -- positions ----------------------------------------------------------------------------

    def _commit(self, request: CommitPositionsRequest, log: LogToRead, answer: Answer) -> None:
        beyond = max((number for number, _ in request.positions), default=-1)
        if beyond >= log.partitions:
            split = counted(log.partitions, "partition")
            text = _NO_PARTITION.format(request.consumer_group, split, beyond)
            answer(Response(code=ResponseCode.UNEXPECTED_ARGUMENT, text=text))
        elif request.member_id:
            error = self._fault_of_commit(request, log)
            if error is ErrorCode.NONE:
                self._order(request, log, answer)
            else:
                answer(self._refusal(request, error))
        else:
            self._commit_as_nobody(request, log, answer)

    def _commit_as_nobody(
        self, request: CommitPositionsRequest, log: LogToRead, answer: Answer
    ) -> None:
        def go(refused: Response | None) -> None:
            group = self._coordinator.find(request.consumer_group) if refused is None else None
            if refused is not None:
                answer(refused)
            elif group is not None and not group.is_unused:
                answer(self._response(request, ResponseCode.CONSUMER_FENCED, _HAS_MEMBERS))
            else:
                self._order(request, log, answer)

        self._read_log(request, log, go)

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

        def ordered(code: ResponseCode, text: str, result: GroupsChanged | None) -> None:
            if result is not None:
                failed = (one for one in result.codes if one is not ResponseCode.SUCCESS)
                code = next(failed, result.code)
            answer(self._response(request, *_COMMIT_CODES.get(code, _NOT_COMMITTED)))

        self._commits.commit(command, ordered)

    def _positions(self, request: PositionsRequest, log: LogToRead, answer: Answer) -> None:
        def passed(has_passed: bool) -> None:
            if not has_passed:
                answer(self._refusal(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
                return
            record = self._broker.consumer_groups.get(request.consumer_group)
            read = None if record is None else record.log
            if record is None or (read is not None and read.may_be(log)):
                found = {} if record is None else record.positions
                positions = sorted((number, one.offset) for number, one in found.items())
                answer(PositionsResponse(positions=positions))
            elif record.offsets or record.member_count:
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                answer(self._refusal(request, error, _why_not(record.name, log, read)))
            else:
                answer(PositionsResponse())

        self._broker.ask_barrier(SAVE_MS, passed)


def _why_not(name: str, log: LogToRead, read: LogToRead | None) -> str:
    """Return why a consumer group, which consumes something else, cannot read a log.

    Which other log that is, whoever asks may not be allowed to know.
    """
    is_known = read is None or read.log == log.log
    return log.refusal(name, read) if is_known else _OTHER_LOG.format(name)


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
        number=request.number,
    )
