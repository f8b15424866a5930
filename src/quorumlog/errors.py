"""Every error that a user of quorumlog may catch.

All derive from `QuorumlogError`. What a call to the cluster raises is a `RequestError`, whose
`outcome` says whether the append or command is in the log. Catch that, and look at `outcome`,
unless one of the errors derived from it needs something else.

    try:
        await log.append(body)
    except RequestError as error:
        if error.outcome is Outcome.UNKNOWN:
            ...  # it may be in the log: appending it again may store it twice

Wrong options of a client raise `ConfigError`, wrong arguments of a call `UnexpectedArgumentError`.
`StorageError` and what derives from it comes from programs that read data files themselves.
Clusters of `quorumlog.local` and jobs of `quorumlog.spark` have errors of their own besides, which
derive from `QuorumlogError` too.
"""

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    AllAckTimeoutError,
    ConfigError,
    ConsumerFencedError,
    CorruptionError,
    DeadlineExceededError,
    DiskError,
    DiskFullError,
    EmptyBatchError,
    EventsForgottenError,
    HookRefusedError,
    IndexOutOfRangeError,
    IndexRemovedError,
    InternalError,
    InvariantViolation,
    LeaderNotReadyError,
    LeaderPendingFullError,
    LeaderTransferringError,
    LoginError,
    NetworkError,
    NoLeaderError,
    NoSpaceError,
    NotAFileError,
    NotLeaderError,
    Outcome,
    OutOfDescriptorsError,
    OutOfOrderError,
    ProducerFencedError,
    QuorumAckTimeoutError,
    QuorumlogError,
    RemoteProtocolError,
    RequestError,
    ResultsForgottenError,
    SequenceGapError,
    SequenceMismatchError,
    StorageError,
    StoreLockedError,
    TermChangedError,
    TransactionAbortedError,
    TransactionEndedError,
    Undelivered,
    UnexpectedArgumentError,
    UnknownGroupError,
    UnknownProducerError,
    UnsettledError,
    UnsupportedError,
    UnsupportedVersionError,
    WrongClusterError,
)

__all__ = [
    "AllAckTimeoutError",
    "ConfigError",
    "ConsumerFencedError",
    "CorruptionError",
    "DeadlineExceededError",
    "DiskError",
    "DiskFullError",
    "EmptyBatchError",
    "EventsForgottenError",
    "HookRefusedError",
    "IndexOutOfRangeError",
    "IndexRemovedError",
    "InternalError",
    "InvariantViolation",
    "LeaderNotReadyError",
    "LeaderPendingFullError",
    "LeaderTransferringError",
    "LoginError",
    "NetworkError",
    "NoLeaderError",
    "NoSpaceError",
    "NotAFileError",
    "NotLeaderError",
    "OutOfDescriptorsError",
    "OutOfOrderError",
    "Outcome",
    "ProducerFencedError",
    "QuorumAckTimeoutError",
    "QuorumlogError",
    "RemoteProtocolError",
    "RequestError",
    "ResponseCode",
    "ResultsForgottenError",
    "SequenceGapError",
    "SequenceMismatchError",
    "StorageError",
    "StoreLockedError",
    "TermChangedError",
    "TransactionAbortedError",
    "TransactionEndedError",
    "Undelivered",
    "UnexpectedArgumentError",
    "UnknownGroupError",
    "UnknownProducerError",
    "UnsettledError",
    "UnsupportedError",
    "UnsupportedVersionError",
    "WrongClusterError",
]
