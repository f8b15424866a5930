"""quorumlog: a Raft-replicated commit log for Python and Spark."""

from quorumlog.client import (
    Appended,
    AppendedBatch,
    Client,
    Producer,
    SyncClient,
    SyncProducer,
)
from quorumlog.model.entry import Entry
from quorumlog.model.errors import Outcome, QuorumlogError, RequestError

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "AppendedBatch",
    "Client",
    "Entry",
    "Outcome",
    "Producer",
    "QuorumlogError",
    "RequestError",
    "SyncClient",
    "SyncProducer",
    "__version__",
]
