"""quorumlog: a Raft-replicated commit log for Python and Spark."""

from quorumlog.client import (
    KV,
    Appended,
    AppendedBatch,
    Client,
    Compare,
    Delete,
    EventsForgottenError,
    KeyEvent,
    KeyItem,
    Producer,
    Put,
    SyncClient,
    SyncKV,
    SyncProducer,
    TransactionOutcome,
)
from quorumlog.model.entry import Entry
from quorumlog.model.errors import Outcome, QuorumlogError, RequestError

__version__ = "0.1.0"

__all__ = [
    "KV",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Delete",
    "Entry",
    "EventsForgottenError",
    "KeyEvent",
    "KeyItem",
    "Outcome",
    "Producer",
    "Put",
    "QuorumlogError",
    "RequestError",
    "SyncClient",
    "SyncKV",
    "SyncProducer",
    "TransactionOutcome",
    "__version__",
]
