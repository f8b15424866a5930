"""The error tree.

    QuorumlogError
    ├── ConfigError                   configuration is wrong; nothing was started
    ├── RequestError                  an answer from the cluster, or the lack of one
    │   ├── did not happen            NotLeaderError, LeaderTransferringError, NoLeaderError,
    │   │                             LeaderPendingFullError, DiskFullError, OutOfOrderError,
    │   │                             LeaderNotReadyError,
    │   │                             UnexpectedArgumentError, EmptyBatchError, UnsupportedError,
    │   │                             UnknownGroupError, IndexOutOfRangeError, IndexRemovedError
    │   └── unknown                   TermChangedError, QuorumAckTimeoutError, NetworkError,
    │                                 DeadlineExceededError, DiskError, InternalError
    ├── StorageError                  bytes on disk cannot be used or written
    │   ├── CorruptionError           which file, which byte, what to do
    │   ├── NoSpaceError              the disk or the quota is full
    │   ├── OutOfDescriptorsError     nothing more can be opened now; later it can
    │   └── StoreLockedError          another process has the directory open
    ├── RemoteProtocolError           the other side sent bytes that are no frame of ours
    └── InvariantViolation            a bug of ours; the replica must stop

Every `RequestError` says in `outcome` whether the append it answers happened, did not happen, or
may have happened. `retriable` says that the same request may succeed later, `refresh_leader` that
the leader should be looked up first.
"""

from dataclasses import dataclass
from enum import Enum

from quorumlog.model.codes import ResponseCode


class Outcome(Enum):
    """What an error says about the append it answers."""

    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"
    HAPPENED = "happened"


class QuorumlogError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConfigError(QuorumlogError):
    """A configuration value is missing, unknown or impossible."""


class InvariantViolation(QuorumlogError):  # noqa: N818  (the field's word, not an Error by name)
    """A property that must always hold does not: stop, never go on."""


class RemoteProtocolError(QuorumlogError):
    """Bytes from the network that are not a frame of this protocol."""


class StorageError(QuorumlogError):
    """A store cannot be opened, read or written."""


class StoreLockedError(StorageError):
    """Another process has this directory open."""


class NoSpaceError(StorageError):
    """The disk, or the user's share of it, is full."""


class OutOfDescriptorsError(StorageError):
    """This process, or the machine, has no file descriptor left: nothing was opened or changed.

    It says nothing about the disk, and passes once something else is closed.
    """


PASSING_ERRORS = (NoSpaceError, OutOfDescriptorsError)
"""Errors that changed nothing and say nothing about what is stored: the same may succeed later."""


class CorruptionError(StorageError):
    """Stored bytes are damaged.

    Attributes: `file` (path), `position` (byte within the file), `index` (entry index, or None),
    `reason` (what is wrong, without place and advice), `is_readable` (False: the disk itself failed
    to give the bytes).
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
    """Entries that a producer took and that are not known to be stored.

    There are `count` of them among the numbers `first` … `last`, counted from 0 in the order in
    which the producer took them. `unknown` of them may be stored all the same, the others are not.
    """

    count: int
    unknown: int
    first: int
    last: int

    def __str__(self) -> str:
        return (
            f"of the entries sent, counted from 0, {self.count} among {self.first} to {self.last} "
            f"are not known to be stored: {self.unknown} of unknown outcome, "
            f"{self.count - self.unknown} not stored"
        )


class RequestError(QuorumlogError):
    """A request was refused, failed, or its fate is not known.

    Attributes: `code` (`ResponseCode`), `leader_id` (the leader named by the answer, or None),
    `undelivered` (of a producer that ended: which entries are not known to be stored).
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
    """The replica asked is not the leader; nothing was stored."""

    code = ResponseCode.NOT_LEADER
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN


class LeaderTransferringError(RequestError):
    """Leadership is being handed over; nothing was stored."""

    code = ResponseCode.LEADER_TRANSFERRING
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN


class LeaderPendingFullError(RequestError):
    """The leader has as much unacknowledged work as it allows; back off and try again."""

    code = ResponseCode.LEADER_PENDING_FULL
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class OutOfOrderError(RequestError):
    """An earlier block of this stream was refused, so this one was not stored either."""

    code = ResponseCode.OUT_OF_ORDER
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class ProducerFencedError(RequestError):
    """A producer with a higher epoch took over; nothing was stored."""

    code = ResponseCode.PRODUCER_FENCED
    outcome = Outcome.DID_NOT_HAPPEN


class SequenceGapError(RequestError):
    """A producer's earlier block is not in the log, so this one was not stored."""

    code = ResponseCode.SEQUENCE_GAP
    outcome = Outcome.DID_NOT_HAPPEN


class SequenceMismatchError(RequestError):
    """A producer's sequence is taken: by other entries, or by some of long ago; nothing stored."""

    code = ResponseCode.SEQUENCE_MISMATCH
    outcome = Outcome.DID_NOT_HAPPEN


class UnknownProducerError(RequestError):
    """The group has forgotten this producer; nothing was stored."""

    code = ResponseCode.UNKNOWN_PRODUCER
    outcome = Outcome.DID_NOT_HAPPEN


