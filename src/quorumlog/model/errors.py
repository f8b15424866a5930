"""The error tree; users import it from `quorumlog.errors`.

    QuorumlogError
    ├── ConfigError                   configuration is wrong; nothing was started
    ├── RequestError                  an answer from the cluster, or the lack of one
    │   ├── did not happen            NotLeaderError, LeaderTransferringError, NoLeaderError,
    │   │                             LeaderPendingFullError, DiskFullError, OutOfOrderError,
    │   │                             LeaderNotReadyError, ProducerFencedError, SequenceGapError,
    │   │                             SequenceMismatchError, UnknownProducerError,
    │   │                             TransactionEndedError, TransactionAbortedError,
    │   │                             ConsumerFencedError,
    │   │                             UnexpectedArgumentError, HookRefusedError,
    │   │                             NotAuthorizedError,
    │   │                             EmptyBatchError, UnsupportedError,
    │   │                             UnsupportedVersionError,
    │   │                             UnknownGroupError, WrongClusterError, LoginError,
    │   │                             IndexOutOfRangeError, IndexRemovedError (of a watch
    │   │                             EventsForgottenError)
    │   ├── happened                  ResultsForgottenError
    │   └── unknown                   TermChangedError, QuorumAckTimeoutError, NetworkError,
    │                                 DeadlineExceededError, DiskError, InternalError
    ├── StorageError                  bytes on disk cannot be used or written
    │   ├── CorruptionError           which file, which byte, what to do
    │   ├── NoSpaceError              the disk or the quota is full
    │   ├── NotAFileError             something else lies where one of our files must be
    │   ├── OutOfDescriptorsError     nothing more can be opened now; later it can
    │   └── StoreLockedError          another process has the directory open
    ├── RemoteProtocolError           the other side sent bytes that are no frame of ours
    └── InvariantViolation            a bug of ours; the replica must stop

Every `RequestError` says in `outcome` whether the append it answers happened, did not happen, or
may have happened. The class gives the usual outcome; an instance may differ: a refusal that comes
after an attempt of unknown outcome is unknown too, and a `NetworkError` of a request that was never
sent did not happen. `retriable` says that the same request may succeed later, `refresh_leader` that
the leader should be looked up first.
"""

from dataclasses import dataclass
from enum import Enum

from quorumlog.model.codes import ResponseCode


class Outcome(Enum):
    """Whether the append (or command) that an error answers is in the log.

    Attributes:
        DID_NOT_HAPPEN: it is not, and will not be.
        UNKNOWN: it may be in the log now, or come there later.
        HAPPENED: it is.
    """

    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"
    HAPPENED = "happened"


class QuorumlogError(Exception):
    """The root of all errors that this package raises on purpose."""


class ConfigError(QuorumlogError):
    """A configuration value or an option is missing, unknown or impossible; nothing was started."""


class InvariantViolation(QuorumlogError):  # noqa: N818  (the field's word, not an Error by name)
    """A property that must always hold does not: a bug of this package.

    The replica that raises it stops, rather than go on with a wrong state.
    """


class RemoteProtocolError(QuorumlogError):
    """The other side of a connection sent bytes that are no message of this protocol.

    A client also raises it for an answer that does not match its request.
    """


class StorageError(QuorumlogError):
    """Files of a store cannot be opened, read or written."""


class StoreLockedError(StorageError):
    """Another process has opened this data directory."""


class UnsettledError(StorageError):
    """The newest entries of a group may be only in the journal of its node, which is down."""


class NoSpaceError(StorageError):
    """The disk, or what the user may have of it, is full; nothing was changed."""


class NotAFileError(StorageError):
    """A directory, FIFO, socket, device or dangling link lies where a file must be."""


class OutOfDescriptorsError(StorageError):
    """This process or machine has no file descriptor left; nothing was opened or changed.

    It says nothing about the disk, and passes once something else is closed.
    """


TRANSIENT_ERRORS = (NoSpaceError, OutOfDescriptorsError)
"""Errors that changed nothing and say nothing about what is on disk: the same may succeed later."""


