"""quorumlog: a Raft-replicated commit log for Python and Spark.

`__all__` here, `quorumlog.errors`, `quorumlog.machine`, `quorumlog.local` and `quorumlog.spark` are
what users import; everything else may change between versions.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog import errors
    from quorumlog.client import (
        KV,
        AcceptedAttempt,
        Appended,
        AppendedBatch,
        Client,
        Compare,
        Delete,
        Delivery,
        Executed,
        FetchedBlock,
        GroupAdmin,
        Isolation,
        KeyEvent,
        KeyItem,
        MachineCalls,
        Producer,
        ProducerEpoch,
        ProducerStats,
        Put,
        Queried,
        ReplicaHistory,
        SyncClient,
        SyncGroupAdmin,
        SyncKV,
        SyncMachineCalls,
        SyncProducer,
        SyncTransactions,
        TransactionOutcome,
        TransactionPart,
        Transactions,
    )
    from quorumlog.errors import (
        EventsForgottenError,
        Outcome,
        QuorumlogError,
        RequestError,
    )
    from quorumlog.model.entry import (
        Entry,
    )
    from quorumlog.model.limits import (
        Limits,
    )

__version__ = "0.1.0"

__all__ = [
    "KV",
    "AcceptedAttempt",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Delete",
    "Delivery",
    "Entry",
    "EventsForgottenError",
    "Executed",
    "FetchedBlock",
    "GroupAdmin",
    "Isolation",
    "KeyEvent",
    "KeyItem",
    "Limits",
    "MachineCalls",
    "Outcome",
    "Producer",
    "ProducerEpoch",
    "ProducerStats",
    "Put",
    "Queried",
    "QuorumlogError",
    "ReplicaHistory",
    "RequestError",
    "SyncClient",
    "SyncGroupAdmin",
    "SyncKV",
    "SyncMachineCalls",
    "SyncProducer",
    "SyncTransactions",
    "TransactionOutcome",
    "TransactionPart",
    "Transactions",
    "__version__",
    "errors",
]

_HOMES = {
    "Entry": "quorumlog.model.entry",
    "EventsForgottenError": "quorumlog.errors",
    "Limits": "quorumlog.model.limits",
    "Outcome": "quorumlog.errors",
    "QuorumlogError": "quorumlog.errors",
    "RequestError": "quorumlog.errors",
}
"""Where a name comes from, if not from `quorumlog.client`."""


def __getattr__(name: str) -> object:
    """Import a name when it is first asked for.

    A node needs none of them, and a command that does not import the client starts sooner.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module("quorumlog.errors")
    return getattr(importlib.import_module(_HOMES.get(name, "quorumlog.client")), name)
