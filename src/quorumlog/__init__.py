"""quorumlog: a Raft-replicated commit log for Python and Spark.

`__all__` here, `quorumlog.errors`, `quorumlog.machine`, `quorumlog.local` and `quorumlog.spark` are
what users import; everything else may change between versions.
"""

import importlib
from typing import TYPE_CHECKING

from quorumlog.model.release import RELEASE as __version__  # noqa: N811  (what it is called here)

if TYPE_CHECKING:
    from quorumlog import errors
    from quorumlog.client import (
        KV,
        AcceptedAttempt,
        Appended,
        AppendedBatch,
        Client,
        Compare,
        Consumer,
        Context,
        Delete,
        Delivery,
        Executed,
        FetchedBlock,
        GroupAdmin,
        GroupChange,
        Groups,
        GroupSummary,
        Isolation,
        KeyEvent,
        KeyItem,
        LeaderChange,
        MachineCalls,
        Producer,
        ProducerEpoch,
        ProducerStats,
        Put,
        Queried,
        ReplicaHistory,
        Secret,
        Security,
        SyncClient,
        SyncConsumer,
        SyncGroupAdmin,
        SyncGroups,
        SyncKV,
        SyncMachineCalls,
        SyncProducer,
        SyncTransactions,
        TransactionOutcome,
        TransactionPart,
        Transactions,
        find_context,
    )
    from quorumlog.embedded import EmbeddedGroup, Node
    from quorumlog.embedded.role_changes import RoleChangeHandler
    from quorumlog.errors import (
        EventsForgottenError,
        Outcome,
        QuorumlogError,
        RequestError,
    )
    from quorumlog.model.codes import Role
    from quorumlog.model.config import GroupConfig, NodeConfig
    from quorumlog.model.entry import (
        Entry,
    )
    from quorumlog.model.hooks import AppendHook, AppendPlace, RoleChange
    from quorumlog.model.limits import (
        Limits,
    )


__all__ = [
    "KV",
    "AcceptedAttempt",
    "AppendHook",
    "AppendPlace",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Consumer",
    "Context",
    "Delete",
    "Delivery",
    "EmbeddedGroup",
    "Entry",
    "EventsForgottenError",
    "Executed",
    "FetchedBlock",
    "GroupAdmin",
    "GroupChange",
    "GroupConfig",
    "GroupSummary",
    "Groups",
    "Isolation",
    "KeyEvent",
    "KeyItem",
    "LeaderChange",
    "Limits",
    "MachineCalls",
    "Node",
    "NodeConfig",
    "Outcome",
    "Producer",
    "ProducerEpoch",
    "ProducerStats",
    "Put",
    "Queried",
    "QuorumlogError",
    "ReplicaHistory",
    "RequestError",
    "Role",
    "RoleChange",
    "RoleChangeHandler",
    "Secret",
    "Security",
    "SyncClient",
    "SyncConsumer",
    "SyncGroupAdmin",
    "SyncGroups",
    "SyncKV",
    "SyncMachineCalls",
    "SyncProducer",
    "SyncTransactions",
    "TransactionOutcome",
    "TransactionPart",
    "Transactions",
    "__version__",
    "errors",
    "find_context",
]

_HOMES = {
    "AppendHook": "quorumlog.model.hooks",
    "AppendPlace": "quorumlog.model.hooks",
    "EmbeddedGroup": "quorumlog.embedded",
    "Entry": "quorumlog.model.entry",
    "EventsForgottenError": "quorumlog.errors",
    "GroupConfig": "quorumlog.model.config",
    "Limits": "quorumlog.model.limits",
    "Node": "quorumlog.embedded",
    "NodeConfig": "quorumlog.model.config",
    "Outcome": "quorumlog.errors",
    "QuorumlogError": "quorumlog.errors",
    "RequestError": "quorumlog.errors",
    "Role": "quorumlog.model.codes",
    "RoleChange": "quorumlog.model.hooks",
    "RoleChangeHandler": "quorumlog.embedded.role_changes",
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