class CorruptionError(StorageError):
    """Bytes on disk are damaged.

    Attributes:
        file: path of the file.
        position: byte within the file.
        index: index of the entry, or None.
        reason: what is wrong, without place and advice.
        is_readable: False if the disk itself failed to return the bytes.
    """

    is_readable = True

    def __init__(
        self,
        message: str,
        file: str,
        position: int,
        index: int | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.position = position
        self.index = index
        self.reason = message if reason is None else reason


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The entries that a producer took and that are not known to be in the log.

    Attributes:
        count: how many there are.
        unknown: how many of them may be in the log all the same; the others are not.
        first: number of the first, counted from 0 in the order in which the producer took them.
        last: number of the last.
    """

    count: int
    unknown: int
    first: int
    last: int

    def __str__(self) -> str:
        entries = "entry" if self.count == 1 else "entries"
        is_one = self.first == self.last
        where = f"number {self.first}" if is_one else f"among numbers {self.first} to {self.last}"
        lost = self.count - self.unknown
        outcome = f"{lost} not appended, {self.unknown} of unknown outcome"
        if not self.unknown:
            outcome = "not appended"
        elif not lost:
            outcome = "of unknown outcome"
        return f"{self.count} {entries} ({where} of those sent, from 0): {outcome}"


class RequestError(QuorumlogError):
    """A request was refused or failed, or it is not known whether it was executed.

    This class itself is raised for response codes without a class of their own (see `code`), by
    clients that are closed, and in a forked child.

    Attributes:
        code: the `ResponseCode`.
        outcome: whether the append (or command) that failed is in the log.
        retriable: True if the same request may succeed later.
        refresh_leader: True if the leader should be looked up before the request is repeated.
        leader_id: the leader that the answer named, or None.
        undelivered: of a producer that has failed, the entries not known to be in the log; else
            None.
    """

    code: ResponseCode = ResponseCode.UNKNOWN
    retriable: bool = False
    refresh_leader: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    undelivered: Undelivered | None = None

    def __init__(
        self, message: str, *, code: ResponseCode | None = None, leader_id: str | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.leader_id = leader_id


class NotLeaderError(RequestError):
    """The replica that was asked does not lead; nothing was appended."""

    code = ResponseCode.NOT_LEADER
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN

    def __init__(
        self, message: str, *, code: ResponseCode | None = None, leader_id: str | None = None
    ) -> None:
        if leader_id and leader_id not in message:
            message = f"{message}; {leader_id} leads"
        super().__init__(message, code=code, leader_id=leader_id)


class LeaderTransferringError(RequestError):
    """Leadership is being transferred to another replica; nothing was appended."""

    code = ResponseCode.LEADER_TRANSFERRING
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN


class LeaderPendingFullError(RequestError):
    """More is unanswered than a leader, client or producer allows; nothing was appended.

    Wait a moment, then try again.
    """

    code = ResponseCode.LEADER_PENDING_FULL
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class OutOfOrderError(RequestError):
    """An earlier block of the same stream was refused, so this one was not appended either."""

    code = ResponseCode.OUT_OF_ORDER
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class ProducerFencedError(RequestError):
    """A producer of the same id with a higher epoch took over; nothing was appended.

    This producer is replaced permanently: do not retry.
    """

    code = ResponseCode.PRODUCER_FENCED
    outcome = Outcome.DID_NOT_HAPPEN


class SequenceGapError(RequestError):
    """A block that this producer sent before is not in the log, so this one was not appended."""

    code = ResponseCode.SEQUENCE_GAP
    outcome = Outcome.DID_NOT_HAPPEN


class SequenceMismatchError(RequestError):
    """Other entries, or entries too old to compare, have this sequence; nothing was appended.

    Two producers share an id and an epoch, or a producer repeats what it sent long ago.
    """

    code = ResponseCode.SEQUENCE_MISMATCH
    outcome = Outcome.DID_NOT_HAPPEN


class UnknownProducerError(RequestError):
    """The group has forgotten this producer, since many others appended; nothing was appended."""

    code = ResponseCode.UNKNOWN_PRODUCER
    outcome = Outcome.DID_NOT_HAPPEN


class ResultsForgottenError(RequestError):
    """The commands were executed before, but their results are not kept any more."""

    code = ResponseCode.RESULTS_FORGOTTEN
    outcome = Outcome.HAPPENED


class AllAckTimeoutError(RequestError):
    """The entries are committed, but not all voters acknowledged them in time (level "all")."""

    code = ResponseCode.WAIT_ALL_ACK_TIMEOUT
    outcome = Outcome.HAPPENED


class TransactionEndedError(RequestError):
    """The batch was committed or aborted before; nothing was added to it."""

    code = ResponseCode.TRANSACTION_ENDED
    outcome = Outcome.DID_NOT_HAPPEN


class TransactionAbortedError(RequestError):
    """The batch was aborted, or timed out, before it was committed; nothing of it counts.

    Write it again from its start.
    """

    code = ResponseCode.TRANSACTION_ABORTED
    outcome = Outcome.DID_NOT_HAPPEN


class ConsumerFencedError(RequestError):
    """A consumer has lost partitions that it had entries of: what it did was not committed.

    It was silent for longer than the session time-out, or did not give the partitions up in time;
    whoever has them now handles these entries again. The program undoes what it has not committed
    of them; the consumer joins again by itself, and goes on. It is also raised where positions are
    committed by a program that is no member, such as a reset, while the group has members: stop
    these first.
    """

    code = ResponseCode.CONSUMER_FENCED
    outcome = Outcome.DID_NOT_HAPPEN


class LeaderNotReadyError(RequestError):
    """A new leader does not know yet what is committed, or what the others have; it soon will."""

    code = ResponseCode.LEADER_NOT_READY
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class NoLeaderError(RequestError):
    """No replica named a leader before the deadline, or the leader cannot be reached.

    Nothing was appended.
    """

    code = ResponseCode.METADATA_ERROR
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN


class DiskFullError(RequestError):
    """The disk of the leader has no room for more entries; nothing was appended."""

    code = ResponseCode.DISK_FULL
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class UnexpectedArgumentError(RequestError):
    """An argument has a wrong type or value, or is above a limit; nothing was sent or appended.

    Sending it again will not help.
    """

    code = ResponseCode.UNEXPECTED_ARGUMENT
    outcome = Outcome.DID_NOT_HAPPEN


class HookRefusedError(RequestError):
    """The append hook of the leader's program refused the entries; nothing was appended.

    The message has what the hook raised.
    """

    code = ResponseCode.HOOK_REFUSED
    outcome = Outcome.DID_NOT_HAPPEN


class NotAuthorizedError(RequestError):
    """The user may not do this, as no ACL allows it; nothing was done.

    It is also raised for a group that does not exist, unless the user may see groups of that name.
    Asking again does not help: someone who administers the cluster has to give the right.
    """

    code = ResponseCode.NOT_AUTHORIZED
    outcome = Outcome.DID_NOT_HAPPEN


class EmptyBatchError(RequestError):
    """A batch without entries was appended; nothing was sent."""

    code = ResponseCode.REQUEST_WITH_EMPTY_BODYS
    outcome = Outcome.DID_NOT_HAPPEN


class UnknownGroupError(RequestError):
    """The servers that were asked do not host this group."""

    code = ResponseCode.UNKNOWN_GROUP
    outcome = Outcome.DID_NOT_HAPPEN


class LoginError(RequestError):
    """A node does not let this client in, or only after a login; nothing was done.

    Name, password or token are wrong, or the token has expired: nodes do not say which. Or no login
    was given, where one is needed; or a certificate was shown that is another cluster's, or a
    node's. Sending it again will not help.

    Attributes:
        is_everywhere: True if a node refused the name, the password or the token: users are the
            same on all nodes of a cluster, so the others would refuse, too, and as late, unless
            this one is behind.
    """

    code = ResponseCode.LOGIN_REFUSED
    outcome = Outcome.DID_NOT_HAPPEN
    is_everywhere = False

    def again(self, text: str = "") -> "LoginError":
        """Return the same error, to be raised for somebody else, or with another text."""
        made = LoginError(text or str(self), code=self.code)
        made.is_everywhere = self.is_everywhere
        return made


class WrongClusterError(RequestError):
    """A server belongs to another cluster than the client, or is a copy that may not serve.

    The addresses lead to a cluster that was founded again, or copied: nothing was done there. A
    consumer gets it, too, if its log was deleted and founded again since it has begun.
    """

    code = ResponseCode.WRONG_CLUSTER
    outcome = Outcome.DID_NOT_HAPPEN


class IndexOutOfRangeError(RequestError):
    """The index is beyond the last committed entry."""

    code = ResponseCode.INDEX_OUT_OF_RANGE
    outcome = Outcome.DID_NOT_HAPPEN


class IndexRemovedError(RequestError):
    """The entry was removed: the index is below the first one that is kept."""

    code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
    outcome = Outcome.DID_NOT_HAPPEN


class EventsForgottenError(IndexRemovedError):
    """Changes of keys from the index asked for to `first_kept_index` are not kept any more.

    Attributes:
        first_kept_index: the first index from which all changes are kept.
    """

    def __init__(self, message: str, first_kept_index: int) -> None:
        super().__init__(message)
        self.first_kept_index = first_kept_index


class UnsupportedError(RequestError):
    """The server does not know this request, or the group has no state machine."""

    code = ResponseCode.UNSUPPORTED
    outcome = Outcome.DID_NOT_HAPPEN


class UnsupportedVersionError(RequestError):
    """A server and this client speak no common version of the protocol; nothing was done there.

    The text says which versions each of them speaks, and whether to upgrade the client or the node.
    """

    code = ResponseCode.UNSUPPORTED_VERSION
    outcome = Outcome.DID_NOT_HAPPEN


class TermChangedError(RequestError):
    """The leader lost its leadership before a majority had the entries: they may be kept or not."""

    code = ResponseCode.TERM_CHANGED
    retriable = True
    refresh_leader = True


class QuorumAckTimeoutError(RequestError):
    """No majority acknowledged the entries in time; they may still be committed later."""

    code = ResponseCode.WAIT_QUORUM_ACK_TIMEOUT
    retriable = True
    refresh_leader = True


class NetworkError(RequestError):
    """The connection broke, or the server did not answer, before the outcome was known."""

    code = ResponseCode.NETWORK_ERROR
    retriable = True
    refresh_leader = True


class HandshakeError(NetworkError):
    """The TLS handshake with a node failed, and would fail again; nothing was done.

    One side does not accept the other's certificate, or only one of them speaks TLS. The text says
    which and why.
    """

    outcome = Outcome.DID_NOT_HAPPEN
    retriable = False
    refresh_leader = False


class DeadlineExceededError(RequestError):
    """The deadline of the call, or the delivery timeout of a producer, passed without an answer.

    A replica raises it too, if it could not find out in time what a read must see, or if its state
    machine did not execute a committed command in time.
    """

    code = ResponseCode.TIMEOUT
    retriable = True


class DiskError(RequestError):
    """The disk of the replica failed while it served the request."""

    code = ResponseCode.DISK_ERROR
    retriable = True
    refresh_leader = True


class InternalError(RequestError):
    """The server failed in a way that has no error of its own."""

    code = ResponseCode.INTERNAL_ERROR


_BY_CODE: dict[ResponseCode, type[RequestError]] = {
    kind.code: kind
    for kind in (
        NotLeaderError,
        LeaderTransferringError,
        LeaderPendingFullError,
        OutOfOrderError,
        ProducerFencedError,
        SequenceGapError,
        SequenceMismatchError,
        UnknownProducerError,
        ResultsForgottenError,
        AllAckTimeoutError,
        TransactionEndedError,
        TransactionAbortedError,
        ConsumerFencedError,
        LeaderNotReadyError,
        NoLeaderError,
        DiskFullError,
        UnexpectedArgumentError,
        HookRefusedError,
        NotAuthorizedError,
        EmptyBatchError,
        UnknownGroupError,
        WrongClusterError,
        LoginError,
        IndexOutOfRangeError,
        IndexRemovedError,
        UnsupportedError,
        UnsupportedVersionError,
        TermChangedError,
        QuorumAckTimeoutError,
        NetworkError,
        DeadlineExceededError,
        DiskError,
        InternalError,
    )
}
_BY_CODE |= dict.fromkeys((ResponseCode.LOGIN_REQUIRED, ResponseCode.LOGIN_EXPIRED), LoginError)
_BY_CODE[ResponseCode.TLS_REQUIRED] = HandshakeError


_REFUSALS = frozenset(
    {
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.INCONSISTENT_TERM,
        ResponseCode.REPEATED_REQUEST,
        ResponseCode.FALL_BEHIND_TOO_MUCH,
        ResponseCode.CHANGE_IN_PROGRESS,
        ResponseCode.MEMBER_NOT_READY,
        ResponseCode.GROUP_EXISTS,
        ResponseCode.GROUP_DELETED,
        ResponseCode.GROUP_REFUSED,
        ResponseCode.CLUSTER_FULL,
        ResponseCode.UNKNOWN_USER,
        ResponseCode.USER_EXISTS,
    }
)
"""Codes without a class of their own that say that nothing was started."""


def error_for(code: int, message: str, leader_id: str | None = None) -> RequestError:
    """Return the error that stands for a response code other than SUCCESS.

    Codes without a class of their own become `RequestError`; its outcome is unknown unless the
    code is a refusal for certain.
    """
    try:
        known = ResponseCode(code)
    except ValueError:
        return RequestError(f"{message} (unknown code {code})", leader_id=leader_id)
    kind = _BY_CODE.get(known, RequestError)
    error = kind(message or known.name, code=known, leader_id=leader_id)
    if known in _REFUSALS:
        error.outcome = Outcome.DID_NOT_HAPPEN
    return error


def check(condition: bool, message: str, *details: object) -> None:
    """Raise `InvariantViolation` unless `condition` holds; stays on in production."""
    if not condition:
        said = ", ".join(map(str, details))
        raise InvariantViolation(f"{message}: {said}" if details else message)