class ResultsForgottenError(RequestError):
    """The commands were executed before, but what they resulted in is not kept any more."""

    code = ResponseCode.RESULTS_FORGOTTEN
    outcome = Outcome.HAPPENED


class TransactionEndedError(RequestError):
    """The batch has ended before; nothing was added to it."""

    code = ResponseCode.TRANSACTION_ENDED
    outcome = Outcome.DID_NOT_HAPPEN


class TransactionAbortedError(RequestError):
    """The batch was given up: write it again from the beginning."""

    code = ResponseCode.TRANSACTION_ABORTED
    outcome = Outcome.DID_NOT_HAPPEN


class LeaderNotReadyError(RequestError):
    """A new leader does not know yet what is committed; it will in a moment."""

    code = ResponseCode.LEADER_NOT_READY
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class NoLeaderError(RequestError):
    """No replica named a leader before the deadline."""

    code = ResponseCode.METADATA_ERROR
    retriable = True
    refresh_leader = True
    outcome = Outcome.DID_NOT_HAPPEN


class DiskFullError(RequestError):
    """The leader's disk has no room for more entries."""

    code = ResponseCode.DISK_FULL
    retriable = True
    outcome = Outcome.DID_NOT_HAPPEN


class UnexpectedArgumentError(RequestError):
    """The request is malformed or beyond a limit; sending it again will not help."""

    code = ResponseCode.UNEXPECTED_ARGUMENT
    outcome = Outcome.DID_NOT_HAPPEN


class EmptyBatchError(RequestError):
    """A batch append without any body."""

    code = ResponseCode.REQUEST_WITH_EMPTY_BODYS
    outcome = Outcome.DID_NOT_HAPPEN


class UnknownGroupError(RequestError):
    """The node does not host this group."""

    code = ResponseCode.UNKNOWN_GROUP
    outcome = Outcome.DID_NOT_HAPPEN


class WrongClusterError(RequestError):
    """A server belongs to another cluster than the client, or is a copy that may not serve.

    The addresses lead to a cluster that was founded anew, or copied: nothing was done there.
    """

    code = ResponseCode.WRONG_CLUSTER
    outcome = Outcome.DID_NOT_HAPPEN


class IndexOutOfRangeError(RequestError):
    """The index is beyond the last committed entry."""

    code = ResponseCode.INDEX_OUT_OF_RANGE
    outcome = Outcome.DID_NOT_HAPPEN


class IndexRemovedError(RequestError):
    """The index is below the first entry that is still kept."""

    code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
    outcome = Outcome.DID_NOT_HAPPEN


class UnsupportedError(RequestError):
    """The node does not know this request or protocol version."""

    code = ResponseCode.UNSUPPORTED
    outcome = Outcome.DID_NOT_HAPPEN


class TermChangedError(RequestError):
    """The leader lost its leadership while the append waited; it may or may not be kept."""

    code = ResponseCode.TERM_CHANGED
    retriable = True
    refresh_leader = True


class QuorumAckTimeoutError(RequestError):
    """No majority answered in time; the append may still be committed later."""

    code = ResponseCode.WAIT_QUORUM_ACK_TIMEOUT
    retriable = True
    refresh_leader = True


class NetworkError(RequestError):
    """The connection broke before the answer came."""

    code = ResponseCode.NETWORK_ERROR
    retriable = True
    refresh_leader = True


class DeadlineExceededError(RequestError):
    """The caller's deadline passed before an answer came.

    Or a replica's own: it could not learn in time what a read must see, and may soon.
    """

    code = ResponseCode.TIMEOUT
    retriable = True


class DiskError(RequestError):
    """The replica's disk failed while serving the request."""

    code = ResponseCode.DISK_ERROR
    retriable = True
    refresh_leader = True


class InternalError(RequestError):
    """The node failed in a way it has no better name for."""

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
        TransactionEndedError,
        TransactionAbortedError,
        LeaderNotReadyError,
        NoLeaderError,
        DiskFullError,
        UnexpectedArgumentError,
        EmptyBatchError,
        UnknownGroupError,
        WrongClusterError,
        IndexOutOfRangeError,
        IndexRemovedError,
        UnsupportedError,
        TermChangedError,
        QuorumAckTimeoutError,
        NetworkError,
        DeadlineExceededError,
        DiskError,
        InternalError,
    )
}


_REFUSALS = frozenset(
    {
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.INCONSISTENT_TERM,
        ResponseCode.REPEATED_REQUEST,
        ResponseCode.FALL_BEHIND_TOO_MUCH,
        ResponseCode.CHANGE_IN_PROGRESS,
        ResponseCode.MEMBER_NOT_READY,
    }
)
"""Codes without a class of their own that say that nothing was begun."""


def error_for(code: int, message: str, leader_id: str | None = None) -> RequestError:
    """Return the error that stands for a response code other than SUCCESS.

    Codes without a class of their own become `RequestError`, with outcome unknown unless they are
    sure refusals.
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
